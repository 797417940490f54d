"""Moves: every transition of deliveries, for whole groups or parts of them.

The functions do not check whether the verb may make the transition. Each leaves its deliveries in
one state (S3), appends one mark to their history, and records which queues to notify.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.model.limits import MAX_ATTEMPTS
from penstock.model.states import State, Transition
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.deliveries import (
    DEAD,
    DeliveryGroup,
    DeliveryRecord,
    Kind,
    Mark,
    Phase,
    is_dead,
)
from penstock.storage.sql.work import Work

__all__ = [
    "LEASE_EXPIRED",
    "exhaust",
    "expire",
    "fail",
    "finish",
    "give_back",
    "grant",
    "is_exhausted",
    "is_expired",
    "let_time_act",
    "make_due",
]

#: The error of a delivery whose last claim lapsed.
LEASE_EXPIRED: Final = "lease expired"


def is_expired(record: DeliveryRecord, now: int) -> bool:
    """Whether it is past its expiry and must not be delivered (C3)."""
    return record.expires_at is not None and record.expires_at <= now


def is_exhausted(queue: Queue, record: DeliveryRecord) -> bool:
    """Whether no attempts are left; released grants do not count."""
    return record.attempts - record.released >= queue.policy.max_attempts


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
    )
    work.move(group, members, Phase.DEAD_IN_FLIGHT if dead else Phase.IN_FLIGHT, granted)
    work.count(group.queue, Kind.of(Kind.GRANTS, dead=dead), len(members))
    if record.keyed:
        work.close_keys(group, members)
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
    work.acked.add(group.queue)


def fail(
    work: Work,
    group: DeliveryGroup,
    members: Sequence[int],
    transition: Transition,
    error: str | None,
    record: DeliveryRecord | None = None,
) -> None:
    """Fail: move to the dead letters (D1). ``record`` overrides the group's."""
    record = record or group.record
    mark = Mark.of(
        work.now, transition, State.FAILED, dead=False, consumer=record.consumer, error=error
    )
    failed = replace(
        _ended(record),
        at=work.now,
        error=record.error if error is None else error,
        marks=record.marked(mark),
    )
    work.move(group, members, Phase.DEAD_RETURNED, failed)
    work.count(group.queue, Kind.FAILURES, len(members))


def exhaust(work: Work, queue: Queue, group: DeliveryGroup, members: Sequence[int]) -> None:
    """Fail waiting deliveries: ``max_attempts`` was lowered, and no attempts are left."""
    fail(work, group, members, Transition.EXHAUST, queue.policy.lowered_limit_error)


def expire(
    work: Work,
    group: DeliveryGroup,
    members: Sequence[int],
    transition: Transition,
    error: str | None = None,
    record: DeliveryRecord | None = None,
) -> None:
    """Expire: past ``expires_at``, never delivered again (C3). ``record`` overrides the group's."""
    record = record or group.record
    mark = Mark.of(
        work.now, transition, State.EXPIRED, dead=False, consumer=record.consumer, error=error
    )
    expired = replace(_ended(record), at=work.now, lease=0, marks=record.marked(mark))
    work.move(group, members, Phase.EXPIRED, expired)
    if record.keyed:
        work.close_keys(group, members)


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
    *,
    delay_ms: int = 0,
    error: str | None = None,
    record: DeliveryRecord | None = None,
) -> State:
    """End a claim without an ack: back to the queue, or failed, or expired.

    ``record`` overrides the group's.
    """
    record = record or group.record
    dead = is_dead(group.phase)
    if transition is Transition.LAPSE:
        work.lapsed[group.queue, dead] += len(members)
    if transition is Transition.RELEASE:
        record = replace(record, released=record.released + 1)
    if not dead:
        exhausted = transition is not Transition.RELEASE and is_exhausted(queue, record)
        if exhausted or record.attempts >= MAX_ATTEMPTS:
            last_error = LEASE_EXPIRED if transition is Transition.LAPSE else error
            fail(work, group, members, transition, last_error, record)
            return State.FAILED
        if error is not None:
            record = replace(record, error=error)
        if is_expired(record, work.now):
            expire(work, group, members, transition, error, record)
            return State.EXPIRED
    elif error is not None:
        record = replace(record, error=error)
    state = State.DELAYED if delay_ms > 0 else State.AVAILABLE
    mark = Mark.of(work.now, transition, state, dead=dead, consumer=record.consumer, error=error)
    returned = replace(
        _ended(record),
        due_at=work.now + delay_ms if delay_ms > 0 else None,
        marks=record.marked(mark),
    )
    phase = Phase.DELAYED if delay_ms > 0 else Phase.RETURNED
    work.move(group, members, Phase(phase + DEAD) if dead else phase, returned)
    return state


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
