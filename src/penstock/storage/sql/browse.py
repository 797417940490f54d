"""Peek, purge and stats: what is in a queue, in claim order (C4) and in numbers (Q2).

Peeking locks and consumes nothing, and a page examines at most ``MAX_SCAN`` deliveries. A purge
locks the deliveries it selected, checks them again and removes them, all in one commit (S3).
Both wait for a turn before every batch but the first, so that neither starves other tenants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.errors import BadInput, Conflict
from penstock.filters import Filter, Selection
from penstock.model.delivery import Page, PurgeReply, QueueStats, Snapshot
from penstock.model.limits import MAX_OFFSET, MAX_PRIORITY
from penstock.model.message import Message, Offset
from penstock.model.queue import RetryPosition
from penstock.model.states import State
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Session
from penstock.storage.sql.deliveries import (
    DEAD,
    LIVE,
    DeliveryGroup,
    Kind,
    Phase,
    phases_of,
    segment_of,
)
from penstock.storage.sql.group_cursor import (
    GroupCursor,
    Item,
    Position,
    hold,
    in_claim_order,
    matching,
    snapshot,
)
from penstock.storage.sql.limits import next_token_at
from penstock.storage.sql.log import end_of_log
from penstock.storage.sql.partitions import partition_stats
from penstock.storage.sql.work import Work

__all__ = ["MAX_SCAN", "next_due", "peek", "purge", "stats"]

#: Deliveries that one page examines at most.
MAX_SCAN: Final = 10_000
#: Deliveries whose messages are read, or that are removed, per turn.
_BATCH: Final = 1_000
#: Deliveries that a filter is evaluated for per turn.
_SLICE: Final = 500
#: Deliveries whose payloads are read in one statement, each perhaps from its own segment.
_PAYLOADS: Final = 64
#: A cursor is a 60-bit number, rank * _RANK_SPAN + message id, so ranks never overlap.
_RANK_SPAN: Final = MAX_OFFSET + 1


async def peek(
    core: Core,
    tenant: str,
    queue: str,
    state: State,
    where: Filter | None,
    limit: int,
    cursor: str | None,
    *,
    payloads: bool,
) -> Page:
    """One page of the deliveries in ``state``, after the cursor."""
    after = None if cursor is None else _read_cursor(cursor)

    async def look(session: Session, known: Tenant) -> Page:
        found, dead = known.find(queue)
        walk = in_claim_order(session, found.number, phases_of(state, dead=dead), after)
        shown, last = await _select(core, session, known, walk, where, limit, after)
        contents = await _payloads(core, session, known, shown) if payloads else {}
        items = [
            _shown(found, item.group, message, contents.get(message.offset), state)
            for item, message in shown
            # The payload is gone: the message was removed in the meantime, so leave it out.
            if not payloads or message.offset in contents
        ]
        return Page(tuple(items), None if last is None else _make_cursor(last))

    return await core.read(tenant, look)


async def _select(
    core: Core,
    session: Session,
    known: Tenant,
    walk: GroupCursor,
    where: Filter | None,
    limit: int,
    after: Position | None,
) -> tuple[list[tuple[Item, Message]], Position | None]:
    """The deliveries of a page, and its last examined position; None at the end of the queue."""
    selected: list[tuple[Item, Message]] = []
    looked, last = 0, after
    while True:
        if looked:
            await core.turns.take(known.name)
        wanted = limit - len(selected) if where is None else _SLICE
        batch = await walk.take(min(wanted, MAX_SCAN - looked, _BATCH) + 1)
        if not batch:
            return selected, None
        matched = await matching(core, session, known.number, batch, where)
        messages = {item.message_id: message for item, message in matched}
        for item in batch:
            if len(selected) == limit or looked == MAX_SCAN:
                return selected, last
            looked, last = looked + 1, (item.rank, item.position)
            if item.message_id in messages:
                selected.append((item, messages[item.message_id]))


async def _payloads(
    core: Core, session: Session, known: Tenant, shown: Sequence[tuple[Item, Message]]
) -> dict[int, bytes]:
    """The payloads by offset (P3)."""
    found: dict[int, bytes] = {}
    for start in range(0, len(shown), _PAYLOADS):
        places = [segment_of(message.offset) for _, message in shown[start : start + _PAYLOADS]]
        numbers = {number for number, _ in places}
        segments = await core.segments.read(session, known.number, numbers, payloads=True)
        for (_, message), (number, index) in zip(
            shown[start : start + _PAYLOADS], places, strict=True
        ):
            if number in segments:
                found[message.offset] = segments[number].payload(index)
    return found


def _shown(
    queue: Queue, group: DeliveryGroup, message: Message, payload: bytes | None, state: State
) -> Snapshot:
    failed = state is State.FAILED
    return snapshot(queue, group.phase, group.record, message, failed=failed, payload=payload)


def _make_cursor(position: Position) -> str:
    rank, message = position
    return f"{rank * _RANK_SPAN + message:x}"


def _read_cursor(cursor: str) -> Position:
    try:
        rank, message = divmod(int(cursor, 16), _RANK_SPAN)
    except ValueError:
        rank = message = -1
    if not 0 <= rank <= MAX_PRIORITY:
        raise BadInput("cursor must come from the previous page.", field="cursor")
    return rank, message


async def purge(
    core: Core, tenant: str, queue: str, state: State, where: Selection | None, limit: int
) -> PurgeReply:
    """Remove the first deliveries in ``state``; the reply says whether more are left."""

    async def act(work: Work) -> PurgeReply:
        found, dead = work.tenant.find(queue)
        if state is State.IN_FLIGHT:
            raise Conflict(
                "In-flight deliveries cannot be purged: settle or cancel them.", field="state"
            )
        phases = phases_of(state, dead=dead)
        walk = in_claim_order(work.session, found.number, phases)
        # A joining queue keeps deliveries beyond its cursor: the router would add them again.
        end = found.cursor if found.joining else None
        count = batches = 0
        while batch := await walk.take(_BATCH):
            if batches:
                await core.turns.take(tenant)
            batches += 1
            passed = batch if end is None else [item for item in batch if item.offset < end]
            chosen = await _matching(core, work, passed, where)
            while chosen:
                if count == limit:
                    return PurgeReply(count, more=True)
                part, chosen = chosen[: limit - count], chosen[limit - count :]
                count += await _remove(core, work, part, phases, where)
        return PurgeReply(count, more=False)

    return await core.transact(tenant, act)


async def _matching(
    core: Core, work: Work, items: Sequence[Item], where: Selection | None
) -> Sequence[Item]:
    if where is None:
        return items
    found = await matching(core, work.session, work.tenant.number, items, where)
    return [item for item, _ in found]


async def _remove(
    core: Core, work: Work, items: Sequence[Item], phases: Sequence[Phase], where: Selection | None
) -> int:
    """Remove the items that still exist and still match; returns how many were removed."""
    held = await hold(work, items, phases)
    # Before it was locked, a message may have been replaced by one the filter rejects.
    meant = await _matching(core, work, list(held.values()), where)
    by_run: dict[int, tuple[DeliveryGroup, list[int]]] = {}
    for item in meant:
        known = by_run.setdefault(id(item.group), (item.group, []))
        known[1].append(segment_of(item.message_id)[1])
    for group, members in by_run.values():
        moves.remove(work, group, members)
    await work.write()
    return len(meant)


# -- stats ---------------------------------------------------------------------------
# Counts are sums of the tally rows (Q2). The rest reads the first group of every phase and rank and
# the groups in flight, so the cost does not depend on the depth. The end of the log and the cursor
# are read before the groups, so that the watermark never passes an unsettled delivery.

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
        groups = await _front(session, found, dead=dead)
        counts = await _counts(session, found)
        phases = DEAD if dead else 0
        live = sum(counts[phase] for phase in (_DEAD_LIVE if dead else LIVE))
        published_at = await _oldest(core, session, known, groups)
        in_flight = Counter[str]()
        for group in groups:
            if group.phase in _IN_FLIGHT and group.record.consumer is not None:
                in_flight[group.record.consumer] += group.size
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
            watermark=_watermark(groups, end, cursor),
            lag=live + await _unrouted(session, known, cursor),
            partitions=await partition_stats(session, found) if ordered else (),
        )

    return await core.read(tenant, look)


async def _cursor(session: Session, queue: Queue) -> Offset | None:
    """The current cursor; routing does not change the catalog's version."""
    rows = await session.fetch("read_cursor", queue=queue.number)
    return Offset(rows[0][0]) if rows and rows[0][0] is not None else None


async def _front(session: Session, queue: Queue, *, dead: bool) -> list[DeliveryGroup]:
    """The first waiting groups by phase and rank, and all groups in flight.

    Groups that moved to the back are not in the order of messages: the one with the lowest message
    is here too. One that did not move has a higher message than those that moved in front of it.
    """
    rows = await session.fetch(
        "front_groups",
        queue=queue.number,
        phases=[int(phase) for phase in (_DEAD_WAITING if dead else _WAITING)],
        in_flight=int(Phase.DEAD_IN_FLIGHT if dead else Phase.IN_FLIGHT),
        moved=not dead and queue.policy.retry_position is RetryPosition.BACK,
    )
    return [DeliveryGroup.read(row) for row in rows]


async def _counts(session: Session, queue: Queue) -> Counter[int]:
    """The tallies by kind; fresh deliveries count as returned."""
    rows = await session.fetch("tallies", queue=queue.number)
    return Counter({int(kind): int(number) for kind, number in rows})


async def _oldest(
    core: Core, session: Session, known: Tenant, groups: Iterable[DeliveryGroup]
) -> int | None:
    """When the oldest message was published that is the first available one of its rank."""
    firsts: dict[int, DeliveryGroup] = {}
    for group in groups:
        if group.phase in _AVAILABLE:
            known_first = firsts.setdefault(group.rank, group)
            if group.position < known_first.position:
                firsts[group.rank] = group
    offsets = [group.record.entry or group.first for group in firsts.values()]
    found = await core.segments.messages(session, known.number, offsets)
    return min((message.published_at for message in found.values()), default=None)


def _watermark(groups: Sequence[DeliveryGroup], end: Offset, cursor: Offset | None) -> Offset:
    """One below the first unsettled message, the first unrouted entry and the end of the log.

    Messages above the end do not count: an open publish may still append below them. The cursor
    is above the end if other tenants have published since.
    """
    ends = [int(end), *(int(group.first) for group in groups)]
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
