"""The counts of a queue at one moment, for those who watch many queues."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from penstock.model.delivery import QueueStats
from penstock.model.queue import Ordering, QueueInfo

__all__ = ["QueueCounts"]


class QueueCounts(Struct, frozen=True, kw_only=True, gc=False):
    """Counts by state, totals since the queue was created, and what a list of queues shows.

    Unlike ``QueueStats`` it costs the same for every queue: nothing is listed.
    """

    paused: bool
    ordered: bool
    behind: bool
    """Whether the queue has log entries to route."""
    delayed: int
    available: int
    in_flight: int
    done: int
    failed: int
    expired: int
    oldest_at: int | None
    """When the message of the oldest available delivery was published."""
    grants: int
    acks: int
    nacks: int
    failures: int

    @property
    def depth(self) -> int:
        """The number that ``max_depth`` limits."""
        return self.delayed + self.available + self.in_flight

    @classmethod
    def of(cls, info: QueueInfo, stats: QueueStats, now: int) -> Self:
        """The same from the replies of two other verbs."""
        age = stats.oldest_available_ms
        return cls(
            paused=info.policy.paused,
            ordered=info.policy.ordering is Ordering.PARTITION,
            behind=info.cursor is not None,
            delayed=stats.delayed,
            available=stats.available,
            in_flight=stats.in_flight,
            done=stats.done,
            failed=stats.failed,
            expired=stats.expired,
            oldest_at=None if age is None else now - age,
            grants=stats.grants,
            acks=stats.acks,
            nacks=stats.nacks,
            failures=stats.failures,
        )
