"""The moves: every transition of a delivery, each changing all its records together (S3).

A move never awaits, so a verb is one commit. A move reads everything it needs before it changes
anything, so that an unreadable record (X1) stops it while the delivery is still in its old state.
The broker has the checks that need no state; these functions assume that the delivery is in the
state they name.
"""

from __future__ import annotations

from penstock.model.limits import MAX_ATTEMPTS
from penstock.model.message import Message
from penstock.model.states import State, Transition
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import LANE_SPAN, claim_id_of, open_key
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.storage.keyvalue.partitions import Partitions
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import AVAILABLE, Logged
from penstock.storage.keyvalue.trail import Trail

__all__ = [
    "assign",
    "assign_many",
    "come_back",
    "drop_available",
    "drop_delayed",
    "exhaust",
    "expire_available",
    "expire_some",
    "fail",
    "finish",
    "finish_many",
    "free_departed",
    "heartbeat",
    "is_exhausted",
    "is_expired",
    "key_to_close",
    "lapse",
    "lapse_some",
    "let_time_pass",
    "make_some_due",
    "release",
    "remember_ack",
    "revive",
]


def assign(queue: Queue, message: Message, metadata: bytes, now: int) -> Entry:
    """Route a message into the queue, as available or as delayed until it is due."""
    claim_id = claim_id_of(queue.policy.bucket_size, message.priority, message.id)
    entry = Entry.waiting(message.id, claim_id, 0, metadata, message)
    if message.deliver_at > now:
        queue.make_delayed(entry, message.deliver_at)
    else:
        queue.make_available(entry)
    if message.expires_at is not None:
        queue.watch_expiry(entry)
    if queue.partitions is not None:
        queue.partitions.added(entry)
    return entry


def assign_many(queue: Queue, batch: list[Logged], now: int) -> None:
    """``assign`` for a batch of a publish; adds available messages without expiry together."""
    if queue.partitions is not None:
        for message, metadata in batch:
            assign(queue, message, metadata, now)
        return
    first = claim_id_of(queue.policy.bucket_size, 0, 0)
    entries = []
    for message, metadata in batch:
        if message.deliver_at > now or message.expires_at is not None:
            assign(queue, message, metadata, now)
        else:
            # claim_id_of and Entry.waiting inlined: saves 0.2 of 0.6 µs per message.
            message_id = message.id
            claim_id = first - message.priority * LANE_SPAN + message_id
            head = AVAILABLE.pack(message_id, claim_id, 0, len(metadata))
            entries.append(Entry(message_id, claim_id, 0, metadata, head + metadata, message))
    if entries:
        queue.make_many_available(entries)


def finish(queue: Queue, entry: Entry, now: int, result: bytes | None) -> None:
    """Ack: in flight to done."""
    queue.done.load(entry.claim_id)
    queue.take_in_flight(entry)
    _leave_live(queue, entry)
    queue.done.add(entry.claim_id, now, entry.settled(now))
    queue.done_count += 1
    queue.acks += 1
    if result is not None:
        queue.write_result(entry.message_id, result)


def finish_many(queue: Queue, entries: list[Entry], now: int) -> None:
    """``finish`` without results for many deliveries; not for ordered queues.

    Takes a third of the time: a settle of a hundred acks touches one or two buckets.
    """
    for entry in entries:
        queue.done.load(entry.claim_id)
    queue.take_many_in_flight(entries)
    for entry in entries:
        queue.unwatch_expiry(entry)
    queue.done.add_many(entries, now)
    queue.done_count += len(entries)
    queue.acks += len(entries)


def come_back(
    queue: Queue,
    entry: Entry,
    now: int,
    transition: Transition,
    *,
    error: str | None = None,
    delay_ms: int = 0,
) -> State:
    """In flight to available or delayed, or to expired if it is past ``expires_at``."""
    trail = queue.trail(entry.message_id)
    if not queue.is_dead_letter and is_expired(entry, now):
        queue.expired.load(entry.claim_id)
        queue.take_in_flight(entry)
        _expire(queue, entry, now, transition, error, trail)
        return State.EXPIRED
    queue.take_in_flight(entry)
    state = State.DELAYED if delay_ms > 0 else State.AVAILABLE
    _leave_mark(queue, entry, now, transition, state, error, trail)
    entry.rest()
    if delay_ms > 0:
        queue.make_delayed(entry, now + delay_ms)
    else:
        queue.make_available(entry)
    return state


def fail(queue: Queue, entry: Entry, now: int, transition: Transition, error: str | None) -> State:
    """In flight to failed: moves it to the dead-letter queue (D1)."""
    if queue.dead is None:
        return come_back(queue, entry, now, transition, error=error)
    trail = queue.trail(entry.message_id)
    queue.dead.shelf.load(entry.claim_id)
    queue.take_in_flight(entry)
    _fail(queue, queue.dead, entry, now, transition, error, trail)
    return State.FAILED


def release(queue: Queue, entry: Entry, now: int) -> State:
    """In flight to available without counting the grant (C2)."""
    if entry.attempts >= MAX_ATTEMPTS and not queue.is_dead_letter:
        return fail(queue, entry, now, Transition.RELEASE, None)
    return come_back(queue, entry, now, Transition.RELEASE)


def lapse(queue: Queue, entry: Entry, now: int) -> State:
    """Take a lapsed lease back: to available, or to failed if no attempts are left."""
    if is_exhausted(queue, entry):
        return fail(queue, entry, now, Transition.LAPSE, "lease expired")
    return come_back(queue, entry, now, Transition.LAPSE)


def is_exhausted(queue: Queue, entry: Entry) -> bool:
    """Whether no attempts are left. Released grants and dead letters do not count."""
    if queue.is_dead_letter or entry.attempts < queue.policy.max_attempts:
        return False
    if entry.attempts >= MAX_ATTEMPTS:
        return True
    released = queue.trail(entry.message_id).released
    return entry.attempts - released >= queue.policy.max_attempts


def exhaust(queue: Queue, entry: Entry, now: int) -> None:
    """Available to failed: ``max_attempts`` was lowered, and no attempts are left."""
    assert queue.dead is not None, "max_attempts does not apply to dead letters"
    trail = queue.trail(entry.message_id)
    queue.dead.shelf.load(entry.claim_id)
    queue.take_available(entry.claim_id)
    error = queue.policy.lowered_limit_error
    _fail(queue, queue.dead, entry, now, Transition.EXHAUST, error, trail)


def expire_available(queue: Queue, entry: Entry, now: int) -> None:
    """Available to expired."""
    trail, key = _look_at_waiting(queue, entry)
    queue.take_available(entry.claim_id)
    _expire(queue, entry, now, Transition.EXPIRE, None, trail)
    _close(queue, key)


def expire_delayed(queue: Queue, entry: Entry, due_at: int, now: int) -> None:
    """Delayed to expired."""
    trail, key = _look_at_waiting(queue, entry)
    queue.take_delayed(due_at, entry.claim_id)
    _expire(queue, entry, now, Transition.EXPIRE, None, trail)
    _close(queue, key)


def revive(
    queue: Queue, message_id: int, priority: int, metadata: bytes, now: int, due_at: int
) -> Entry:
    """Replay: into the queue again at its old position, with attempts 0."""
    claim_id = claim_id_of(queue.policy.bucket_size, priority, message_id)
    entry = Entry.waiting(message_id, claim_id, 0, metadata)
    entry.at = now
    state = State.DELAYED if due_at > now else State.AVAILABLE
    queue.home.replays += 1
    queue.home.touch()
    _leave_mark(queue, entry, now, Transition.REPLAY, state, None, queue.trail(message_id))
    queue.stage.delete(queue.keys.result + message_id.to_bytes(8, "big"))
    if due_at > now:
        queue.make_delayed(entry, due_at)
    else:
        queue.make_available(entry)
    queue.watch_expiry(entry)
    if queue.partitions is not None:
        queue.partitions.added(entry)
    return entry


def remember_ack(queue: Queue, message_id: int, done_at: int) -> None:
    """Record the ack of a done delivery in the trail before a replay removes its done record."""
    trail = queue.trail(message_id)
    dead = queue.is_dead_letter
    trail = trail.then(done_at, Transition.ACK, State.DONE, None, 0, dead=dead)
    queue.write_trail(message_id, trail)


def drop_available(queue: Queue, claim_id: int) -> None:
    """Remove an available delivery."""
    entry = queue.shelf.get(claim_id)
    key = key_to_close(queue, entry.message)
    queue.take_available(claim_id)
    _drop(queue, entry, key)


def drop_delayed(queue: Queue, due_at: int, entry: Entry) -> None:
    """Remove a delayed delivery."""
    key = key_to_close(queue, entry.message)
    queue.take_delayed(due_at, entry.claim_id)
    _drop(queue, entry, key)


def let_time_pass(queue: Queue, now: int, limit: int) -> bool:
    """Move due, lapsed and expired deliveries, up to ``limit`` of each.

    Returns whether there may be more.
    """
    more = lapse_some(queue, now, limit) == limit
    if queue.partitions is not None:
        queue.partitions.drop_dead(now)
        free_departed(queue, queue.partitions, now)
    # Compared here too, because every claim does, and most queues have no timers.
    if queue.next_due is not None and queue.next_due <= now:
        more |= make_some_due(queue, now, limit) == limit
    if queue.next_expiry is not None and queue.next_expiry <= now:
        more |= expire_some(queue, now, limit)[0] == limit
    return more


def lapse_some(queue: Queue, now: int, limit: int) -> int:
    """Take back deliveries whose leases have ended. Returns how many."""
    first = queue.deadlines.next
    if first is None or first > now:
        return 0
    entries = queue.deadlines.lapsed(now, limit)
    for entry in entries:
        lapse(queue, entry, now)
    queue.lapsed(len(entries))
    return len(entries)


def make_some_due(queue: Queue, now: int, limit: int) -> int:
    """Make due delayed deliveries available. Returns how many."""
    if queue.next_due is None or queue.next_due > now:
        return 0
    found = queue.due_index.up_to(now, limit)
    for due_at, claim_id, value in found:
        entry = queue.delayed_entry(value)
        queue.shelf.load(claim_id)
        queue.take_delayed(due_at, claim_id)
        queue.make_available(entry)
    queue.refresh_timers()
    return len(found)


def expire_some(queue: Queue, now: int, limit: int) -> tuple[int, int]:
    """Expire deliveries past ``expires_at``. Returns how many it examined and expired."""
    if queue.next_expiry is None or queue.next_expiry > now:
        return 0, 0
    found = queue.expiry_index.up_to(now, limit)
    expired = sum(_expire_now(queue, at, claim_id, now) for at, claim_id, _ in found)
    queue.refresh_timers()
    return len(found), expired


def heartbeat(queue: Queue, partitions: Partitions, consumer: str, now: int) -> bool:
    """Join an ordered queue or renew; dead consumers and excess partitions are released (O1).

    Returns whether the caller must call again, in another turn, because partitions still have to be
    moved or re-evaluated before the consumer has its share and a claim is cheap.
    """
    lost, more = partitions.join(
        consumer,
        now,
        lapse=lambda entry: lapse(queue, entry, now),
        release=lambda entry: release(queue, entry, now),
    )
    queue.lapsed(lost)
    return more or partitions.look(consumer)


def free_departed(queue: Queue, partitions: Partitions, now: int) -> bool:
    """Free the partitions of former consumers. Returns whether there are more."""
    lost, more = partitions.free_departed(
        lapse=lambda entry: lapse(queue, entry, now),
        release=lambda entry: release(queue, entry, now),
    )
    queue.lapsed(lost)
    return more


def key_to_close(queue: Queue, message: Message) -> bytes | None:
    """The open-key record to delete when the message stops being unclaimed everywhere."""
    if message.key is None:
        return None
    key = open_key(queue.tenant, message.topic, message.key)
    value = queue.stage.get(key)
    if value is None or OpenKey.decode(value).message_id != message.id:
        return None
    return key


def is_expired(entry: Entry, now: int) -> bool:
    """Whether the delivery is past ``expires_at``. Does not apply to dead letters."""
    expires_at = entry.message.expires_at
    return expires_at is not None and expires_at <= now


def _look_at_waiting(queue: Queue, entry: Entry) -> tuple[Trail, bytes | None]:
    """Read what expiring a waiting delivery needs."""
    queue.expired.load(entry.claim_id)
    return queue.trail(entry.message_id), key_to_close(queue, entry.message)


def _close(queue: Queue, key: bytes | None) -> None:
    if key is not None:
        queue.stage.delete(key)


def _drop(queue: Queue, entry: Entry, key: bytes | None) -> None:
    _leave_live(queue, entry)
    _close(queue, key)
    queue.forget(entry.message_id)


def _expire_now(queue: Queue, at: int, claim_id: int, now: int) -> int:
    delayed = queue.find_delayed(claim_id)
    if delayed is not None:
        due_at, entry = delayed
        expire_delayed(queue, entry, due_at, now)
        return 1
    waiting = queue.shelf.find(claim_id)
    if waiting is not None:
        expire_available(queue, waiting, now)
        return 1
    # In flight: it may still be acked, and otherwise expires when it comes back. The index entry is
    # no longer needed, because the claim itself has expires_at.
    queue.stage.delete(queue.keys.expires_at(at, claim_id))
    return 0


def _expire(
    queue: Queue,
    entry: Entry,
    now: int,
    transition: Transition,
    error: str | None,
    trail: Trail,
) -> None:
    _leave_live(queue, entry)
    _leave_mark(queue, entry, now, transition, State.EXPIRED, error, trail)
    queue.expired.add(entry.claim_id, now, entry.settled(now))
    queue.expired_count += 1


def _fail(
    queue: Queue,
    dead: Queue,
    entry: Entry,
    now: int,
    transition: Transition,
    error: str | None,
    trail: Trail,
) -> None:
    _leave_live(queue, entry)
    _leave_mark(queue, entry, now, transition, State.FAILED, error, trail)
    queue.failures += 1
    entry.at = now
    dead.make_available(entry)


def _leave_live(queue: Queue, entry: Entry) -> None:
    queue.unwatch_expiry(entry)
    if queue.partitions is not None:
        queue.partitions.removed(entry)


def _leave_mark(
    queue: Queue,
    entry: Entry,
    now: int,
    transition: Transition,
    state: State,
    error: str | None,
    trail: Trail,
) -> None:
    grant, dead = queue.home.last_grant, queue.is_dead_letter
    trail = trail.then(now, transition, state, error, grant, dead=dead)
    queue.write_trail(entry.message_id, trail)
