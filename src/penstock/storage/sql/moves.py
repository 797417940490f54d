"""Moves: every transition of deliveries, for whole runs or parts of them.

The functions do not check whether the verb may make the transition. Each leaves its deliveries in
one state (S3), appends one mark to their history, and records which queues to notify.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.model import decisions
from penstock.model.decisions import Ending, end_of_claim, lowered_limit_error
from penstock.model.limits import MAX_ATTEMPTS
from penstock.model.states import State, Transition
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.phases import DEAD, LIVE, Phase, is_dead
from penstock.storage.sql.runs import Life, Mark, Run
from penstock.storage.sql.tally import Kind
from penstock.storage.sql.work import Work

__all__ = [
    "exhaust",
    "expire",
    "finish",
    "give_back",
    "grant",
    "is_exhausted",
    "is_expired",
    "let_time_act",
    "make_due",
    "remove",
]


def is_expired(life: Life, now: int) -> bool:
    """Whether it is past its expiry and must not be delivered (C3)."""
    return decisions.is_expired(life.expires_at, now)


def is_exhausted(queue: Queue, life: Life) -> bool:
    """Whether no attempts are left; released grants do not count."""
    return decisions.is_exhausted(queue.policy, life.attempts, life.released)


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


def exhaust(work: Work, queue: Queue, run: Run, members: Sequence[int]) -> None:
    """Fail waiting deliveries: ``max_attempts`` was lowered, and no attempts are left."""
    ending = Ending(State.FAILED, lowered_limit_error(queue.policy), None)
    _end(work, run, members, Transition.EXHAUST, ending, run.life)


def expire(work: Work, run: Run, members: Sequence[int], transition: Transition) -> None:
    """Expire: past ``expires_at``, never delivered again (C3)."""
    _end(work, run, members, transition, Ending(State.EXPIRED, None, None), run.life)


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
    error: str | None = None,
    delay_ms: int = 0,
    *,
    life: Life | None = None,
) -> Ending:
    """End a claim without an ack: back to the queue, to failed (D1), or to expired.

    ``life`` overrides the run's.
    """
    life = life or run.life
    dead = is_dead(run.phase)
    if transition is Transition.LAPSE:
        work.lapsed[run.queue, dead] += len(members)
    elif transition is Transition.NACK:
        work.count(run.queue, Kind.of(Kind.NACKS, dead=dead), len(members))
    elif transition is Transition.RELEASE:
        life = replace(life, released=life.released + 1)
    ending = end_of_claim(
        transition,
        queue.policy,
        dead=dead,
        attempts=life.attempts,
        released=life.released,
        expires_at=life.expires_at,
        now=work.now,
        error=error,
        delay_ms=delay_ms,
    )
    _end(work, run, members, transition, ending, life)
    return ending


def _end(
    work: Work,
    run: Run,
    members: Sequence[int],
    transition: Transition,
    ending: Ending,
    life: Life,
) -> None:
    """Move deliveries to where their claim, or their time in the queue, ends."""
    state, error, due_at = ending
    dead = is_dead(run.phase)
    mark = Mark.of(work.now, transition, state, dead=dead, consumer=life.consumer, error=error)
    ended = replace(
        _ended(life),
        due_at=due_at,
        error=life.error if error is None else error,
        marks=life.marked(mark),
    )
    match state:
        case State.FAILED:
            phase, ended = Phase.DEAD_RETURNED, replace(ended, at=work.now)
            work.count(run.queue, Kind.FAILURES, len(members))
        case State.EXPIRED:
            phase, ended = Phase.EXPIRED, replace(ended, at=work.now, lease=0)
        case _:
            phase = Phase.RETURNED if due_at is None else Phase.DELAYED
            phase = Phase(phase + DEAD) if dead else phase
    work.move(run, members, phase, ended)
    if state is State.EXPIRED and life.keyed:
        work.close_keys(run, members)


def remove(work: Work, run: Run, members: Sequence[int]) -> None:
    """Remove deliveries: by purge or retention. The keys of those never handed out are closed."""
    if run.life.keyed and run.phase in LIVE:
        work.close_keys(run, members)
    work.drop(run, members)


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
