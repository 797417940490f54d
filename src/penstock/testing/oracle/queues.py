"""Creating and changing queues: initial cursors, quotas, permitted changes."""

from __future__ import annotations

from msgspec.structs import asdict

from penstock.errors import (
    QueueChanged,
    QueueExists,
    QueueNotEmpty,
    TooManyQueues,
    TooManyUnindexedFilters,
    UnknownQueue,
)
from penstock.filters import parse
from penstock.model.limits import Limits
from penstock.model.message import Offset
from penstock.model.queue import IfExists, QueuePolicy, Start
from penstock.testing.oracle.state import Queue, Store

__all__ = ["change_policy", "check_quotas", "check_was", "cursor", "keeps"]


def cursor(store: Store, tenant: str, start: Start) -> Offset | None:
    """The initial cursor: the first log entry that ``start`` includes, or None."""
    for entry in store.entries_of(tenant):
        message = entry.message
        if (
            start.at == Start.EARLIEST
            or (start.at == Start.OFFSET and message.offset >= start.value)
            or (start.at == Start.TIME and message.published_at >= start.value)
        ):
            return message.offset
    return None


def check_quotas(
    limits: Limits, store: Store, tenant: str, queue: Queue | None, policy: QueuePolicy
) -> None:
    """Refuse a queue or a filter that exceeds the tenant's quotas."""
    queues = store.queues_of(tenant)
    if queue is None and len(queues) >= limits.queues:
        raise TooManyQueues("One queue too many.", field="queue", limit=limits.queues)
    others = [parse(q.policy.filter) for q in queues if q is not queue]
    unindexed = sum(not other.indexed for other in others)
    is_new = queue is None or parse(queue.policy.filter).indexed
    most = limits.unindexed_filters
    if is_new and not parse(policy.filter).indexed and unindexed >= most:
        raise TooManyUnindexedFilters("One filter too many.", field="filter", limit=most)


def check_was(queue: Queue | None, was: QueuePolicy | None) -> None:
    """Refuse a change of a queue that is gone or has changed, if ``was`` is given."""
    if was is not None and queue is None:
        raise UnknownQueue("The queue is gone.", field="queue")
    if was is not None and queue is not None and queue.policy != was:
        raise QueueChanged("The queue has another policy.", field="queue")


def keeps(queue: Queue, policy: QueuePolicy, if_exists: IfExists) -> bool:
    """Whether the call leaves the existing queue alone; ``QueueExists`` if it is refused."""
    if if_exists == "refuse":
        known, wanted = asdict(queue.policy), asdict(policy)
        ignored = ("paused", "events")
        different = [n for n in known if n not in ignored and known[n] != wanted[n]]
        if different:
            raise QueueExists("It has another policy.", field=different[0])
    return if_exists != "replace"


def change_policy(queue: Queue, policy: QueuePolicy) -> None:
    """Replace the policy; ``QueueNotEmpty`` if the queue's deliveries do not allow it."""
    old = queue.policy
    layout_changes = (old.bucket_size, old.ordering) != (policy.bucket_size, policy.ordering)
    held = any(d.live for d in queue.deliveries.values())
    if layout_changes and held:
        raise QueueNotEmpty(
            "bucket_size and ordering cannot change while deliveries wait or have failed.",
            field="ordering" if old.ordering != policy.ordering else "bucket_size",
        )
    if (old.retry_position, policy.retry_position) == ("back", "keep") and held:
        raise QueueNotEmpty(
            "retry_position cannot become keep while deliveries wait or have failed.",
            field="retry_position",
        )
    if policy.ordering != old.ordering:
        queue.consumers = {}
    queue.filter_version += policy.filter != old.filter
    queue.policy = policy
