"""A process that has imported everything, and forks a server whenever it is told to.

Run as a program it reads commands from its standard input, one a line, and answers each with a
line of JSON: ``start ARGUMENTS…`` forks a child that runs ``penstock serve ARGUMENTS…`` as the
command line would, ``kill PID`` is kill -9, ``stop PID`` is SIGTERM. A server then begins in some
milliseconds instead of a second of importing, which makes room for more kills. What the child
prints, its announcement, comes between the answers. At the end of the input all children are
killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Self

#: A server that says nothing for so long is stuck.
SILENCE_S = 60


class Nursery:
    """The other side: servers on demand, started and ended one at a time."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._newest = 0

    @classmethod
    async def open(cls, folder: Path) -> Self:
        """Its servers log to ``server.log`` below the folder."""
        with (folder / "server.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                __file__,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
            )
        return cls(process, folder / "server.log")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def start(self, *args: str) -> int:
        """Fork a server; returns its pid. It is not up yet."""
        self._newest = (await self._ask(f"start {' '.join(args)}", "pid"))["pid"]
        return self._newest

    async def ready(self) -> str:
        """The server's URL, once it answers."""
        return (await self._answer("url"))["url"]

    async def kill(self, pid: int = 0) -> None:
        """kill -9, whatever it was doing; the newest, if no pid is given."""
        ended = await self._ask(f"kill {pid or self._newest}", "code")
        assert ended["code"] == -signal.SIGKILL, f"it had ended by itself: {ended}"

    async def stop(self, pid: int = 0) -> int:
        """SIGTERM; returns the exit code."""
        return (await self._ask(f"stop {pid or self._newest}", "code"))["code"]

    async def _ask(self, command: str, key: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        return await self._answer(key)

    async def _answer(self, key: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(SILENCE_S):
                while True:
                    line = await self._process.stdout.readline()
                    assert line, "the nursery has ended"
                    answer = json.loads(line)
                    if key in answer:
                        return answer
        except TimeoutError:
            raise AssertionError(f"no {key}: {self._log.read_text()[-4000:]}") from None


def _serve(args: list[str]) -> None:
    """In the child: what ``penstock serve`` does, and nothing after it."""
    from penstock.cli import main

    try:
        sys.argv = ["penstock", "serve", "--json", *args]
        main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)
    except BaseException:  # noqa: BLE001  (a child must not go on as a nursery)
        traceback.print_exc()
    os._exit(1)


def _tell(**answer: int) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _run() -> None:
    # What a server imports, before there is a thread or a store that a fork would break.
    import penstock.cli.serve
    import penstock.server.serve
    import penstock.storage.keyvalue.adapters.rocksdb
    import penstock.storage.sql.mysql.adapter
    import penstock.storage.sql.opening
    import penstock.storage.sql.postgresql.adapter  # noqa: F401

    children: set[int] = set()
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGTERM}
    while True:
        command, *args = (sys.stdin.readline().strip() or " ").split(" ")
        if command == "start":
            child = os.fork()
            if not child:
                _serve(args)
            children.add(child)
            _tell(pid=child)
        for child in [int(args[0])] if command in signals else []:
            children.discard(child)
            _tell(code=_end(child, signals[command]))
        if not command:
            for child in children:
                _end(child, signal.SIGKILL)
            return


def _end(child: int, number: signal.Signals) -> int:
    os.kill(child, number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    _run()
