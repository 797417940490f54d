"""Partition ownership in an ordered queue (O1).

A consumer is live until the deadline of its heartbeat. In-flight deliveries of a partition come
back when it changes owners, so an older epoch has no current receipt: fencing follows from having
one record per delivery.
"""

from __future__ import annotations

from collections.abc import Container

from penstock.model.delivery import Ownership, Receipt
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.model.states import State, Transition
from penstock.testing.oracle import transitions
from penstock.testing.oracle.state import Held, Owner, Queue, Store

__all__ = ["drop_dead_consumers", "join", "leave", "next_candidate", "owned"]


def join(store: Store, queue: Queue, consumer: str, now: int) -> Ownership:
    """Renew the consumer's lease, and adjust its partitions to its share."""
    drop_dead_consumers(store, queue, now)
    deadline = now + CONSUMER_LEASE_MS
    queue.consumers[consumer] = deadline
    share = _share(store, queue, consumer)
    while len(owned(queue, consumer)) > share:
        idle = [p for p in owned(queue, consumer) if not _in_flight(store, queue, p)]
        _free(store, queue, max(idle or owned(queue, consumer)), Transition.RELEASE, now)
    for partition in store.partitions(queue):
        if len(owned(queue, consumer)) < share and partition not in queue.owners:
            queue.epoch += 1
            queue.owners[partition] = Owner(consumer, queue.epoch)
    partitions = {p: queue.owners[p].epoch for p in owned(queue, consumer)}
    return Ownership(consumer=consumer, partitions=partitions, deadline=deadline)


def leave(store: Store, queue: Queue, consumer: str, now: int) -> None:
    """Release all partitions of the consumer."""
    for partition in owned(queue, consumer):
        _free(store, queue, partition, Transition.RELEASE, now)
    queue.consumers.pop(consumer, None)


def drop_dead_consumers(store: Store, queue: Queue, now: int) -> None:
    """Take all partitions from consumers without a heartbeat in time."""
    for consumer, deadline in sorted(queue.consumers.items()):
        if deadline <= now:
            for partition in owned(queue, consumer):
                _free(store, queue, partition, Transition.LAPSE, now)
            del queue.consumers[consumer]


def owned(queue: Queue, consumer: str) -> list[str]:
    """The consumer's partitions by name."""
    return sorted(p for p, owner in queue.owners.items() if owner.consumer == consumer)


def next_candidate(
    store: Store, queue: Queue, partition: str, granted: Container[Receipt]
) -> Held | None:
    """The partition's next delivery, if any (C4); ``granted`` are the receipts of this claim."""
    waiting = [d for d in _of(store, queue, partition) if d.live]
    in_flight = [d for d in waiting if d.state is State.IN_FLIGHT]
    if queue.policy.partition_concurrency > 1:
        if len(in_flight) >= queue.policy.partition_concurrency:
            return None
        return next((d for d in waiting if d.state is State.AVAILABLE), None)
    # Strict: everything before the next one must be in this claim.
    if len(in_flight) >= queue.policy.partition_batch:
        return None
    if any(d.receipt not in granted for d in in_flight):
        return None
    first = next((d for d in waiting if d.state is not State.IN_FLIGHT), None)
    return first if first is not None and first.state is State.AVAILABLE else None


def _share(store: Store, queue: Queue, consumer: str) -> int:
    each, more = divmod(len(store.partitions(queue)), len(queue.consumers))
    rank = sorted(queue.consumers).index(consumer)
    return max(1, each + (1 if rank < more else 0))


def _of(store: Store, queue: Queue, partition: str) -> list[Held]:
    return [d for d in queue.held(dead=False) if store.partition(queue, d) == partition]


def _in_flight(store: Store, queue: Queue, partition: str) -> list[Held]:
    return [d for d in _of(store, queue, partition) if d.state is State.IN_FLIGHT]


def _free(store: Store, queue: Queue, partition: str, transition: Transition, now: int) -> None:
    del queue.owners[partition]
    for held in _in_flight(store, queue, partition):
        transitions.give_back(store, queue, held, transition, now)
