"""Fields of a queue's policy that are fixed while the queue has live or failed deliveries."""

from __future__ import annotations

from penstock.errors import QueueNotEmpty
from penstock.model.queue import QueuePolicy, RetryPosition

__all__ = ["changed_fixed_field", "not_empty"]


def changed_fixed_field(before: QueuePolicy, after: QueuePolicy) -> str | None:
    """The field whose change needs an empty queue, if one changes."""
    for field in ("ordering", "bucket_size"):
        if getattr(before, field) != getattr(after, field):
            return field
    positions = before.retry_position, after.retry_position
    to_keep = positions == (RetryPosition.BACK, RetryPosition.KEEP)
    return "retry_position" if to_keep else None


def not_empty(queue: str, field: str) -> QueueNotEmpty:
    """The refusal of such a change."""
    return QueueNotEmpty(
        f"{field} of queue {queue!r} cannot change while it has deliveries.", field=field
    )
