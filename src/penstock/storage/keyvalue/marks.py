"""Marks: the newest synced commit, recorded outside the ordered store at intervals (X1).

A mark is due one second after an unmarked commit, after ``COMMITS_PER_MARK`` unmarked commits, and
at close. It is written neither on the event loop nor on the commit thread, so no reply waits for
it. Commits wait only if the disk is slower with one mark than with 3,000 commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.storage.keyvalue.adapters import Adapter, Mark
from penstock.storage.keyvalue.chain import Chain

__all__ = ["COMMITS_PER_MARK", "MARK_AFTER_S", "Marks"]

#: Together these limit what a torn tail can lose: one second, or this many commits if that is less.
#: Two fsyncs per second are below the noise of publish benchmarks.
MARK_AFTER_S: Final = 1.0
COMMITS_PER_MARK: Final = 1024
_log = logging.getLogger("penstock.storage")


class Marks:
    """Writes marks, one at a time. Used on the event loop only."""

    def __init__(self, adapter: Adapter, chain: Chain, written: Callable[[], None]) -> None:
        self._adapter = adapter
        self._chain = chain
        self._written = written
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        #: The error of the last mark, if it could not be written.
        self.failure: Exception | None = None

    def committed(self) -> None:
        """After a commit: mark it now or soon."""
        chain = self._chain
        if chain.number == chain.marked:
            return
        if chain.marked == 0 or chain.number - chain.marked >= COMMITS_PER_MARK:
            self.write()
        elif self._timer is None:
            self._timer = self._loop.call_later(MARK_AFTER_S, self._ring)

    def write(self) -> None:
        """Begin to write a mark, unless one is being written or nothing new is synced."""
        mark = self._chain.mark()
        if mark is None or self._writing is not None:
            return
        if self._adapter.inline:
            self._finish(mark, _try(self._adapter, mark))
            return
        work = self._loop.run_in_executor(None, _try, self._adapter, mark)
        self._writing = asyncio.ensure_future(self._wait(mark, work))

    async def close(self) -> None:
        """Mark the last commit, then write no more marks."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing
        self.write()
        if self._writing is not None:
            await self._writing

    def _ring(self) -> None:
        self._timer = None
        self.write()

    async def _wait(self, mark: Mark, work: asyncio.Future[Exception | None]) -> None:
        error = await work
        self._writing = None
        self._finish(mark, error)

    def _finish(self, mark: Mark, error: Exception | None) -> None:
        self.failure = error
        if error is None:
            self._chain.marked_now(mark)
        else:
            _log.warning("The mark of commit %d could not be written: %s", mark.number, error)
        self._written()


def _try(adapter: Adapter, mark: Mark) -> Exception | None:
    """Write the mark, on the loop or on a thread. Returns the error, if any."""
    try:
        adapter.mark(mark)
    except Exception as error:  # noqa: BLE001  (a later mark makes up for it)
        return error
    return None
