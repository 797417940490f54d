"""Several processes for one app, and restarts when its source changes.

The parent runs no handlers. It starts ``penstock work`` once per process, passes signals on,
and ends when they have ended. If one of them ends by itself, the others are stopped gracefully
and the parent ends with its exit code, so that the program that supervises the parent restarts
all of them. A child whose parent is gone reads the end of its standard input, and stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

__all__ = ["source_changes", "source_stamps", "stop_with_parent", "supervise"]

_log = logging.getLogger("penstock.worker")

#: How often the source is compared: soon enough for a person who has just saved a file.
_LOOK_S: Final = 0.5
#: Directories that are not searched for source.
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


async def supervise(
    command: Callable[[int], Sequence[str]],
    count: int,
    changes: AsyncIterator[object] | None = None,
) -> int:
    """Run ``count`` processes until a signal or until one of them ends; returns the exit code.

    ``changes`` yields whenever they have to be restarted. With it, a process that ends by
    itself, for example on a syntax error, waits for the next change.
    """
    return await _Supervisor(command, count, changes).run()


def source_changes(root: Path) -> AsyncIterator[None]:
    """Yield when a Python file below ``root`` is changed, added or removed from now on."""
    return _changes(root, source_stamps(root))


async def _changes(root: Path, before: dict[str, int]) -> AsyncIterator[None]:
    while True:
        await asyncio.sleep(_LOOK_S)
        after = await asyncio.to_thread(source_stamps, root)
        if after != before:
            before = after
            yield None


def stop_with_parent() -> None:
    """Send SIGTERM to this process when its standard input, held by the parent, is closed."""

    def watch() -> None:
        # Not sys.stdin, whose lock the interpreter needs when it ends. The parent writes nothing.
        os.read(sys.stdin.fileno(), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class _Supervisor:
    """The processes, and whether they are to end."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        count: int,
        changes: AsyncIterator[object] | None,
    ) -> None:
        self._command = command
        self._count = count
        self._changes = changes
        self._processes: list[asyncio.subprocess.Process] = []
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._stop)
        try:
            while True:
                code = await self._run_once()
                if code is not None:
                    return code
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        """Pass a signal on. Workers end immediately at the second one."""
        self._stopping.set()
        for process in self._processes:
            _terminate(process)

    async def _run_once(self) -> int | None:
        """Run the processes until all have ended; the exit code, or None to start again."""
        for number in range(self._count):
            process = await asyncio.create_subprocess_exec(
                *self._command(number),
                stdin=asyncio.subprocess.PIPE,
                # Ctrl-C reaches the parent only, so that a worker does not get it twice.
                start_new_session=True,
            )
            self._processes.append(process)
        if self._stopping.is_set():
            self._stop()
        ended = [asyncio.create_task(process.wait()) for process in self._processes]
        changed = asyncio.create_task(self._wait_for_change())
        try:
            await asyncio.wait({*ended, changed}, return_when=asyncio.FIRST_COMPLETED)
            first = next((task.result() for task in ended if task.done()), None)
            if first is not None and self._changes is not None and not self._stopping.is_set():
                _log.warning("A worker process ended with %d; waiting for a change", first)
                await self._until_changed_or_stopped(changed)
            for process in self._processes:
                if not self._stopping.is_set():
                    _terminate(process)
            codes = await asyncio.gather(*ended)
        finally:
            changed.cancel()
            self._processes = []
        if changed.done() and not changed.cancelled() and not self._stopping.is_set():
            _log.info("The source has changed: restarting")
            return None
        if first is not None and not self._stopping.is_set():
            _log.error("A worker process ended with %d; the others were stopped", first)
            return _exit_code(first)
        # A process that had not installed its handler yet was ended by the signal.
        return max(0 if code == -signal.SIGTERM else _exit_code(code) for code in codes)

    async def _wait_for_change(self) -> None:
        if self._changes is None:
            await asyncio.Event().wait()
        else:
            await anext(self._changes)

    async def _until_changed_or_stopped(self, changed: asyncio.Task[None]) -> None:
        stopped = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({changed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()


def _terminate(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()


def _exit_code(code: int) -> int:
    """The exit code as a shell shows it: 128 plus the number of the signal."""
    return code if code >= 0 else 128 - code


def source_stamps(root: Path) -> dict[str, int]:
    """The times of the last change of the Python files below ``root``."""
    stamps: dict[str, int] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED and name[0] != "."]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    stamps[path] = os.stat(path).st_mtime_ns
                except FileNotFoundError:
                    continue
    return stamps
