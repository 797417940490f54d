"""Group commit: everything staged since the last commit becomes one batch and one fsync.

A commit begins as soon as the disk is idle and never waits for more work: batches grow by
back-pressure, not by a timer. Replies wait for their commit (P1). When the disk refuses a commit,
memory is ahead of the store and it is unknown what was written: the committer fails that commit's
waiters and refuses all later calls until the store is reopened.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from penstock.errors import CommitFailed, NotEncoded, PenstockError, StoreClosed, StoreCorrupt
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.batch import Batch
from penstock.storage.keyvalue.chain import Chain
from penstock.storage.keyvalue.long_changes import LongChanges
from penstock.storage.keyvalue.marks import Marks
from penstock.storage.keyvalue.notifications import Notifier
from penstock.storage.keyvalue.stage import Stage
from penstock.storage.keyvalue.writer import DiskWriter, InlineWriter, WouldWait, Writer
from penstock.storage.turns import SLICE_S

__all__ = ["Committer"]

#: Records in a commit above which waking its waiters in two halves, so that work overlaps with the
#: next commit, is faster: 8 clients with batches of 100 gain a third, but 64 tasks with one message
#: each would lose a quarter.
_WORTH_SPLITTING: Final = 256


class Committer:
    """Writes batches one after another and wakes their waiters."""

    def __init__(
        self,
        adapter: Adapter,
        stage: Stage,
        on_commit: Callable[[int], None],
        notifier: Notifier,
        writer: Writer | None = None,
        chain: Chain | None = None,
        changes: LongChanges | None = None,
    ) -> None:
        self._adapter = adapter
        self._stage = stage
        self._on_commit = on_commit
        self._notifier = notifier
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Durability]] = deque()
        self._scheduled = False
        self._busy = False
        self._closed = False
        self._stopped = False
        self._failure: PenstockError | None = None
        self._current: list[asyncio.Future[Durability]] = []
        self._current_sync = False
        self._current_size = 0
        #: How long the write of the current commit took; None if nothing was written.
        self._seconds: float | None = None
        #: Whether the last commit was not synced.
        self._unsynced = False
        self._writer: Writer = writer or (InlineWriter() if adapter.inline else DiskWriter())
        #: Completed commits; commit n holds what was staged under number n.
        self.completed = 0
        #: Commits completed or in progress.
        self._taken = 0
        #: While a long change is in progress, the stage must not be taken (S3).
        self._changes = changes or LongChanges(SLICE_S)
        self._changes.when_over = self._schedule
        self._chain = chain
        has_marks = chain is not None and adapter.has_marks
        self._marks = Marks(adapter, chain, self._schedule) if chain and has_marks else None
        self._interval_s = adapter.commit_interval_s
        #: When the last synced commit began.
        self._began = -self._interval_s
        if self._marks is not None:
            self._marks.committed()

    def check(self) -> None:
        """Raise if changes could not be committed."""
        self._adapter.check()
        if self._failure is not None:
            raise type(self._failure)(self._failure.detail) from self._failure
        if self._closed:
            raise StoreClosed("The store is closed.")

    def poison(self, error: BaseException) -> None:
        """Fail permanently: a verb stopped half way, so the stage must never be committed (S3)."""
        if self._failure is None:
            self._failure = StoreCorrupt(
                f"A verb failed with {type(error).__name__} ({error}) while changing state."
            )
        self._fail(self._waiting)
        self._waiting.clear()

    def commit(self, *, sync: bool = True, is_first: bool = False) -> asyncio.Future[Durability]:
        """A future for the commit of everything staged so far; its result is the durability.

        Each caller gets its own future, so cancelling one does not affect the others. Those that
        are ``is_first`` are woken before the others of their commit.
        """
        if sync:
            self._stage.ask_sync()
        future: asyncio.Future[Durability] = self._loop.create_future()
        if self._stopped:
            future.set_exception(StoreClosed("The store is closed."))
            return future
        if is_first:
            self._waiting.appendleft(future)
        else:
            self._waiting.append(future)
        if not self._busy:
            self._schedule()
        return future

    async def flush(self) -> None:
        """Wait until staged changes are in the store, synced or not."""
        if self._stage.has_work:
            await self.commit(sync=False)

    async def settled(self) -> None:
        """Wait until everything staged so far is committed; returns immediately if nothing is.

        Readers of memory call it so that they never report what a crash could revoke.
        """
        if self._stage.has_work or self._busy:
            await self.commit()

    async def close(self) -> None:
        """Commit staged changes, and stop writing."""
        # From here on verbs are refused; those that have already staged changes get their commit.
        self._closed = True
        try:
            await self._changes.over()
            while self._failure is None and (self._stage.has_work or self._busy or self._waiting):
                await self.commit()
        finally:
            self._stopped = True
            await self._writer.close()
            if self._marks is not None:
                await self._marks.close()

    # -- committing --------------------------------------------------------------------

    def _begin(self) -> None:
        self._scheduled = False
        if self._busy or not (self._waiting or self._stage.has_work):
            return
        if self._changes.under_way:
            return  # Its end schedules the commit again.
        if self._failure is not None:
            self._fail(self._waiting)
            self._waiting.clear()
            return
        if self._marks is not None and not self._has_room():
            return
        if self._interval_s and self._stage.wants_sync and not self._is_due():
            return
        self._busy = True
        steps = self._commit()
        if not self._changes.begin(steps):
            self._changes.finish_later(steps)

    def _commit(self) -> Iterator[None]:
        """Encode dirty objects, in steps that exclude verbs, and submit the batch."""
        self._current = list(self._waiting)
        self._waiting.clear()
        try:
            yield from self._stage.encode()
            batch = self._stage.take()
            is_empty = not batch
            if self._chain is not None and not is_empty:
                self._chain.extend(batch)
        except Exception as error:  # noqa: BLE001  (a bug: memory can no longer be trusted)
            self._finish(
                error
                if isinstance(error, PenstockError)
                else NotEncoded(f"A change cannot be encoded: {error!r}.")
            )
            return
        if self._stopped:
            # The call of ``close`` was cancelled, and the writer accepts nothing any more.
            self._finish(StoreClosed("The store is closed."))
            return
        self._taken += 1
        self._current_sync = batch.sync
        self._current_size = len(batch.writes)
        if is_empty and not (batch.sync and self._unsynced):
            self._finish(None)
            return
        self._unsynced = not batch.sync
        self._writer.submit(partial(self._write, batch), self._finish, batch.size)

    def _is_due(self) -> bool:
        """Whether the next synced commit may begin. If not, it is scheduled for that time."""
        now = self._loop.time()
        left = self._began + self._interval_s - now
        if left > 0 and not self._closed:
            self._scheduled = True
            self._loop.call_later(left, self._begin)
            return False
        self._began = now
        return True

    def _has_room(self) -> bool:
        """Whether the chain accepts another commit. If not, the next mark schedules the commit."""
        assert self._chain is not None
        assert self._marks is not None
        if not self._chain.is_full:
            return True
        if self._marks.failure is not None:
            self._finish(self._marks.failure)
            return False
        self._marks.write()
        return not self._chain.is_full

    def _write(self, batch: Batch, patient: bool = True) -> Exception | None:
        """Write the batch, on the writer's thread or loop. Returns the error, if any."""
        begin = time.perf_counter()
        try:
            if patient:
                self._adapter.write(batch.writes, batch.removed, batch.sync)
            elif not self._adapter.try_write(batch.writes, batch.removed, batch.sync):
                return WouldWait()
        except Exception as error:  # noqa: BLE001  (any error fails the commit)
            return error
        self._seconds = time.perf_counter() - begin
        return None

    def _finish(self, error: Exception | None) -> None:
        self._busy = False
        current, self._current = self._current, []
        if error is not None:
            self._failure = (
                error
                if isinstance(error, PenstockError)
                else CommitFailed(f"The store could not commit: {error}")
            )
            self._fail(current)
            self._fail(self._waiting)
            self._waiting.clear()
            return
        self.completed = self._taken
        if self._chain is not None and self._current_sync:
            self._chain.synced_now()
        adapter = self._adapter
        durability = adapter.durability if self._current_sync else adapter.unsynced
        try:
            self._on_commit(self.completed)
            self._stage.committed()
        except Exception as failure:  # noqa: BLE001  (a bug: memory can no longer be trusted)
            # The commit itself is in the store, so its waiters succeed.
            self._wake(current, durability)
            self.poison(failure)
            return
        if self._seconds is not None:
            self._notifier.committed(self._current_size, self._seconds)
            self._seconds = None
        if self._waiting or self._stage.has_work:
            # More was staged while the disk was busy: begin the next commit immediately.
            self._schedule()
            self._wake(current, durability)
        elif self._current_size < _WORTH_SPLITTING:
            self._wake(current, durability)
        else:
            # Callers that wait for the same commit would all work, then all wait. If the next
            # commit begins after half of them, one half works while the other half's commit is
            # being written.
            first = (len(current) + 1) // 2
            self._wake(current[:first], durability)
            self._schedule()
            self._wake(current[first:], durability)
        if self._marks is not None:
            self._marks.committed()

    def _schedule(self) -> None:
        """Begin the next commit after the callbacks that are ready now.

        These include waiting claims that a publish has just woken, so one commit holds both.
        """
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    @staticmethod
    def _wake(futures: Iterable[asyncio.Future[Durability]], durability: Durability) -> None:
        for future in futures:
            if not future.done():
                future.set_result(durability)

    def _fail(self, futures: Iterable[asyncio.Future[Durability]]) -> None:
        assert self._failure is not None
        for future in futures:
            if not future.done():
                future.set_exception(type(self._failure)(self._failure.detail))
