"""What a report knows about each queue, topic and error, as values; ``collect`` fills them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from penstock.pipeline.report.periods import Period

__all__ = [
    "COUNTED",
    "Consumer",
    "Counts",
    "Failure",
    "Figures",
    "Latency",
    "QueueFigures",
    "QueueNow",
    "Row",
    "TopicFigures",
    "top",
]

#: A row of a table, by column.
Row: TypeAlias = Mapping[str, Any]
COUNTED: Final = ("arrivals", "claims", "acks", "nacks", "lapses", "failures", "expired", "change")


class Counts(Struct):
    """What happened in a period, in one queue or in all."""

    arrivals: int = 0
    claims: int = 0
    acks: int = 0
    nacks: int = 0
    lapses: int = 0
    failures: int = 0
    expired: int = 0
    change: int = 0
    """Of the number of unsettled deliveries."""

    def add(self, row: Row) -> None:
        """Add a row of ``activity``."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + int(row[name] or 0))

    @property
    def settled(self) -> int:
        """Deliveries that ended."""
        return self.acks + self.failures + self.expired


class Latency(Struct, frozen=True):
    """Percentiles in ms; None if there was nothing to measure."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class QueueNow(Struct, frozen=True):
    """What the broker says about a queue when the report is made."""

    depth: int = 0
    failed: int = 0
    oldest_ms: int | None = None
    paused: bool = False


class QueueFigures(Struct, kw_only=True):
    """One queue."""

    name: str
    now: QueueNow = QueueNow()
    exists: bool = False
    current: Counts
    previous: Counts
    wait: Latency = Latency()
    wait_before: Latency = Latency()
    work: Latency = Latency()
    depth: list[float]
    """Unsettled deliveries at the end of each bucket."""
    series: dict[str, list[float | None]]
    """By column of ``activity``: a value per bucket."""


class TopicFigures(Struct, kw_only=True):
    """One topic."""

    name: str
    messages: int = 0
    bytes: int = 0
    messages_before: int = 0
    series: list[float | None]


class Failure(Struct, frozen=True):
    """The failures with one fingerprint, in all queues."""

    fingerprint: str
    pattern: str
    count: int
    failed: int
    before: int
    queues: Sequence[str]
    """Those with the most failed deliveries first."""
    first: float
    last: float
    example: str
    messages: Sequence[int]


class Consumer(Struct, frozen=True):
    """One consumer of one queue."""

    name: str
    queue: str
    count: int
    not_acked: int
    work: Latency
    longest: float


class Figures(Struct, frozen=True, kw_only=True):
    """Everything that the page shows."""

    url: str
    made_at: int
    """Epoch milliseconds."""
    period: Period
    queues: Sequence[QueueFigures]
    """Those with the most arrivals first."""
    topics: Sequence[TopicFigures]
    failures: Sequence[Failure]
    consumers: Sequence[Consumer]
    current: Counts
    previous: Counts
    days: Mapping[int, Mapping[str, float]]
    """Since the beginning: messages, bytes, acks and failures by day."""

    @property
    def has_previous(self) -> bool:
        """Whether anything is known about the period before."""
        return bool(self.previous.arrivals or any(t.messages_before for t in self.topics))

    @property
    def is_empty(self) -> bool:
        """Whether nothing has ever happened."""
        return not self.days


def top(
    queues: Sequence[QueueFigures], most: int, key: Callable[[QueueFigures], float]
) -> list[QueueFigures]:
    """The queues with the largest values above zero."""
    return sorted((q for q in queues if key(q) > 0), key=lambda q: (-key(q), q.name))[:most]
