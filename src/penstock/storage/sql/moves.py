"""Moves: every transition of deliveries, for whole groups or parts of them.

The functions do not check whether the verb may make the transition. Each leaves its deliveries in
one state (S3), appends one mark to their history, and records which queues to notify.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.model import decisions
from penstock.model.dead_letter_copies import copies
from penstock.model.decisions import Ending, end_of_claim
from penstock.model.delivery_events import reports
from penstock.model.limits import MAX_ATTEMPTS
from penstock.model.message import MessageId
from penstock.model.queue import RetryPosition
from penstock.model.states import LIVE as LIVE_STATES
from penstock.model.states import State, Transition
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.deliveries import (
    DEAD,
    LIVE,
    DeliveryGroup,
    DeliveryRecord,
    Kind,
    Mark,
    Phase,
    is_dead,
    message_id,
)
from penstock.storage.sql.work import EndedGroup, Work

__all__ = [
    "draw_for_lapses",
    "draw_positions",
    "exhaust",
    "expire",
    "finish",
    "give_back",
    "grant",
    "is_exhausted",
    "is_expired",
    "let_time_act",
    "make_due",
    "may_end",
    "remove",
]

#: Phases of deliveries that have ended: callers do not wait for their results.
_ENDED: Final = (Phase.DONE, Phase.EXPIRED, Phase.DEAD_DONE)


def is_expired(record: DeliveryRecord, now: int) -> bool:
    """Whether it is past its expiry and must not be delivered (C3)."""
    return decisions.is_expired(record.expires_at, now)


def is_exhausted(queue: Queue, record: DeliveryRecord) -> bool:
    """Whether no attempts are left; released grants do not count."""
    return decisions.is_exhausted(
        queue.policy, record.max_attempts, record.attempts, record.released
    )


def grant(
    work: Work,
    group: DeliveryGroup,
    members: Sequence[int],
    consumer: str,
    deadline: int,
    lease: int,
) -> DeliveryRecord:
    """Hand out: a new claim, and one more attempt (C1, C2)."""
    dead = is_dead(group.phase)
    record = group.record
    mark = Mark.of(work.now, Transition.CLAIM, State.IN_FLIGHT, dead=dead, consumer=consumer)
    granted = replace(
        record,
        attempts=min(record.attempts + 1, MAX_ATTEMPTS),
        lease=lease,
        row_key=lease,
        claimed_at=work.now,
        consumer=consumer,
        deadline=deadline,
        due_at=None,
        marks=record.marked(mark),
        position=None,
    )
    work.move(group, members, Phase.DEAD_IN_FLIGHT if dead else Phase.IN_FLIGHT, granted)
    work.count(group.queue, Kind.of(Kind.GRANTS, dead=dead), len(members))
    return granted


def _ended(record: DeliveryRecord) -> DeliveryRecord:
    """The record after the end of a claim."""
    return replace(
        record, claimed_at=None, consumer=None, deadline=None, due_at=None, result=None, row_key=0
    )


def finish(work: Work, group: DeliveryGroup, members: Sequence[int], result: bytes | None) -> None:
    """Ack."""
    dead = is_dead(group.phase)
    mark = Mark.of(work.now, Transition.ACK, State.DONE, dead=dead, consumer=group.record.consumer)
    record = replace(
        _ended(group.record), at=work.now, result=result, marks=group.record.marked(mark)
    )
    work.move(group, members, Phase.DEAD_DONE if dead else Phase.DONE, record)
    work.count(group.queue, Kind.of(Kind.ACKS, dead=dead), len(members))
    queue = work.tenant.numbered[group.queue]
    if queue.policy.events and not dead and reports(queue.policy, State.DONE):
        acked = replace(record, error=None)
        work.copy(
            EndedGroup(queue, group.segment, members, acked, State.DONE, Transition.ACK, work.now)
        )
    if group.record.keyed and not dead:
        work.close_keys(group, members)
    work.ended.add(group.queue)


def exhaust(work: Work, queue: Queue, group: DeliveryGroup, members: Sequence[int]) -> None:
    """Fail waiting deliveries: ``max_attempts`` was lowered, and no attempts are left."""
    ending = decisions.exhausted(queue.policy, group.record.max_attempts)
    _end(work, group, members, Transition.EXHAUST, ending, group.record)


def expire(
    work: Work, group: DeliveryGroup, members: Sequence[int], transition: Transition
) -> None:
    """Expire: past ``expires_at``, never delivered again (C3)."""
    _end(work, group, members, transition, Ending(State.EXPIRED, None, None), group.record)


def may_end(queue: Queue, group: DeliveryGroup, now: int) -> bool:
    """Whether the deliveries fail or expire if their claim or their wait ends now."""
    record = group.record
    return not is_dead(group.phase) and (is_expired(record, now) or is_exhausted(queue, record))


def make_due(work: Work, group: DeliveryGroup, members: Sequence[int]) -> None:
    """End a delay."""
    phase = Phase.DEAD_RETURNED if is_dead(group.phase) else Phase.RETURNED
    work.move(group, members, phase, replace(group.record, due_at=None))


def give_back(
    work: Work,
    queue: Queue,
    group: DeliveryGroup,
    members: Sequence[int],
    transition: Transition,
    error: str | None = None,
    delay_ms: int = 0,
    *,
    record: DeliveryRecord | None = None,
) -> Ending:
    """End a claim without an ack: back to the queue, to failed (D1), or to expired.

    ``record`` overrides the group's.
    """
    record = record or group.record
    dead = is_dead(group.phase)
    if transition is Transition.LAPSE:
        work.lapsed[group.queue, dead] += len(members)
    elif transition is Transition.NACK:
        work.count(group.queue, Kind.of(Kind.NACKS, dead=dead), len(members))
    elif transition is Transition.RELEASE:
        record = replace(record, released=record.released + 1)
    ending = end_of_claim(
        transition,
        queue.policy,
        dead=dead,
        max_attempts=record.max_attempts,
        attempts=record.attempts,
        released=record.released,
        expires_at=record.expires_at,
        now=work.now,
        error=error,
        delay_ms=delay_ms,
    )
    if _moves_back(queue, dead=dead) and ending.state in LIVE_STATES:
        for index in members:
            position = work.positions[queue.number, message_id(group.segment, index)]
            _end(work, group, [index], transition, ending, record, position)
    else:
        _end(work, group, members, transition, ending, record)
    return ending


def _moves_back(queue: Queue, *, dead: bool) -> bool:
    """Whether deliveries that are pending again go behind those that wait."""
    return queue.policy.retry_position is RetryPosition.BACK and not dead


async def draw_positions(
    work: Work, queue: Queue, messages: Sequence[MessageId], *, dead: bool
) -> None:
    """Draw positions for deliveries that may be given back, in this order.

    Must precede ``give_back`` in a queue where they go to the back.
    """
    if messages and _moves_back(queue, dead=dead):
        await work.draw_positions(queue.number, messages)


async def draw_for_lapses(work: Work, queue: Queue, groups: Iterable[DeliveryGroup]) -> None:
    """Draw positions for the deliveries whose leases ``let_time_act`` ends, by deadline."""
    if _moves_back(queue, dead=False):
        lapsing = [
            (group.record.deadline or 0, message)
            for group in groups
            if group.phase is Phase.IN_FLIGHT
            for message in group.ids()
        ]
        await draw_positions(work, queue, [message for _, message in sorted(lapsing)], dead=False)


def _end(
    work: Work,
    group: DeliveryGroup,
    members: Sequence[int],
    transition: Transition,
    ending: Ending,
    record: DeliveryRecord,
    position: int | None = None,
) -> None:
    """Move deliveries to where their claim, or their time in the queue, ends."""
    state, error, due_at, removed = ending
    queue = work.tenant.numbered[group.queue]
    if copies(queue.policy, state) or reports(queue.policy, state):
        last = record if error is None else replace(record, error=error)
        is_kept = not removed or queue.cursor is not None
        work.copy(
            EndedGroup(*(queue, group.segment, members, last, state, transition, work.now, is_kept))
        )
    if state is State.FAILED:
        work.count(group.queue, Kind.FAILURES, len(members))
    # The router would take a removed message again, so a queue that is behind keeps it.
    if removed and queue.cursor is None:
        remove(work, group, members)
        return
    dead = is_dead(group.phase)
    mark = Mark.of(work.now, transition, state, dead=dead, consumer=record.consumer, error=error)
    ended = replace(
        _ended(record),
        due_at=due_at,
        error=record.error if error is None else error,
        marks=record.marked(mark),
        position=position,
    )
    match state:
        case State.FAILED:
            phase, ended = Phase.DEAD_RETURNED, replace(ended, at=work.now)
            work.ended.add(group.queue)
        case State.EXPIRED:
            phase, ended = Phase.EXPIRED, replace(ended, at=work.now, lease=0)
            work.ended.add(group.queue)
        case _:
            phase = Phase.RETURNED if due_at is None else Phase.DELAYED
            phase = Phase(phase + DEAD) if dead else phase
    work.move(group, members, phase, ended)
    if record.keyed and phase not in LIVE and not dead:
        work.close_keys(group, members)


def remove(work: Work, group: DeliveryGroup, members: Sequence[int]) -> None:
    """Remove deliveries: by purge or retention. The keys of live ones are closed."""
    if group.record.keyed and group.phase in LIVE:
        work.close_keys(group, members)
    work.drop(group, members)
    if group.phase not in _ENDED:
        work.ended.add(group.queue)


def let_time_act(work: Work, queue: Queue, group: DeliveryGroup) -> Transition | None:
    """Make a group due, lapse or expire if its time has come; None if nothing happens."""
    now, record = work.now, group.record
    members = work.left(group)
    match group.phase:
        case Phase.FRESH | Phase.RETURNED | Phase.DELAYED if is_expired(record, now):
            expire(work, group, members, Transition.EXPIRE)
            return Transition.EXPIRE
        case Phase.DELAYED | Phase.DEAD_DELAYED if (
            record.due_at is not None and record.due_at <= now
        ):
            make_due(work, group, members)
            return Transition.DUE
        case Phase.IN_FLIGHT | Phase.DEAD_IN_FLIGHT if (record.deadline or 0) <= now:
            give_back(work, queue, group, members, Transition.LAPSE)
            return Transition.LAPSE
        case _:
            return None
