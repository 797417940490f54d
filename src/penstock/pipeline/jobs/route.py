"""``route``: fills queues that are behind from the log, by their filters (R1).

The broker's own router may advance the same cursors at the same time: assigning a message twice
has no effect. The last part, up to the messages being published at the moment, is always routed
by the broker. It leaves queues that are far behind to this job, so the job ends only when none of
its queues is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from penstock.client import Client
from penstock.errors import Conflict, OtherStore, UnknownQueue
from penstock.filters import parse
from penstock.model.identity import StoreIdentity
from penstock.model.queue import QueueInfo
from penstock.model.server_settings import NEAR
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.router import routed
from penstock.pipeline.tables import read_table

__all__ = ["Routing", "route"]

#: Log entries per step.
STEP_ENTRIES: Final = 250_000
#: Passes of a run under traffic. Each has the entries that were published during the one before;
#: if they are not becoming fewer, Spark is slower than the producers.
_PASSES: Final = 20
#: Offsets assigned per commit of the broker.
_ASSIGNED_AT_ONCE: Final = 10_000
#: Queues assigned to concurrently.
_QUEUES_AT_ONCE: Final = 8


def route(context: JobContext, *, queues: Sequence[str] = (), step: int = STEP_ENTRIES) -> Summary:
    """Route until the broker can do the rest; if continuous, until asked to end."""
    routing = Routing(context, queues, step)
    while True:
        routing.hand_over()
        if not context.options.continuous or context.wait():
            break
    return routing.summary()


class Routing:
    """One run of the router. Raises ``UnknownQueue`` before Spark starts."""

    def __init__(
        self, context: JobContext, queues: Sequence[str] = (), step: int = STEP_ENTRIES
    ) -> None:
        self._context = context
        self._names = frozenset(queues)
        self._step = step
        self._routed: set[str] = set()
        self._scanned = 0
        self._assigned = 0
        self._conflicts = 0
        self._store: StoreIdentity = context.remote.ask(lambda q: q.identity())
        known = {info.name for info in context.remote.ask(lambda q: q.queues())}
        for name in sorted(self._names - known):
            raise UnknownQueue(f"There is no queue {name!r}.", field="queue")

    def summary(self) -> Summary:
        """Totals so far."""
        return {
            "queues": len(self._routed),
            "scanned": self._scanned,
            "assigned": self._assigned,
            "conflicts": self._conflicts,
        }

    def hand_over(self) -> None:
        """Catch up until the broker takes over: entries published meanwhile may be too many."""
        far: list[QueueInfo] = []
        for _ in range(_PASSES):
            self.catch_up()
            end = int(self._context.remote.ask(lambda q: q.log_end()))
            # Half of what the broker takes, because producers go on until it does.
            far = [info for info, cursor in self._behind(end) if end - cursor > NEAR // 2]
            if not far or self._context.stopping.is_set():
                return
        names = ", ".join(info.name for info in far)
        self._context.note(
            f"Still far behind: {names}. Producers publish as fast as this run routes; run it "
            "again with --continuous or on more cores."
        )

    def catch_up(self) -> None:
        """Route everything that is in the log when this is called."""
        ask = self._context.remote.ask
        # Ask before reading the log, so that offsets are never those of another store (A1).
        self._store = ask(lambda q: q.identity())
        end = int(ask(lambda q: q.log_end()))
        begin: int | None = None
        while not self._context.stopping.is_set():
            behind = self._behind(end)
            if not behind:
                break
            start = min(cursor for _, cursor in behind)
            begin = start if begin is None else begin
            bounds = ask(lambda q, start=start: q.log_splits(start, end, self._step))  # type: ignore[misc]
            first, last = next(pairwise(map(int, bounds)), (start, end))
            self._route_range(first, last, [info for info, cursor in behind if cursor < last])
            self._context.reach("routed", last - begin, end - begin)

    def _behind(self, end: int) -> list[tuple[QueueInfo, int]]:
        """The queues with entries below ``end`` still to route, and their cursors."""
        return [
            (info, int(info.cursor))
            for info in self._context.remote.ask(lambda q: q.queues())
            if info.cursor is not None
            and info.cursor < end
            and (not self._names or info.name in self._names)
        ]

    def _route_range(self, start: int, end: int, queues: Sequence[QueueInfo]) -> None:
        context = self._context
        log = read_table(
            context.spark,
            context.server,
            "log",
            startingOffsets=start,
            endingOffsets=end,
            payload=False,
            failOnDataLoss=False,
        )
        filters = {info.name: parse(info.policy.filter) for info in queues}
        left = {info.name: info for info in queues}
        turn: list[tuple[QueueInfo, Sequence[int]]] = []
        for row in routed(log, filters).toLocalIterator(prefetchPartitions=True):
            turn.append((left.pop(row["queue"]), row["offsets"]))
            if len(turn) == _QUEUES_AT_ONCE:
                self._assign(start, end, turn)
                turn = []
        # Advance the cursor of queues that take nothing from the range too.
        self._assign(start, end, [*turn, *((info, ()) for info in left.values())])

    def _assign(self, start: int, end: int, turn: list[tuple[QueueInfo, Sequence[int]]]) -> None:
        async def assign(q: Client) -> list[tuple[str, int, int] | None]:
            limit = asyncio.Semaphore(_QUEUES_AT_ONCE)

            async def one(info: QueueInfo, offsets: Sequence[int]) -> tuple[str, int, int] | None:
                async with limit:
                    return await _assign(q, self._store, info, start, end, offsets)

            return await asyncio.gather(*(one(*item) for item in turn))

        for reply in self._context.remote.ask(assign):
            if reply is None:
                # Its filter was changed, or it was deleted: the next listing will show.
                self._conflicts += 1
            else:
                name, scanned, assigned = reply
                self._routed.add(name)
                self._scanned += scanned
                self._assigned += assigned


async def _assign(
    q: Client, store: StoreIdentity, info: QueueInfo, start: int, end: int, offsets: Sequence[int]
) -> tuple[str, int, int] | None:
    """Assign in order, in commits of bounded size; None if the queue has changed."""
    scanned = assigned = 0
    cuts = range(0, max(len(offsets), 1), _ASSIGNED_AT_ONCE)
    for cut in cuts:
        part = offsets[cut : cut + _ASSIGNED_AT_ONCE]
        last = end if cut == cuts[-1] else part[-1] + 1
        try:
            reply = await q.assign(
                info.name,
                filter=info.policy.filter,
                start=start,
                end=last,
                offsets=part,
                store=store,
            )
        except OtherStore:
            raise
        except (Conflict, UnknownQueue):
            return None
        scanned += reply.scanned
        assigned += reply.assigned
        start = last
    return info.name, scanned, assigned
