"""Claim: lease deliveries in order (C1, C2, C3, C4).

Claims of one queue that come at the same time on this server are served by one transaction, in
the order in which they came. It locks the first runs of the queue and passes by those that
another server has locked; if it finds nothing but locked ones it waits for the first of them, so
that nobody is told that a queue is empty which is not (C5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Delivery
from penstock.model.message import Message, MessageId
from penstock.model.queue import QueuePolicy
from penstock.model.states import Transition
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.floors import raise_floor
from penstock.storage.sql.lanes import Call
from penstock.storage.sql.leases import make_receipt
from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import Life, Run, in_order, segment_of
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.work import Work

__all__ = ["Claim", "claim", "deliver", "lease_of", "let_time_pass"]

#: Runs that one claim lets time act on. More than that at once is left to the next claims and
#: to sweep, so that a claim's time stays bounded.
_MAX_TIMERS: Final = 500
#: The most runs that are locked to serve the claims of one transaction.
_MAX_HEADS: Final = 4_000
#: How often a claim that found only locked runs waits for the first of them.
_WAITS: Final = 3

_OWN: Final = (Phase.FRESH, Phase.RETURNED)
_DEAD: Final = (Phase.DEAD_RETURNED,)
_TIMED: Final = (Phase.FRESH, Phase.RETURNED, Phase.DELAYED, Phase.IN_FLIGHT)
_DEAD_TIMED: Final = (Phase.DEAD_DELAYED, Phase.DEAD_IN_FLIGHT)


class Claim(NamedTuple):
    """What one caller asks for."""

    consumer: str
    limit: int
    lease_ms: int | None


class Granted(NamedTuple):
    """One delivery that is handed out, before its message is read."""

    message_id: MessageId
    rank: int
    life: Life


async def claim(
    core: Core, tenant: str, name: str, calls: Sequence[Call[Claim, list[Delivery]]]
) -> None:
    """Serve the calls, all of them claims of one queue."""
    asked = [call.asked for call in calls]
    known = (await core.catalog.tenant(tenant)).queues.get(name)
    if known is not None and not known.ordered:
        await raise_floor(core, known.number)

    async def act(work: Work) -> list[list[Delivery]]:
        queue, dead = work.tenant.find(name)
        if queue.ordered and not dead:
            from penstock.storage.sql import partitions  # noqa: PLC0415  (it claims by this room)

            # The queue is locked before its runs, by everybody.
            await partitions.lock(work, queue)
            await let_time_pass(core, work, queue, dead=dead)
            return [await partitions.claim(core, work, queue, one) for one in asked]
        await let_time_pass(core, work, queue, dead=dead)
        if queue.paused(dead=dead):
            return [[] for _ in asked]
        return await _claim_in_order(core, work, queue, asked, dead=dead)

    for call, deliveries in zip(calls, await core.transact(tenant, act), strict=True):
        call.answer(deliveries)


async def let_time_pass(core: Core, work: Work, queue: Queue, *, dead: bool) -> None:
    """Let time act on what is due, as far as a claim has to know."""
    side = (queue.number, dead)
    if not core.timers.is_due(side, work.now):
        return
    phases = [int(p) for p in (_DEAD_TIMED if dead else _TIMED)]
    rows = await work.session.fetch(
        "due_runs", queue=queue.number, phases=phases, now=work.now, most=_MAX_TIMERS
    )
    for run in work.hold_all(rows):
        moves.let_time_act(work, queue, run)
    if rows:
        await work.write()
    ((due,),) = await work.session.fetch("next_due", queue=queue.number, phases=phases)
    core.timers.asked(side, work.now, due)


def lease_of(policy: QueuePolicy, lease_ms: int | None) -> int:
    """The lease that is given when this one is asked for."""
    wanted = policy.visibility_timeout_ms if lease_ms is None else lease_ms
    return min(max(wanted, policy.min_lease_ms), policy.max_lease_ms)


async def _claim_in_order(
    core: Core, work: Work, queue: Queue, asked: Sequence[Claim], *, dead: bool
) -> list[list[Delivery]]:
    taken = await _take(core, work, queue, sum(one.limit for one in asked), dead=dead)
    granted: list[list[Granted]] = []
    start = 0
    for one in asked:
        part = taken[start : start + one.limit]
        start += len(part)
        deadline = work.now + lease_of(queue.policy, one.lease_ms)
        granted.append(_grant(core, work, part, one.consumer, deadline))
    return await deliver(core, work, queue, granted, dead=dead)


async def _take(
    core: Core, work: Work, queue: Queue, wanted: int, *, dead: bool
) -> list[tuple[int, MessageId, Run, int]]:
    """Lock the first deliveries, in order; those past their time expire on the way."""
    phases = [int(p) for p in (_DEAD if dead else _OWN)]
    floors = [0] if dead else [core.floors.get(queue.number, (0, 0))[0], 0]
    side = (queue.number, dead)
    most = min(core.run_hints.get(side, 2), wanted + 1)
    waits = 0
    while True:
        rows = await work.session.heads(queue.number, phases, floors, most)
        runs = work.hold_all(rows)
        expired = [] if dead else [run for run in runs if moves.is_expired(run.life, work.now)]
        if expired:
            for run in expired:
                moves.expire(work, run, run.members, Transition.EXPIRE)
            await work.write()
            continue
        if not runs:
            if waits == _WAITS or not await _wait_for_first(work, queue, phases):
                return []
            waits += 1
            continue
        found = in_order(runs, wanted)
        bound = _bound(runs, phases, most)
        if bound is not None:
            found = [item for item in found if item[:2] <= bound]
        if len(found) >= wanted or bound is None or most >= _MAX_HEADS:
            used = {id(run) for _, _, run, _ in found[:wanted]}
            core.run_hints[side] = len(used) + 1
            return found[:wanted]
        work.let_go(runs)
        most *= 4


def _bound(runs: Sequence[Run], phases: Sequence[int], most: int) -> tuple[int, int] | None:
    """Up to where nothing can be missing: no run that was not read begins before it."""
    ends = []
    for phase in phases:
        of_phase = [run for run in runs if run.phase == phase]
        if len(of_phase) >= most:
            last = of_phase[-1]
            ends.append((last.rank, int(last.first)))
    return min(ends, default=None)


async def _wait_for_first(work: Work, queue: Queue, phases: Sequence[int]) -> bool:
    """Wait for whoever has locked what is there; whether there was anything."""
    for phase in phases:
        if await work.session.fetch("first_run", queue=queue.number, phase=phase):
            await work.session.fetch("wait_for_first_run", queue=queue.number, phase=phase)
            return True
    return False


def _grant(
    core: Core,
    work: Work,
    taken: Sequence[tuple[int, MessageId, Run, int]],
    consumer: str,
    deadline: int,
) -> list[Granted]:
    """Hand out to one consumer: one claim a run that they come from."""
    by_run: dict[int, tuple[Run, list[int]]] = {}
    for _, _, run, index in taken:
        known = by_run.get(id(run))
        if known is None:
            by_run[id(run)] = (run, [index])
        else:
            known[1].append(index)
    lives = {
        key: moves.grant(work, run, members, consumer, deadline, core.leases.next(work.now))
        for key, (run, members) in by_run.items()
    }
    return [Granted(message, rank, lives[id(run)]) for rank, message, run, _ in taken]


async def deliver(
    core: Core, work: Work, queue: Queue, granted: Sequence[Sequence[Granted]], *, dead: bool
) -> list[list[Delivery]]:
    """Read the messages of what was granted (P3)."""
    offsets = {one.life.entry or one.message_id for part in granted for one in part}
    if not offsets:
        return [[] for _ in granted]
    segments = await core.segments.read(
        work.session, work.tenant.number, {segment_of(o)[0] for o in offsets}, payloads=True
    )
    name, number = queue.shown_as(dead=dead), queue.number
    replies: list[list[Delivery]] = []
    for part in granted:
        deliveries: list[Delivery] = []
        for message_id, rank, life in part:
            message, payload = _read(segments, life.entry or message_id)
            assert life.claimed_at is not None
            assert life.deadline is not None
            deliveries.append(
                Delivery(
                    name,
                    make_receipt(number, rank, life.lease, message_id),
                    message,
                    payload,
                    life.attempts,
                    life.claimed_at,
                    life.deadline,
                )
            )
        replies.append(deliveries)
    return replies


def _read(segments: dict[int, Segment], offset: int) -> tuple[Message, bytes]:
    number, index = segment_of(offset)
    segment = segments.get(number)
    if segment is None or index >= len(segment.heads):
        raise StoreCorrupt(f"The entry at offset {offset} of the log is missing.")
    return segment.message(index), segment.payload(index)
