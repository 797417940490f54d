"""Moves: every transition of deliveries, for whole runs or parts of them.

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
from penstock.storage.sql.deliveries import DEAD, Kind, Life, Mark, Phase, Run, is_dead
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


def is_expired(life: Life, now: int) -> bool:
    """Whether it is past its expiry and must not be delivered (C3)."""
    return life.expires_at is not None and life.expires_at <= now


def is_exhausted(queue: Queue, life: Life) -> bool:
    """Whether no attempts are left; released grants do not count."""
    return life.attempts - life.released >= queue.policy.max_attempts


def grant(
    work: Work, run: Run, members: Sequence[int], consumer: str, deadline: int, lease: int
) -> Life:
    """Hand out: a new claim, and one more attempt (C1, C2)."""
    dead = is_dead(run.phase)
    life = run.life
    mark = Mark.of(work.now, Transition.CLAIM, State.IN_FLIGHT, dead=dead, consumer=consumer)
    granted = replace(
        life,
        attempts=min(life.attempts + 1, MAX_ATTEMPTS),
        lease=lease,
        seat=lease,
        claimed_at=work.now,
        consumer=consumer,
        deadline=deadline,
        due_at=None,
        marks=life.marked(mark),
    )
    work.move(run, members, Phase.DEAD_IN_FLIGHT if dead else Phase.IN_FLIGHT, granted)
    work.count(run.queue, Kind.of(Kind.GRANTS, dead=dead), len(members))
    if life.keyed:
        work.close_keys(run, members)
    return granted


def _ended(life: Life) -> Life:
    """The record after the end of a claim."""
    return replace(
        life, claimed_at=None, consumer=None, deadline=None, due_at=None, result=None, seat=0
    )


def finish(work: Work, run: Run, members: Sequence[int], result: bytes | None) -> None:
    """Ack."""
    dead = is_dead(run.phase)
    mark = Mark.of(work.now, Transition.ACK, State.DONE, dead=dead, consumer=run.life.consumer)
    life = replace(_ended(run.life), at=work.now, result=result, marks=run.life.marked(mark))
    work.move(run, members, Phase.DEAD_DONE if dead else Phase.DONE, life)
    work.count(run.queue, Kind.of(Kind.ACKS, dead=dead), len(members))
    work.acked.add(run.queue)


def fail(
    work: Work,
    run: Run,
    members: Sequence[int],
    transition: Transition,
    error: str | None,
    life: Life | None = None,
) -> None:
    """Fail: move to the dead letters (D1). ``life`` overrides the run's."""
    life = life or run.life
    mark = Mark.of(
        work.now, transition, State.FAILED, dead=False, consumer=life.consumer, error=error
    )
    failed = replace(
        _ended(life),
        at=work.now,
        error=life.error if error is None else error,
        marks=life.marked(mark),
    )
    work.move(run, members, Phase.DEAD_RETURNED, failed)
    work.count(run.queue, Kind.FAILURES, len(members))


def exhaust(work: Work, queue: Queue, run: Run, members: Sequence[int]) -> None:
    """Fail waiting deliveries: ``max_attempts`` was lowered, and no attempts are left."""
    fail(work, run, members, Transition.EXHAUST, queue.policy.lowered_limit_error)


def expire(
    work: Work,
    run: Run,
    members: Sequence[int],
    transition: Transition,
    error: str | None = None,
    life: Life | None = None,
) -> None:
    """Expire: past ``expires_at``, never delivered again (C3). ``life`` overrides the run's."""
    life = life or run.life
    mark = Mark.of(
        work.now, transition, State.EXPIRED, dead=False, consumer=life.consumer, error=error
    )
    expired = replace(_ended(life), at=work.now, lease=0, marks=life.marked(mark))
    work.move(run, members, Phase.EXPIRED, expired)
    if life.keyed:
        work.close_keys(run, members)


def make_due(work: Work, run: Run, members: Sequence[int]) -> None:
    """End a delay."""
    phase = Phase.DEAD_RETURNED if is_dead(run.phase) else Phase.RETURNED
    work.move(run, members, phase, replace(run.life, due_at=None))


def give_back(
    work: Work,
    queue: Queue,
    run: Run,
    members: Sequence[int],
    transition: Transition,
    *,
    delay_ms: int = 0,
    error: str | None = None,
    life: Life | None = None,
) -> State:
    """End a claim without an ack: back to the queue, or failed, or expired.

    ``life`` overrides the run's.
    """
    life = life or run.life
    dead = is_dead(run.phase)
    if transition is Transition.LAPSE:
        work.lapsed[run.queue, dead] += len(members)
    if transition is Transition.RELEASE:
        life = replace(life, released=life.released + 1)
    if not dead:
        exhausted = transition is not Transition.RELEASE and is_exhausted(queue, life)
        if exhausted or life.attempts >= MAX_ATTEMPTS:
            last_error = LEASE_EXPIRED if transition is Transition.LAPSE else error
            fail(work, run, members, transition, last_error, life)
            return State.FAILED
        if error is not None:
            life = replace(life, error=error)
        if is_expired(life, work.now):
            expire(work, run, members, transition, error, life)
            return State.EXPIRED
    elif error is not None:
        life = replace(life, error=error)
    state = State.DELAYED if delay_ms > 0 else State.AVAILABLE
    mark = Mark.of(work.now, transition, state, dead=dead, consumer=life.consumer, error=error)
    returned = replace(
        _ended(life),
        due_at=work.now + delay_ms if delay_ms > 0 else None,
        marks=life.marked(mark),
    )
    phase = Phase.DELAYED if delay_ms > 0 else Phase.RETURNED
    work.move(run, members, Phase(phase + DEAD) if dead else phase, returned)
    return state


def let_time_act(work: Work, queue: Queue, run: Run) -> Transition | None:
    """Make a run due, lapse or expire if its time has come; None if nothing happens."""
    now, life = work.now, run.life
    members = work.left(run)
    match run.phase:
        case Phase.FRESH | Phase.RETURNED | Phase.DELAYED if is_expired(life, now):
            expire(work, run, members, Transition.EXPIRE)
            return Transition.EXPIRE
        case Phase.DELAYED | Phase.DEAD_DELAYED if life.due_at is not None and life.due_at <= now:
            make_due(work, run, members)
            return Transition.DUE
        case Phase.IN_FLIGHT | Phase.DEAD_IN_FLIGHT if (life.deadline or 0) <= now:
            give_back(work, queue, run, members, Transition.LAPSE)
            return Transition.LAPSE
        case _:
            return None
