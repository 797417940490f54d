"""Child processes of the test process: a test that leaves one running fails, not a later test.

Servers that a whole test process shares are allowed to stay: the databases behind ``guard.py``,
Spark's Java process, and Python's own resource tracker.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

__all__ = ["end_leftovers", "running_children"]

_SHARED = ("guard.py", "java", "multiprocessing.resource_tracker")


def running_children() -> AbstractSet[int]:
    """The process ids of the direct children that have not been waited for."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # The thread has ended.
            found.update(int(pid) for pid in listing.read_text().split())
    return found


def end_leftovers(before: AbstractSet[int]) -> list[str]:
    """Kill the children that were started since ``before``; returns their command lines."""
    left = []
    for pid in running_children() - before:
        command = _command_line(pid)
        if not any(name in command for name in _SHARED):
            left.append(command or f"process {pid}, which has ended and was not waited for")
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return left


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""
