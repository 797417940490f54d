"""Time takes effect: deliveries become due, lapse and expire, and consumers lose their partitions.

Claims and sweeps call these functions. Each moves a limited number of deliveries, found by the time
indexes of the queue, and stops when the commit is full of dead-letter copies (``Queue.must_wait``).
"""

from __future__ import annotations

from penstock.model.states import Transition
from penstock.storage.keyvalue.moves import expire_available, expire_delayed, give_back
from penstock.storage.keyvalue.partitions import Partitions
from penstock.storage.keyvalue.queue import Queue

__all__ = [
    "expire_some",
    "free_departed",
    "heartbeat",
    "lapse_some",
    "let_time_pass",
    "make_some_due",
]


def let_time_pass(queue: Queue, now: int, limit: int) -> bool:
    """Move due, lapsed and expired deliveries, up to ``limit`` of each.

    Returns whether there may be more, which is also so if the commit is full of copies.
    """
    more = lapse_some(queue, now, limit) == limit
    if queue.partitions is not None:
        queue.partitions.drop_dead(now)
        free_departed(queue, queue.partitions, now)
    # Compared here too, because every claim does, and most queues have no timers.
    if queue.next_expiry is not None and queue.next_expiry <= now:
        more |= expire_some(queue, now, limit)[0] == limit
    if queue.next_due is not None and queue.next_due <= now:
        more |= make_some_due(queue, now, limit) == limit
    return more or queue.must_wait


def lapse_some(queue: Queue, now: int, limit: int) -> int:
    """Take back deliveries whose leases have ended. Returns how many."""
    first = queue.deadlines.next
    if first is None or first > now:
        return 0
    lapsed = 0
    for entry in queue.deadlines.lapsed(now, limit):
        if queue.must_wait:
            break
        give_back(queue, entry, now, Transition.LAPSE)
        lapsed += 1
    queue.lapsed(lapsed)
    return lapsed


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
    seen = expired = 0
    for at, claim_id, _ in queue.expiry_index.up_to(now, limit):
        if queue.must_wait:
            break
        seen += 1
        expired += _expire_now(queue, at, claim_id, now)
    queue.refresh_timers()
    return seen, expired


def heartbeat(queue: Queue, partitions: Partitions, consumer: str, now: int) -> bool:
    """Join an ordered queue or renew; dead consumers and excess partitions are released (O1).

    Returns whether the caller must call again, in another turn, because partitions still have to be
    moved or re-evaluated before the consumer has its share and a claim is cheap.
    """
    lost, more = partitions.join(consumer, now, lambda entry, by: give_back(queue, entry, now, by))
    queue.lapsed(lost)
    return more or partitions.look(consumer)


def free_departed(queue: Queue, partitions: Partitions, now: int) -> bool:
    """Free the partitions of former consumers. Returns whether there are more."""
    lost, more = partitions.free_departed(lambda entry, by: give_back(queue, entry, now, by))
    queue.lapsed(lost)
    return more


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
