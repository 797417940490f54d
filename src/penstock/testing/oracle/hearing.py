"""The oracle's notifications: compares every queue before and after a verb.

A queue is ready when something became available, when ``next_due`` is earlier, or when anything
else that affects claims changed: the policy, and in an ordered queue the owners and the in-flight
deliveries. A created or deleted queue is notified too. Deliveries ended if they are no longer live.
There are no commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from penstock.model.limits import DLQ_SUFFIX
from penstock.model.message import MessageId, Offset
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.storage.listener import Listener
from penstock.testing.oracle import read_verbs
from penstock.testing.oracle.state import Queue, Store

__all__ = ["Heard", "hear", "tell"]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Everything that affects the claims of one queue."""

    available: frozenset[tuple[MessageId, Offset]]
    """With the offset of each: a replacement may bring an expired one back."""
    next_due: int | None
    arrangement: object
    unsettled: frozenset[MessageId]
    """Deliveries that callers may wait for: they have not ended."""
    lapses: int
    """Leases that lapsed so far."""


#: Tenant and name of a queue or dead-letter queue to its shape.
Heard: TypeAlias = dict[tuple[str, str], _Shape]


def hear(store: Store) -> Heard:
    """The shapes of all queues."""
    return dict(_shapes(store))


def tell(listener: Listener, before: Heard, after: Heard) -> None:
    """Notify the listener of the changes."""
    for place in sorted({*before, *after}):
        old, new = before.get(place), after.get(place)
        if old is None or new is None or _gives_more(old, new):
            listener.ready(*place)
        if old is not None and new is not None and old.unsettled - new.unsettled:
            listener.ended(place[0], place[1].removesuffix(DLQ_SUFFIX))
        if old is not None and new is not None and new.lapses > old.lapses:
            listener.lapsed(*place, new.lapses - old.lapses)


def _gives_more(old: _Shape, new: _Shape) -> bool:
    closer = new.next_due is not None and (old.next_due is None or new.next_due < old.next_due)
    return closer or bool(new.available - old.available) or new.arrangement != old.arrangement


def _shapes(store: Store) -> Iterator[tuple[tuple[str, str], _Shape]]:
    for queue in store.queues.values():
        for dead in (False, True):
            held = queue.held(dead=dead)
            shape = _Shape(
                available=frozenset(
                    (d.message_id, store.newest(queue.tenant, d.message_id).message.offset)
                    for d in held
                    if d.state is State.AVAILABLE
                ),
                next_due=read_verbs.next_due(store, queue, dead=dead),
                unsettled=frozenset(d.message_id for d in held if d.live),
                arrangement=queue.dead_paused if dead else _arrangement(store, queue),
                lapses=queue.counters_of(dead=dead).lapses,
            )
            yield (queue.tenant, queue.shown_as(dead=dead)), shape


def _arrangement(store: Store, queue: Queue) -> object:
    if queue.policy.ordering is not Ordering.PARTITION:
        return queue.policy
    live = [
        (d.message_id, d.state, store.partition(queue, d)) for d in queue.held(dead=False) if d.live
    ]
    owners = {p: (owner.consumer, owner.epoch) for p, owner in queue.owners.items()}
    return queue.policy, live, owners, set(queue.consumers)
