"""Writers: run batch writes on the event loop, or on a thread if they take long.

The committer submits one batch at a time and is called back on the event loop when it is written.
The caller that opens the engine may inject another writer; the simulation's runs on its loop, at
times that the seed decides.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol, TypeAlias

__all__ = ["DiskWriter", "InlineWriter", "WouldWait", "Write", "Writer", "Written"]


class WouldWait(Exception):
    """Nothing was written, because the store would have to wait for its own housekeeping."""


class Write(Protocol):
    """Writes one batch; returns the error, if any: ``WouldWait`` only if it is not patient."""

    def __call__(self, patient: bool = True) -> Exception | None: ...


#: Called on the event loop with what ``Write`` returned.
Written: TypeAlias = Callable[[Exception | None], None]


#: A commit up to this size is written on the event loop if the disk is fast. The binding holds the
#: GIL for the whole of a write, so a thread would not let the loop run meanwhile either.
_MAX_INLINE_BYTES: Final = 256 * 1024
#: A disk is fast if the last write, with its sync, took less. Handing a write to a thread and back
#: takes 0.15 ms; while a slow disk syncs, the loop should run.
_FAST_S: Final = 0.001


class Writer(Protocol):
    """Runs one write after another."""

    def submit(self, write: Write, written: Written, size: int) -> None:
        """Run ``write``, of ``size`` bytes, then call ``written`` on the event loop."""
        ...

    async def close(self) -> None:
        """Finish the current write and accept no other."""
        ...


class InlineWriter:
    """Writes immediately, on the event loop: for a store in memory."""

    def submit(self, write: Write, written: Written, size: int) -> None:  # noqa: ARG002
        written(write())

    async def close(self) -> None:
        return


class DiskWriter:
    """Writes small batches on the event loop while the disk is fast, the others on a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[tuple[Write, Written] | None] = SimpleQueue()
        self._taken_up = threading.Lock()
        self._taken_up.acquire()
        #: How long the last write took.
        self._seconds = _FAST_S
        self._thread = threading.Thread(target=self._run, name="penstock-commit", daemon=True)
        self._thread.start()

    def submit(self, write: Write, written: Written, size: int) -> None:
        if size <= _MAX_INLINE_BYTES and self._seconds < _FAST_S:
            error = self._timed(write, patient=False)
            if not isinstance(error, WouldWait):
                written(error)
                return
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
            error = self._timed(write, patient=True)
            try:
                self._loop.call_soon_threadsafe(written, error)
            except RuntimeError:
                return  # The loop is closed: there are no waiters.

    def _timed(self, write: Write, *, patient: bool) -> Exception | None:
        begin = time.perf_counter()
        try:
            return write(patient)
        except BaseException as panic:  # noqa: BLE001
            # A panic of RocksDB's binding is not an Exception. It must end neither the thread nor
            # the loop: the callers of this commit, and of all later ones, would wait forever.
            if isinstance(panic, KeyboardInterrupt):
                self._loop.call_soon(_interrupt)  # After the callers have the error.
            return RuntimeError(f"the write ended with {panic!r}")
        finally:
            self._seconds = time.perf_counter() - begin


def _interrupt() -> None:
    raise KeyboardInterrupt
