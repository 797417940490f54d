"""The limit of dead-letter copies and events in one commit.

The server's memory budget counts requests and replies. Copies are neither: a settle of a few
kilobytes can fail messages of hundreds of megabytes. So a verb ends deliveries until the commit is
full, and continues in the next one.
"""

from __future__ import annotations

from penstock.errors import TooLarge
from penstock.model.limits import MAX_COPIED_BYTES, MAX_COPIES, MAX_SETTLE_COPIED_BYTES
from penstock.model.queue import QueuePolicy

__all__ = ["CopyLimit", "appends", "check_settle_copies"]


class CopyLimit:
    """Counts what one commit copies."""

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = 0
        """Copies and events."""
        self.size = 0
        """The payloads and headers of the copies."""

    def add(self, size: int, count: int = 1) -> None:
        """Count copies that have ``size`` bytes together."""
        self.count += count
        self.size += size

    @property
    def is_full(self) -> bool:
        """Whether the commit takes no further copies; the last one may exceed the limit."""
        return self.count >= MAX_COPIES or self.size >= MAX_COPIED_BYTES

    def clear(self) -> None:
        """Begin the next commit."""
        self.count = self.size = 0


def appends(policy: QueuePolicy) -> bool:
    """Whether the end of a delivery may append a dead-letter copy or an event to the log."""
    return policy.dead_letter_topic is not None or bool(policy.events)


def check_settle_copies(count: int, size: int) -> None:
    """Refuse a settle with publish that makes ``count`` copies of ``size`` bytes together."""
    if count > 1 and size > MAX_SETTLE_COPIED_BYTES:
        raise TooLarge(
            f"The settle copies {count} messages or more to the dead-letter topic, over"
            f" {MAX_SETTLE_COPIED_BYTES} bytes in one commit; settle fewer deliveries per call, or"
            " reject them in a call that publishes nothing.",
            field="settlements",
            limit=MAX_SETTLE_COPIED_BYTES,
        )
