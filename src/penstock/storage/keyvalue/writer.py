"""Writers: run batch writes on a thread, or on the event loop for a store in memory.

The committer submits one batch at a time and is called back on the event loop when it is written.
The caller that opens the engine may inject another writer; the simulation's runs on its loop, at
times that the seed decides.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeAlias

__all__ = ["InlineWriter", "ThreadWriter", "Write", "Writer", "Written"]

#: Writes one batch; returns the error, if any.
Write: TypeAlias = Callable[[], Exception | None]
#: Called on the event loop with what ``Write`` returned.
Written: TypeAlias = Callable[[Exception | None], None]


class Writer(Protocol):
    """Runs one write after another."""

    def submit(self, write: Write, written: Written) -> None:
        """Run ``write``, then call ``written`` on the event loop with its result."""
        ...

    async def close(self) -> None:
        """Finish the current write and accept no other."""
        ...


class InlineWriter:
    """Writes immediately, on the event loop."""

    def submit(self, write: Write, written: Written) -> None:
        written(write())

    async def close(self) -> None:
        return


class ThreadWriter:
    """Writes on its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[tuple[Write, Written] | None] = SimpleQueue()
        self._taken_up = threading.Lock()
        self._taken_up.acquire()
        self._thread = threading.Thread(target=self._run, name="penstock-commit", daemon=True)
        self._thread.start()

    def submit(self, write: Write, written: Written) -> None:
        self._work.put((write, written))
        # Yield the GIL until the thread is inside the write. Otherwise the thread would wait for
        # the loop to pause, up to Python's switch interval of 5 ms, with the disk idle and the loop
        # busy.
        self._taken_up.acquire()

    async def close(self) -> None:
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            write, written = work
            self._taken_up.release()
            try:
                error = write()
            except BaseException as panic:  # noqa: BLE001
                # A panic of RocksDB's binding is not an Exception. It must not end the thread: the
                # callers of this commit, and of all later ones, would wait forever.
                error = RuntimeError(f"the write ended with {panic!r}")
            try:
                self._loop.call_soon_threadsafe(written, error)
            except RuntimeError:
                return  # The loop is closed: there are no waiters.
