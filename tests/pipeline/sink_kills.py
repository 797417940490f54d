"""Kills a sink of examples/sinks inside its write, for ``test_sinks``: ``SINK KILLS``.

Each micro-batch is written in a forked process that sends itself SIGKILL at one of its function
calls, Python's and C's, at even distances from the first to the last. Another process then writes
the same micro-batch again, as a restarted query does. Prints how many processes were killed, and
how many calls a write has.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from runpy import run_path
from types import FrameType
from typing import Any

import pyarrow as pa

QUERY = "6ff6b3f4"
ROWS = 10


class Frame:
    """What a sink needs of a micro-batch."""

    def __init__(self, number: int) -> None:
        self._ids = list(range(number * ROWS, (number + 1) * ROWS))

    def toArrow(self) -> pa.Table:  # noqa: N802  (as Spark calls it)
        columns = {"id": self._ids, "customer": ["c"] * ROWS, "amount": [1.5] * ROWS}
        return pa.table(columns)


#: The calls and the modules of the last write that ended, for the process that forked it.
_TOLD = mmap.mmap(-1, 2**20)


def in_a_process(write: Any, number: int, kill_at: int | None = None) -> int:
    """Write a micro-batch, and die at that call (0: count the calls); returns the exit status."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    if kill_at is not None:
        sys.setprofile(count)
    write(Frame(number), QUERY, number)
    sys.setprofile(None)
    told = json.dumps({"calls": calls, "modules": list(sys.modules)}).encode()
    _TOLD[: len(told) + 1] = told + b"\0"
    os._exit(0)


def main(sink: str, kills: int) -> None:
    write = run_path(sink)["write"]
    calls = 0
    # The first creates tables; the second has as many calls as the others.
    for number in range(2):
        assert in_a_process(write, number, 0) == 0
        told = json.loads(_TOLD[:].partition(b"\0")[0])
        calls = told["calls"]
        # Loaded here, so that the kills are in the write and not in its imports.
        for module in told["modules"]:
            with suppress(Exception):
                import_module(module)
    killed = 0
    for kill in range(kills):
        number = 2 + kill
        at = 1 + kill * (calls - 1) // max(kills - 1, 1)
        killed += os.WIFSIGNALED(in_a_process(write, number, at))
        # Also what a restarted query does with a micro-batch that was committed.
        assert in_a_process(write, number) == 0
    sys.stdout.write(json.dumps({"killed": killed, "calls": calls, "batches": 2 + kills}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
