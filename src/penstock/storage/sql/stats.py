"""Stats: counters of a queue (Q2), and when time next changes something in it (C5).

Counts are sums of the tally rows. The rest reads the first run of every phase and rank and the
runs in flight, so the cost does not depend on the depth. The end of the log and the cursor are
read before the runs, so that the watermark never passes an unsettled delivery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.model.delivery import QueueStats
from penstock.model.message import Offset
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Session
from penstock.storage.sql.partitions import partition_stats
from penstock.storage.sql.phases import DEAD, LIVE, Phase
from penstock.storage.sql.reading import end_of_log
from penstock.storage.sql.runs import Run, segment_of
from penstock.storage.sql.tally import Kind
from penstock.storage.sql.throughput import next_token_at

__all__ = ["next_due", "stats"]

_WAITING: Final = (Phase.FRESH, Phase.RETURNED, Phase.DELAYED)
_DEAD_WAITING: Final = (Phase.DEAD_RETURNED, Phase.DEAD_DELAYED)
_TIMED: Final = (Phase.DELAYED, Phase.IN_FLIGHT)
_DEAD_TIMED: Final = (Phase.DEAD_DELAYED, Phase.DEAD_IN_FLIGHT)
_AVAILABLE: Final = (Phase.FRESH, Phase.RETURNED, Phase.DEAD_RETURNED)
_IN_FLIGHT: Final = (Phase.IN_FLIGHT, Phase.DEAD_IN_FLIGHT)
_DEAD_LIVE: Final = (Phase.DEAD_RETURNED, Phase.DEAD_DELAYED, Phase.DEAD_IN_FLIGHT)


async def stats(core: Core, tenant: str, queue: str) -> QueueStats:
    """The statistics of the queue or of its dead letters."""
    settled = (await core.stable()).settled
    now = core.clock.now()

    async def look(session: Session, known: Tenant) -> QueueStats:
        found, dead = known.find(queue)
        end = await end_of_log(session, known.number, settled)
        cursor = None if dead else await _cursor(session, found)
        runs = await _front(session, found, dead=dead)
        counts = await _counts(session, found)
        phases = DEAD if dead else 0
        live = sum(counts[phase] for phase in (_DEAD_LIVE if dead else LIVE))
        published_at = await _oldest(core, session, known, runs)
        in_flight = Counter[str]()
        for run in runs:
            if run.phase in _IN_FLIGHT and run.life.consumer is not None:
                in_flight[run.life.consumer] += run.size
        ordered = found.ordered and not dead
        return QueueStats(
            delayed=counts[Phase.DELAYED + phases],
            available=counts[Phase.RETURNED + phases],
            in_flight=counts[Phase.IN_FLIGHT + phases],
            done=counts[Phase.DONE + phases],
            failed=0 if dead else sum(counts[phase] for phase in _DEAD_LIVE),
            expired=0 if dead else counts[Phase.EXPIRED],
            oldest_available_ms=None if published_at is None else now - published_at,
            in_flight_by_consumer=dict(sorted(in_flight.items())),
            grants=counts[Kind.of(Kind.GRANTS, dead=dead)],
            acks=counts[Kind.of(Kind.ACKS, dead=dead)],
            nacks=counts[Kind.of(Kind.NACKS, dead=dead)],
            failures=counts[Kind.of(Kind.FAILURES, dead=dead)],
            watermark=_watermark(runs, end, cursor),
            lag=live + await _unrouted(session, known, cursor),
            partitions=await partition_stats(core, session, known, found) if ordered else (),
        )

    return await core.read(tenant, look)


async def _cursor(session: Session, queue: Queue) -> Offset | None:
    """The current cursor; routing does not change the catalog's version."""
    rows = await session.fetch("read_cursor", queue=queue.number)
    return Offset(rows[0][0]) if rows and rows[0][0] is not None else None


async def _front(session: Session, queue: Queue, *, dead: bool) -> list[Run]:
    """The first waiting runs by phase and rank, and all runs in flight."""
    rows = await session.fetch(
        "front_runs",
        queue=queue.number,
        phases=[int(phase) for phase in (_DEAD_WAITING if dead else _WAITING)],
        in_flight=int(Phase.DEAD_IN_FLIGHT if dead else Phase.IN_FLIGHT),
    )
    return [Run.read(row) for row in rows]


async def _counts(session: Session, queue: Queue) -> Counter[int]:
    """The tallies by kind; fresh deliveries count as returned."""
    rows = await session.fetch("tallies", queue=queue.number)
    return Counter({int(kind): int(number) for kind, number in rows})


async def _oldest(core: Core, session: Session, known: Tenant, runs: Iterable[Run]) -> int | None:
    """When the oldest available message was published; it is the first of its rank."""
    offsets = [run.life.entry or run.first for run in runs if run.phase in _AVAILABLE]
    found = await core.segments.messages(session, known.number, offsets)
    return min((message.published_at for message in found.values()), default=None)


def _watermark(runs: Sequence[Run], end: Offset, cursor: Offset | None) -> Offset:
    """One below the first unsettled message, the first unrouted entry and the end of the log.

    Messages above the end do not count: an open publish may still append below them. The cursor
    is above the end if other tenants have published since.
    """
    ends = [int(end), *(int(run.first) for run in runs)]
    if cursor is not None:
        ends.append(cursor)
    return Offset(min(ends) - 1)


async def _unrouted(session: Session, known: Tenant, cursor: Offset | None) -> int:
    """The number of log entries after the cursor."""
    if cursor is None:
        return 0
    segment, index = segment_of(cursor)
    ((count,),) = await session.fetch(
        "count_entries", tenant=known.number, segment=segment, index=index
    )
    return int(count or 0)


async def next_due(core: Core, tenant: str, queue: str) -> int | None:
    """When time alone next makes a claim return more; sometimes early, never late.

    Early because a delayed delivery that expires first is checked then. In an ordered queue it
    may hold back others, and so may a consumer that stopped sending heartbeats.
    """

    async def look(session: Session, known: Tenant) -> int | None:
        found, dead = known.find(queue)
        if found.paused(dead=dead):
            return None
        phases = [int(phase) for phase in (_DEAD_TIMED if dead else _TIMED)]
        ((due,),) = await session.fetch("next_due", queue=found.number, phases=phases)
        if due is not None:
            # The caller waits until then, and the claim that follows must check what is due.
            core.timers.note((found.number, dead), due)
        times: list[int | None] = [due]
        if found.ordered and not dead:
            live = [int(phase) for phase in LIVE]
            ((deadline,),) = await session.fetch("next_deadline", queue=found.number, phases=live)
            times.append(deadline)
        # Without a token a claim returns nothing, even if deliveries are due.
        token_at = await next_token_at(session, found, core.clock.now(), dead=dead)
        if token_at is not None:
            return token_at
        return min((time for time in times if time is not None), default=None)

    return await core.read(tenant, look)
