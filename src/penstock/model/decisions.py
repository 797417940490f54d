"""What becomes of a delivery: the rules that every engine applies (C2, C3, D1).

The functions are pure, so that an engine decides first and changes its records afterwards. ``dead``
says that the delivery is in a dead-letter queue, where attempts are not limited and nothing
expires. The tests compare every decision with the table of transitions (``model/states.py``). The
oracle has its own rules, so that a mistake here is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from penstock.model.delivery import Nack, Reject, Release
from penstock.model.limits import MAX_ATTEMPTS, MAX_TIME_MS, cut_error
from penstock.model.queue import Ordering, QueuePolicy
from penstock.model.states import State, Transition

__all__ = [
    "LEASE_EXPIRED",
    "Ending",
    "Jitter",
    "dead_letter_policy",
    "end_of_claim",
    "exhausted",
    "expiry_in_queue",
    "extended_deadline",
    "is_exhausted",
    "is_expired",
    "lease_for",
    "lowered_limit_error",
    "replay_due_at",
    "replay_expires_at",
    "retained_after",
    "returned_by",
    "transition_of",
]

#: Picks a wait between 0 and the ceiling it is given.
Jitter: TypeAlias = Callable[[int], int]

#: The error of a delivery whose last claim lapsed.
LEASE_EXPIRED: Final = "lease expired"

_TRANSITIONS: Final = {
    Nack: Transition.NACK,
    Reject: Transition.REJECT,
    Release: Transition.RELEASE,
}


class Ending(NamedTuple):
    """What becomes of a delivery whose claim ends without an ack."""

    state: State
    error: str | None
    """The error to record; None keeps the previous one."""
    due_at: int | None
    """When a delayed delivery is due."""
    removed: bool = False
    """Whether the delivery failed and is not kept: its queue has no dead letters."""


def is_expired(expires_at: int | None, now: int) -> bool:
    """Whether a delivery must not be delivered any more (C3). Does not apply to dead letters."""
    return expires_at is not None and expires_at <= now


def expiry_in_queue(policy: QueuePolicy, expires_at: int | None, now: int) -> int | None:
    """When a delivery that enters the queue now expires there.

    ``expires_at`` is the message's. The queue's ``message_ttl_ms`` can only shorten it.
    """
    if policy.message_ttl_ms is None:
        return expires_at
    end = min(now + policy.message_ttl_ms, MAX_TIME_MS)
    return end if expires_at is None else min(end, expires_at)


def is_exhausted(
    policy: QueuePolicy, max_attempts: int | None, attempts: int, released: int
) -> bool:
    """Whether no attempts are left (C2). Does not apply to dead letters.

    ``max_attempts`` is the message's own limit, which overrides the queue's.
    """
    most = policy.max_attempts if max_attempts is None else max_attempts
    return attempts - released >= most or attempts >= MAX_ATTEMPTS


def lowered_limit_error(policy: QueuePolicy, max_attempts: int | None) -> str:
    """The error of a waiting delivery that fails because ``max_attempts`` was lowered.

    ``max_attempts`` is the message's own limit.
    """
    return f"max_attempts was lowered to {max_attempts or policy.max_attempts}"


def exhausted(policy: QueuePolicy, max_attempts: int | None) -> Ending:
    """What becomes of a waiting delivery without attempts left: ``max_attempts`` was lowered.

    ``max_attempts`` is the message's own limit.
    """
    return _failed(policy, lowered_limit_error(policy, max_attempts))


def lease_for(policy: QueuePolicy, asked_ms: int | None) -> int:
    """The lease of a claim that asks for this one, or for the default."""
    wanted_ms = policy.lease_ms if asked_ms is None else asked_ms
    return min(max(wanted_ms, policy.min_lease_ms), policy.max_lease_ms)


def extended_deadline(
    policy: QueuePolicy, claimed_at: int, asked_ms: int | None, now: int
) -> int | None:
    """The new deadline of a claim; None if it has been held for ``max_lease_ms``."""
    last = claimed_at + policy.max_lease_ms
    return min(now + lease_for(policy, asked_ms), last) if now < last else None


def transition_of(item: Nack | Reject | Release) -> Transition:
    """The transition that the settlement asks for."""
    return _TRANSITIONS[type(item)]


def returned_by(
    item: Nack | Reject | Release,
    policy: QueuePolicy,
    attempts: int,
    jitter: Jitter,
    *,
    dead: bool,
) -> tuple[Transition, str | None, int]:
    """The transition that the settlement asks for, its error, and its delay or the backoff."""
    error = None if isinstance(item, Release) else item.error
    asked_ms = None if isinstance(item, Reject) else item.delay_ms
    if asked_ms is None and isinstance(item, Nack) and not dead:
        asked_ms = jitter(policy.backoff.ceiling_ms(attempts))
    return transition_of(item), error, asked_ms or 0


def end_of_claim(
    transition: Transition,
    policy: QueuePolicy,
    *,
    dead: bool,
    max_attempts: int | None,
    attempts: int,
    released: int,
    expires_at: int | None,
    now: int,
    error: str | None = None,
    delay_ms: int = 0,
) -> Ending:
    """Decide what a nack, reject, release or lapse makes of a delivery in flight."""
    error = None if error is None else cut_error(error)
    if not dead:
        if transition is Transition.RELEASE:
            fails = attempts >= MAX_ATTEMPTS
        else:
            fails = transition is Transition.REJECT or is_exhausted(
                policy, max_attempts, attempts, released
            )
        if fails:
            lapsed = transition is Transition.LAPSE
            return _failed(policy, LEASE_EXPIRED if lapsed else error)
        if is_expired(expires_at, now):
            return Ending(State.EXPIRED, error, None)
    if delay_ms > 0:
        return Ending(State.DELAYED, error, now + delay_ms)
    return Ending(State.AVAILABLE, error, None)


def _failed(policy: QueuePolicy, error: str | None) -> Ending:
    return Ending(State.FAILED, error, None, removed=not policy.dead_letters)


def replay_due_at(deliver_at: int, now: int, nth: int, rate: int | None) -> int:
    """When the ``nth`` delivery of a replay is due, at ``rate`` deliveries per second."""
    return max(deliver_at, now + (nth * 1000 // rate if rate else 0))


def replay_expires_at(expires_at: int | None, due_at: int, ttl_ms: int | None) -> int | None:
    """When a replayed delivery expires: as before, or ``ttl_ms`` after it is due."""
    return expires_at if ttl_ms is None else min(due_at + ttl_ms, MAX_TIME_MS)


def retained_after(policy: QueuePolicy, state: State, now: int) -> int | None:
    """The time at and before which retention removes what entered ``state``.

    None if it is kept forever.
    """
    kept_s = policy.failed_retention_s if state is State.FAILED else policy.done_retention_s
    return now - kept_s * 1000 if kept_s else None


def dead_letter_policy(policy: QueuePolicy, *, paused: bool) -> QueuePolicy:
    """The policy of a dead-letter queue, derived from that of its queue."""
    return replace(policy, max_attempts=MAX_ATTEMPTS, ordering=Ordering.NONE, paused=paused)
