"""Claim: lease deliveries in order (C1, C2, C3, C4).

Concurrent claims of one queue on this server share one transaction, which serves them in order of
arrival. It locks the first groups of the queue and skips groups that another server has locked. If
it finds only locked groups it waits for the first of them, so that a queue with deliveries is never
reported as empty (C5).

While no other server claims from the queue, no locks are needed: the first groups are read, and one
statement checks that they are unchanged and hands them out (``Core.single_statement``). If they
have changed, another server claims from the queue too, and claims use transactions for a while.

A waiting delivery that has no attempts left, because ``max_attempts`` was lowered, fails when a
claim reaches it. Claims with a selector are in ``selected_claim``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from penstock.model.delivery import Ack, Delivery, Settlement, SettleReply
from penstock.model.limits import MAX_CLAIM_BYTES
from penstock.storage.sql import moves, partitions
from penstock.storage.sql.batching import Call
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.claim_front import assume_first, bound, find_front
from penstock.storage.sql.copy_sizes import MEASURED, expire_some, fitting, measure
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import NeedsTransaction, RowChanged
from penstock.storage.sql.deliveries import DeliveryGroup, Phase, in_order, segment_of
from penstock.storage.sql.floors import NO_FLOORS, floors_of, raise_floors
from penstock.storage.sql.front import Position
from penstock.storage.sql.granting import (
    Acks,
    Claim,
    Granted,
    Stretch,
    deliver,
    grant,
    large_segments,
    look_at_clock,
)
from penstock.storage.sql.limits import charge, take_bucket
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.selected_claim import claim_selected
from penstock.storage.sql.settle import Settle, settle, settle_within
from penstock.storage.sql.work import Work

__all__ = ["acks_of", "claim"]

T = TypeVar("T")

#: Due, lapsed and expired groups that one claim moves. Any more are left to the next claims and to
#: sweep, so that the duration of a claim is bounded.
_MAX_TIMERS: Final = 500
#: The most groups that one transaction locks to serve its claims.
_MAX_GROUPS: Final = 4_000
#: How long claims of a queue use transactions after another server claimed from it.
_SHARED_MS: Final = 5_000
#: How often one claim searches again because of deliveries without attempts left, and how many it
#: fails per search if it wants fewer: some 2,000 in all. The rest is left to the next claims.
_LOOKS: Final = 8
_FAILED_A_LOOK: Final = 500
#: How often a claim that found only locked groups waits for the first of them.
_WAITS: Final = 3

_OWN: Final = (Phase.FRESH, Phase.RETURNED)
_DEAD: Final = (Phase.DEAD_RETURNED,)
_TIMED: Final = (Phase.FRESH, Phase.RETURNED, Phase.DELAYED, Phase.IN_FLIGHT)
_DEAD_TIMED: Final = (Phase.DEAD_DELAYED, Phase.DEAD_IN_FLIGHT)


async def claim(
    core: Core, tenant: str, name: str, calls: Sequence[Call[Claim, list[Delivery]]]
) -> None:
    """Serve the calls, all of them claims of one queue."""
    asked = [call.asked for call in calls]
    acks = [one.acks for one in asked if one.acks is not None]
    known = (await core.catalog.tenant(tenant)).queues.get(name)
    if known is not None and not known.ordered:
        await raise_floors(core, known.number)

    async def act(work: Work) -> list[list[Delivery]]:
        queue, dead = work.tenant.find(name)
        if acks and work.single_statement:
            await _ack(core, work, queue, acks, dead=dead)
        ordered = queue.ordered and not dead
        if ordered:
            # Every transaction locks the queue before its groups.
            await partitions.lock(work, queue)
            look_at_clock(core, work)
        await _let_time_pass(core, work, queue, dead=dead)
        if queue.paused(dead=dead) and not ordered:
            return [[] for _ in asked]
        bucket = await take_bucket(core, work, queue, dead=dead)
        tokens = None if bucket is None else bucket.tokens
        if ordered:
            granted = await _claim_partitions(core, work, queue, asked, tokens)
        elif asked[0].selector is not None:
            # Such a call shares its transaction with no other.
            (cut,) = _cut(asked, tokens)
            granted = [await claim_selected(core, work, queue, cut, dead=dead)]
        else:
            granted = await _claim_in_order(core, work, queue, _cut(asked, tokens), dead=dead)
        if bucket is not None:
            await charge(work, queue, bucket, sum(map(len, granted)), dead=dead)
        return granted

    try:
        if known is None or asked[0].selector is not None or not _is_alone(core, known):
            raise NeedsTransaction
        granted = await _claim_alone(core, tenant, known, act)
    except NeedsTransaction:
        for one in acks:
            settling: Call[Settle, SettleReply] = Call(Settle(one.items), len(one.items))
            await settle(core, tenant, name, [settling])
            one.outcomes = (await settling.answered()).outcomes
        granted = await core.transact(tenant, act)
    for call, deliveries in zip(calls, granted, strict=True):
        call.answer(deliveries)


def acks_of(core: Core, tenant: str, name: str, settlements: Sequence[Settlement]) -> Acks | None:
    """The settlements, if a claim may bring them along in its single statement.

    They must be acks: the claim would not see deliveries that others return.
    """
    known = core.catalog.seen(tenant)
    queue = None if known is None else known.queues.get(name)
    if queue is None or not core.database.publishes_in_one_statement or not _is_alone(core, queue):
        return None
    return Acks(settlements) if all(type(one) is Ack for one in settlements) else None


async def _claim_alone(
    core: Core, tenant: str, queue: Queue, act: Callable[[Work], Awaitable[T]]
) -> T:
    """Claim in a single statement. Raises ``NeedsTransaction`` if that is not possible."""
    is_known = core.fronts.knows(queue.number)
    try:
        return await core.single_statement(tenant, act)
    except RowChanged:
        # If the claim took its groups from a front, that is outdated: it reads them now.
        core.fronts.drop(queue.number)
        if is_known:
            return await _claim_alone(core, tenant, queue, act)
        core.shared[queue.number] = core.clock.now() + _SHARED_MS
        raise


async def _ack(core: Core, work: Work, queue: Queue, acks: Sequence[Acks], *, dead: bool) -> None:
    """Settle what the calls bring along, in the transaction of their claims."""
    items = [item for one in acks for item in one.items]
    outcomes = await settle_within(core, work, queue, items, dead=dead)
    begin = 0
    for one in acks:
        one.outcomes = outcomes[begin : begin + len(one.items)]
        begin += len(one.items)


def _is_alone(core: Core, queue: Queue) -> bool:
    """Whether a claim may skip locks, as far as this server knows."""
    limited = queue.policy.throughput_limit is not None
    return not queue.ordered and not limited and not _is_shared(core, queue)


def _is_shared(core: Core, queue: Queue) -> bool:
    """Whether another server claimed from the queue recently."""
    until = core.shared.get(queue.number)
    if until is not None and until <= core.clock.now():
        del core.shared[queue.number]
        return False
    return until is not None


async def _let_time_pass(core: Core, work: Work, queue: Queue, *, dead: bool) -> None:
    """Move due, lapsed and expired deliveries, as far as a claim needs it."""
    side = (queue.number, dead)
    if not core.timers.is_due(side, work.now):
        return
    if work.single_statement:
        raise NeedsTransaction
    core.timers.ask(side)
    phases = [int(p) for p in (_DEAD_TIMED if dead else _TIMED)]
    rows = await work.session.due_groups(queue.number, phases, work.now, _MAX_TIMERS)
    groups = work.hold_all(rows)
    await moves.draw_for_lapses(work, queue, groups)
    async for group in fitting(core, work, queue, groups):
        moves.let_time_act(work, queue, group)
    if rows:
        await work.write()
    ((due,),) = await work.session.fetch("next_due", queue=queue.number, phases=phases)
    work.asked_due[side] = due


def _cut(asked: Sequence[Claim], tokens: int | None) -> Sequence[Claim]:
    """The claims, cut to what the throughput limit allows: first come, first served.

    If the first claim finds too few deliveries, the others find none.
    """
    if tokens is None:
        return asked
    cut: list[Claim] = []
    for one in asked:
        cut.append(one._replace(limit=min(one.limit, tokens)))
        tokens -= cut[-1].limit
    return cut


async def _claim_partitions(
    core: Core, work: Work, queue: Queue, asked: Sequence[Claim], tokens: int | None
) -> list[list[Delivery]]:
    """Serve the consumers one by one: each claims from its own partitions."""
    granted: list[list[Delivery]] = []
    for one in asked:
        (cut,) = _cut([one], tokens)
        granted.append(await partitions.claim(core, work, queue, cut))
        if tokens is not None:
            tokens -= len(granted[-1])
    return granted


async def _claim_in_order(
    core: Core, work: Work, queue: Queue, asked: Sequence[Claim], *, dead: bool
) -> list[list[Delivery]]:
    taken = await _take(core, work, queue, sum(one.limit for one in asked), dead=dead)
    sizes = await large_segments(core, work, {group.entry_segment for group, _ in taken})
    granted: list[list[Granted]] = []
    for one in asked:
        part, taken = _first(taken, one.limit)
        if sizes is not None:
            part, rest = _within_bytes(part, sizes)
            if rest:
                taken = [*rest, *taken]
                work.notify(queue, dead=dead)  # Consumers that wait claim the rest.
        granted.append(grant(core, work, queue, one, part))
    return await deliver(core, work, queue, granted, dead=dead)


def _within_bytes(
    stretches: Sequence[Stretch], segments: Mapping[int, Segment]
) -> tuple[list[Stretch], list[Stretch]]:
    """The first deliveries, as many as one claim may read the payloads of, and the rest."""
    remaining, count = MAX_CLAIM_BYTES, 0
    for group, members in stretches:
        segment = segments.get(group.entry_segment)
        if segment is None:
            count += len(members)
            continue  # It is missing, which is found out when it is read.
        entry = group.record.entry
        for index in members if entry is None else [segment_of(entry)[1]]:
            remaining -= segment.metadata[index].size if index < len(segment.metadata) else 0
            if remaining < 0 and count:
                return _first(stretches, count)
            count += 1
    return list(stretches), []


async def _take(core: Core, work: Work, queue: Queue, wanted: int, *, dead: bool) -> list[Stretch]:
    """Lock the first deliveries, in order; fail those without attempts left."""
    phases = [int(p) for p in (_DEAD if dead else _OWN)]
    side = (queue.number, dead)
    most = min(core.group_hints.get(side, 2), wanted + 1)
    reach, looks = wanted, 0
    while True:
        groups, end = await _lock_first(core, work, queue, phases, most, wanted, dead=dead)
        if not groups:
            return []
        found, _ = _first(_before(in_order(groups, reach), end), reach)
        exhausted: list[Stretch] = []
        if not dead:
            found, exhausted = _divide(queue, found, wanted)
            if not await _exhaust(core, work, queue, exhausted):
                work.notify(queue)
                return found
        enough = sum(len(members) for _, members in found) == wanted
        if work.single_statement:
            assume_first(core, work, side, found if enough else ())
        if not enough and exhausted:
            if looks == _LOOKS:
                work.notify(queue)  # Waiting consumers claim again: the queue may hold more.
                return found
            # Widen each search, so that a claim of one delivery gets past a backlog, too.
            looks += 1
            reach = max(wanted, min(4 * reach, _FAILED_A_LOOK))
            most = min(4 * most, reach + 1)
            await work.write()
            continue
        if enough or end is None or most >= _MAX_GROUPS:
            core.group_hints[side] = len({id(group) for group, _ in found}) + 1
            return found
        work.let_go(groups)
        most *= 4


async def _lock_first(
    core: Core,
    work: Work,
    queue: Queue,
    phases: Sequence[int],
    most: int,
    wanted: int,
    *,
    dead: bool,
) -> tuple[list[DeliveryGroup], Position | None]:
    """Lock the first groups of each phase; expire those past their time.

    Also returns the position up to which the groups are complete; None if these are all.
    """
    floors = () if dead else floors_of(core, queue.number)
    side = (queue.number, dead)
    waits = 0
    while True:
        if work.copies.is_full:
            work.notify(queue)  # Waiting consumers claim again.
            return [], None
        if work.single_statement:
            front = await find_front(core, work, side, phases, most, wanted)
            # One less: the front knows where the next group begins, without decoding it.
            rows, end = front.first(max(1, most - 1))
            groups = work.hold_all(rows)
        else:
            rows = await work.session.first_groups(queue.number, phases, floors, most)
            groups = work.hold_all(rows)
            end = bound(rows, phases, most)
        look_at_clock(core, work)
        expired = (
            [] if dead else [group for group in groups if moves.is_expired(group.record, work.now)]
        )
        if expired:
            if work.single_statement:
                raise NeedsTransaction
            await expire_some(core, work, queue, expired)
        elif groups or work.single_statement or waits == _WAITS:
            return groups, end
        elif not await _wait_for_first(work, queue, phases, floors):
            return [], None
        else:
            waits += 1


def _divide(
    queue: Queue, stretches: Sequence[Stretch], wanted: int
) -> tuple[list[Stretch], list[Stretch]]:
    """The first ``wanted`` deliveries with attempts left, and those without that precede them."""
    found: list[Stretch] = []
    exhausted: list[Stretch] = []
    for group, members in stretches:
        if moves.is_exhausted(queue, group.record):
            exhausted.append((group, members))
        elif len(members) < wanted:
            found.append((group, members))
            wanted -= len(members)
        else:
            found.append((group, members[:wanted]))
            break
    return found, exhausted


async def _exhaust(core: Core, work: Work, queue: Queue, stretches: Sequence[Stretch]) -> bool:
    """Fail deliveries that have no attempts left. Returns whether all of them fit."""
    if stretches and work.single_statement:
        raise NeedsTransaction
    for position, (group, members) in enumerate(stretches):
        if work.copies.is_full:
            return False
        if not position % MEASURED:
            part = stretches[position : position + MEASURED]
            await measure(core, work, queue, [one for one, _ in part])
        moves.exhaust(work, queue, group, members)
    return True


def _first(stretches: Sequence[Stretch], limit: int) -> tuple[list[Stretch], list[Stretch]]:
    """The first ``limit`` deliveries, and the rest."""
    part: list[Stretch] = []
    for position, (group, members) in enumerate(stretches):
        if len(members) >= limit:
            rest = [(group, members[limit:])] if len(members) > limit else []
            if limit:
                part.append((group, members[:limit]))
                return part, [*rest, *stretches[position + 1 :]]
            return part, list(stretches[position:])
        part.append((group, members))
        limit -= len(members)
    return part, []


def _before(stretches: list[Stretch], end: Position | None) -> list[Stretch]:
    """The deliveries at or before the end; the stretch that contains it is cut."""
    if end is None:
        return stretches
    rank, (segment, last) = end[0], segment_of(end[1])
    kept: list[Stretch] = []
    for group, members in stretches:
        there, index = segment_of(group.position)
        if (group.rank, there) < (rank, segment):
            kept.append((group, members))
        elif (group.rank, there) != (rank, segment):
            continue
        elif group.record.position is not None:
            if index <= last:
                kept.append((group, members))
        elif members[0] <= last:
            kept.append((group, members[: bisect_right(members, last)]))
    return kept


async def _wait_for_first(
    work: Work, queue: Queue, phases: Sequence[int], floors: Sequence[int]
) -> bool:
    """Wait for the transaction that locked the first group; False if there is no group."""
    for phase in phases:
        begin = (floors if phase == Phase.FRESH else ()) or NO_FLOORS
        if await work.session.fetch("first_group", queue=queue.number, phase=phase, floors=begin):
            await work.session.fetch(
                "wait_for_first_group", queue=queue.number, phase=phase, floors=begin
            )
            return True
    return False
