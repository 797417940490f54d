"""Every transition of a delivery, and the effects of time.

The callers decide whether a verb may make a transition. Each function leaves the delivery in
exactly one state (S3) and records one event.
"""

from __future__ import annotations

from penstock.model.delivery import Event
from penstock.model.limits import MAX_ATTEMPTS, MAX_EVENT_ERROR_CHARS
from penstock.model.message import Message
from penstock.model.queue import RetryPosition
from penstock.model.states import State, Transition
from penstock.testing.oracle.state import Ended, Held, Queue, Store, Tally

__all__ = [
    "LEASE_EXPIRED",
    "add",
    "close_key",
    "expire",
    "fail",
    "forget_empty_partitions",
    "give_back",
    "is_exhausted",
    "is_expired",
    "let_time_act",
    "note",
    "remove",
    "report",
    "ttl_ends",
]

#: The error of a delivery that failed because its last claim lapsed.
LEASE_EXPIRED = "lease expired"


def is_expired(message: Message, now: int) -> bool:
    """Whether the message may no longer be delivered (C3)."""
    return message.expires_at is not None and message.expires_at <= now


def is_exhausted(store: Store, queue: Queue, held: Held) -> bool:
    """Whether no attempts are left; released grants do not count."""
    own = store.message(queue, held).max_attempts
    return held.attempts - held.released >= (own or queue.policy.max_attempts)


def ttl_ends(queue: Queue, now: int) -> int | None:
    """When a delivery that enters the queue now expires by the queue's ttl."""
    ttl_ms = queue.policy.message_ttl_ms
    return None if ttl_ms is None else now + ttl_ms


def note(
    queue: Queue,
    held: Held,
    transition: Transition,
    now: int,
    *,
    state: State | None = None,
    consumer: str | None = None,
    error: str | None = None,
    dead: bool | None = None,
) -> None:
    """Record an event; ``state`` and ``dead`` default to those of the delivery."""
    dead = held.dead if dead is None else dead
    if transition is Transition.LAPSE:
        queue.counters_of(dead=dead).lapses += 1
    event = Event(
        at=now,
        queue=queue.shown_as(dead=dead),
        transition=transition,
        state=held.state if state is None else state,
        consumer=consumer,
        error=None if error is None else error[:MAX_EVENT_ERROR_CHARS],
    )
    held.events = (*held.events, event)


def close_key(store: Store, queue: Queue, held: Held) -> None:
    """Close the message's key: the next publish of the key is a new message."""
    message = store.message(queue, held)
    if message.key is None:
        return
    key = (queue.tenant, message.topic, message.key)
    if store.keys.get(key) == message.id:
        del store.keys[key]


def forget_empty_partitions(store: Store, queue: Queue) -> None:
    """Remove the owners of partitions with nothing left to deliver."""
    waiting = store.partitions(queue)
    queue.owners = {p: owner for p, owner in queue.owners.items() if p in waiting}


def add(queue: Queue, message: Message, now: int) -> None:
    """Add the message to the queue."""
    delayed = message.deliver_at > now
    queue.deliveries[message.id] = Held(
        message_id=message.id,
        state=State.DELAYED if delayed else State.AVAILABLE,
        due_at=message.deliver_at if delayed else None,
        ttl_ends=ttl_ends(queue, now),
    )


def remove(store: Store, queue: Queue, held: Held) -> None:
    """Remove the delivery and all its data."""
    del queue.deliveries[held.message_id]
    forget_empty_partitions(store, queue)


def _end_claim(held: Held) -> None:
    held.claimed_at = held.lease_deadline = held.consumer = held.due_at = held.position = None


def fail(
    store: Store, queue: Queue, held: Held, transition: Transition, now: int, error: str | None
) -> None:
    """Move the delivery to the dead-letter queue (D1), or remove it if there is none."""
    close_key(store, queue, held)
    consumer = held.consumer
    _end_claim(held)
    held.receipt = None
    held.state, held.dead, held.at = State.AVAILABLE, True, now
    held.error = held.error if error is None else error
    queue.counters.failures += 1
    note(
        queue, held, transition, now, state=State.FAILED, consumer=consumer, error=error, dead=False
    )
    _copy(store, queue, held, State.FAILED, transition)
    gone = not queue.policy.dead_letters and queue.cursor is None
    report(store, queue, held, State.FAILED, is_kept=not gone)
    if gone:
        del queue.deliveries[held.message_id]
    forget_empty_partitions(store, queue)


def _copy(store: Store, queue: Queue, held: Held, state: State, transition: Transition) -> None:
    """Note a copy for the queue's dead-letter topic; messages of that topic are not copied."""
    topic = queue.policy.dead_letter_topic
    entry = store.newest(queue.tenant, held.message_id)
    if topic not in (None, entry.message.topic):
        ended = Ended(
            *(queue.tenant, queue.name, str(topic), entry, state.value, transition.value),
            *(held.error, held.attempts),
        )
        store.ended.append(ended)


def report(store: Store, queue: Queue, held: Held, state: State, *, is_kept: bool = True) -> None:
    """Note an event, if the queue reports this end; the ends of events are never reported."""
    entry = store.newest(queue.tenant, held.message_id)
    if str(state) in queue.policy.events and entry.message.topic != "penstock.events":
        ended = Ended(
            *(queue.tenant, queue.name, "penstock.events", entry, str(state), ""),
            *(held.error, held.attempts, is_kept),
        )
        store.ended.append(ended)


def expire(
    store: Store,
    queue: Queue,
    held: Held,
    transition: Transition,
    now: int,
    error: str | None = None,
) -> None:
    """Expire a delivery past ``expires_at``: it is never delivered again (C3)."""
    close_key(store, queue, held)
    consumer = held.consumer
    _end_claim(held)
    held.receipt = None
    held.state, held.at = State.EXPIRED, now
    note(queue, held, transition, now, consumer=consumer, error=error)
    if queue.policy.dead_letter_expired:
        _copy(store, queue, held, State.EXPIRED, transition)
    report(store, queue, held, State.EXPIRED)
    forget_empty_partitions(store, queue)


def give_back(
    store: Store,
    queue: Queue,
    held: Held,
    transition: Transition,
    now: int,
    *,
    delay_ms: int = 0,
    error: str | None = None,
) -> None:
    """End a claim without an ack: to the queue, to failed, or to expired."""
    if transition is Transition.RELEASE:
        held.released += 1
    if held.dead:
        _return(store, queue, held, transition, now, delay_ms, error)
        return
    exhausted = transition is not Transition.RELEASE and is_exhausted(store, queue, held)
    if exhausted or held.attempts >= MAX_ATTEMPTS:
        last_error = LEASE_EXPIRED if transition is Transition.LAPSE else error
        fail(store, queue, held, transition, now, last_error)
        return
    held.error = held.error if error is None else error
    if is_expired(store.message(queue, held), now):
        expire(store, queue, held, transition, now, error)
    else:
        _return(store, queue, held, transition, now, delay_ms, error)


def _return(
    store: Store,
    queue: Queue,
    held: Held,
    transition: Transition,
    now: int,
    delay_ms: int,
    error: str | None,
) -> None:
    consumer = held.consumer
    _end_claim(held)
    held.receipt = None
    held.error = held.error if error is None else error
    held.state = State.DELAYED if delay_ms > 0 else State.AVAILABLE
    held.due_at = now + delay_ms if delay_ms > 0 else None
    if queue.policy.retry_position is RetryPosition.BACK and not held.dead:
        held.position = store.draw_position()
    note(queue, held, transition, now, consumer=consumer, error=error)


def let_time_act(store: Store, queue: Queue, now: int, tally: Tally, *, dead: bool) -> None:
    """Move due, lapsed and expired deliveries. Dead letters do not expire."""
    # Leases that lapse together end in the order of their deadlines, then of publish.
    for held in sorted(queue.held(dead=dead), key=lambda d: d.lease_deadline or 0):
        waits = held.state in (State.DELAYED, State.AVAILABLE)
        if waits and not dead and is_expired(store.message(queue, held), now):
            if not tally.may_go_on():
                return
            expire(store, queue, held, Transition.EXPIRE, now)
            tally.expired += 1
        elif held.state is State.DELAYED and held.due_at is not None and held.due_at <= now:
            if not tally.may_go_on():
                return
            held.state, held.due_at = State.AVAILABLE, None
            tally.due += 1
        elif held.state is State.IN_FLIGHT and (held.lease_deadline or 0) <= now:
            if not tally.may_go_on():
                return
            give_back(store, queue, held, Transition.LAPSE, now)
            tally.lapsed += 1
