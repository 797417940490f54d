"""Sweep: applies the passage of time to every queue, and then retention (G1, A1).

The cost of a sweep depends on what it moves. It runs in slices: after each, its changes are
committed and other verbs get their turn. They may delete a queue and even create another of the
same name, so every slice checks that its queue still exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from penstock.model.delivery import SweepReply
from penstock.storage.copy_limit import appends
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.dead_letter_copies import CopyingVerbs
from penstock.storage.keyvalue.guarded import changing
from penstock.storage.keyvalue.log_retention import LogRetention
from penstock.storage.keyvalue.passing_time import (
    expire_some,
    lapse_some,
    make_some_due,
)
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.retention import removals

__all__ = ["SLICE_MOVES", "SweepVerbs"]

#: Deliveries moved per turn of the event loop: about 40 µs each, including their part of the
#: commit, so under five milliseconds.
SLICE_MOVES: Final = 64
#: The cost of checking one queue, in moved deliveries.
_QUEUE: Final = 0.5


class _Sweep:
    """What one sweep has done, and what is left of the current slice."""

    __slots__ = (
        "due",
        "entries",
        "expired",
        "forgotten",
        "lapsed",
        "left",
        "more",
        "now",
        "removed",
    )

    def __init__(self, now: int) -> None:
        self.now = now
        self.left = 0.0
        self.due = self.lapsed = self.expired = self.removed = 0
        self.entries = self.forgotten = 0
        self.more = False


class SweepVerbs(CopyingVerbs):
    """The ``sweep`` verb of the contract."""

    _core: Core
    _log_retention: LogRetention
    #: Concurrent sweeps would only interfere with each other.
    _sweeping: asyncio.Lock

    @changing
    async def sweep(self, limit: int = 10_000) -> SweepReply:
        self._begin()
        async with self._sweeping:
            await self._changes.over()
            work = _Sweep(self._begin())
            work.left = self._slice
            async with self._copies_appended():
                for queue in _in_order(self._core.queues()):
                    for state in (queue, queue.dead):
                        if state is not None:
                            await self._sweep_queue(work, state, limit)
            ids = self._core.dedup.forget_old(work.now, self._core.window_of)
            work.forgotten = await self._in_slices(work, ids, limit)
            work.more |= work.forgotten >= limit
            pieces = self._log_retention.run(work.now)
            work.entries = await self._in_slices(work, pieces, None)
        await self._committer.commit()
        return SweepReply(
            due=work.due,
            lapsed=work.lapsed,
            expired=work.expired,
            removed=work.removed,
            entries_removed=work.entries,
            ids_forgotten=work.forgotten,
            more=work.more,
        )

    async def _sweep_queue(self, work: _Sweep, queue: Queue, limit: int) -> None:
        work.left -= _QUEUE
        now = work.now
        work.lapsed += await self._move(
            work, queue, limit, lambda most: _same(lapse_some(queue, now, most))
        )
        work.expired += await self._move(
            work, queue, limit, lambda most: expire_some(queue, now, most)
        )
        if self._core.stage.ended:
            await self._append_copies()
        if queue.partitions is not None:
            queue.partitions.drop_dead(now)
            while await self._has_departed(queue, now):
                await self._next_sweep_slice(work)
        work.due += await self._move(
            work, queue, limit, lambda most: _same(make_some_due(queue, now, most))
        )
        removed = 0
        for removal in () if queue.deleted else removals(queue, now):
            while removed < limit and not queue.deleted:
                cost, count, more = removal.run(min(self._most(work), limit - removed))
                removed += count
                work.left -= cost
                if not more:
                    break
                await self._pause(work)
        work.removed += removed
        work.more |= removed >= limit
        await self._pause(work)

    async def _move(
        self,
        work: _Sweep,
        queue: Queue,
        limit: int,
        move: Callable[[int], tuple[int, int]],
    ) -> int:
        """Move up to ``limit`` deliveries of one kind. Returns how many.

        ``move`` gets the most that it may examine. It returns how many it examined and moved.
        """
        moved = looked = 0
        while looked < limit and not queue.deleted:
            most = min(self._most(work), limit - looked)
            seen, done = move(most)
            looked += seen
            moved += done
            work.left -= seen
            if queue.must_wait:
                work.left = 0
            elif seen < most:
                return moved
            await self._pause(work)
        work.more |= looked >= limit
        return moved

    async def _in_slices(
        self, work: _Sweep, pieces: Iterator[tuple[float, int]], limit: int | None
    ) -> int:
        """Run pieces of work, each with its cost and count. Returns the sum of the counts."""
        total = 0
        for cost, count in pieces:
            total += count
            work.left -= cost
            if limit is not None and total >= limit:
                break
            await self._pause(work)
        return total

    @property
    def _slice(self) -> int:
        return min(SLICE_MOVES, self._core.slice_size)

    @staticmethod
    def _most(work: _Sweep) -> int:
        return max(1, round(work.left))

    async def _pause(self, work: _Sweep) -> None:
        """Continue in the next slice if this one is used up."""
        if work.left <= 0:
            await self._next_sweep_slice(work)

    async def _next_sweep_slice(self, work: _Sweep) -> None:
        work.left = self._slice
        if self._core.stage.ended:
            await self._append_copies()
        await self._next_committed_slice()

    async def _has_departed(self, queue: Queue, now: int) -> bool:
        """Free some partitions of former consumers. Returns whether there are more."""
        partitions = None if queue.deleted else queue.partitions
        return partitions is not None and await self._free_departed(queue, partitions, now)


def _in_order(queues: list[Queue]) -> list[Queue]:
    """The queues, with those that append copies or events by tenant and name, at the end."""
    plain = [queue for queue in queues if not appends(queue.policy)]
    appending = [queue for queue in queues if appends(queue.policy)]
    return [*plain, *sorted(appending, key=lambda queue: (queue.tenant, queue.name))]


def _same(count: int) -> tuple[int, int]:
    """Every examined delivery was moved."""
    return count, count
