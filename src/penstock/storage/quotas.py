"""Quotas: how many queues and unindexed filters a tenant has, how many deliveries a publish makes.

Every engine calls these checks before it creates a queue or changes a filter, inside that commit,
so the limits are exact. A store that exceeds a limit because the limit was lowered keeps what it
has.
"""

from __future__ import annotations

from penstock.errors import TooLarge, TooManyQueues, TooManyUnindexedFilters
from penstock.filters import Filter
from penstock.model.limits import Limits

__all__ = ["check_fan_out", "check_filter_quota", "check_queue_quota"]


def check_queue_quota(limits: Limits, queues: int, name: str) -> None:
    """Refuse to create queue ``name`` for a tenant that already has ``queues`` queues."""
    if queues >= limits.queues:
        raise TooManyQueues(
            f"Queue {name!r} cannot be created: the tenant has {queues} queues of at most "
            f"{limits.queues}.",
            field="queue",
            limit=limits.queues,
        )


def check_filter_quota(
    limits: Limits, unindexed: int, filter: Filter, before: Filter | None = None
) -> None:
    """Refuse ``filter`` if it exceeds the limit of unindexed filters.

    ``unindexed`` is how many the tenant has, including ``before``, which ``filter`` replaces.
    """
    if filter.indexed or (before is not None and not before.indexed):
        return
    if unindexed >= limits.unindexed_filters:
        raise TooManyUnindexedFilters(
            f"The filter requires no equality, and the tenant has {unindexed} such filters of at "
            f"most {limits.unindexed_filters}.",
            field="filter",
            limit=limits.unindexed_filters,
        )


def check_fan_out(limits: Limits, messages: int, deliveries: int) -> None:
    """Refuse a publish of so many messages that makes more deliveries than one may."""
    if deliveries > limits.publish_deliveries and messages > 1:
        raise TooLarge(
            f"The messages become more than {limits.publish_deliveries} deliveries in all queues "
            "together: publish fewer of them at a time.",
            field="messages",
            limit=limits.publish_deliveries,
        )
