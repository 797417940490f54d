"""What those answer who look: previews, explanations, pages of history, reports of keepers."""

from __future__ import annotations

from msgspec import Struct

from penstock.model.delivery import Event, LogEntry
from penstock.model.message import MessageId, Offset
from penstock.model.states import State

__all__ = ["HistoryEntry", "HistoryPage", "KeeperReport", "Preview", "Why"]


class Preview(Struct, frozen=True):
    """What a filter would take from the log."""

    count: int
    scanned: int
    sample: tuple[LogEntry, ...]


class Why(Struct, frozen=True, kw_only=True):
    """Where a message stands in one queue, and in words why it is not handed out."""

    queue: str
    message_id: MessageId
    state: State | None
    """None: the queue does not have it."""
    deliverable: bool
    """A claim with room for it would be given it now."""
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        where = "not in the queue" if self.state is None else self.state.value
        return f"message {self.message_id} in {self.queue!r}: {where}; " + "; ".join(self.reasons)


class HistoryEntry(Struct, frozen=True):
    """One transition of one message."""

    message_id: MessageId
    event: Event


class HistoryPage(Struct, frozen=True):
    """Transitions in one queue, by message, and the offset to go on from."""

    entries: tuple[HistoryEntry, ...]
    next_offset: Offset


class KeeperReport(Struct, frozen=True, kw_only=True):
    """What became of one background duty so far; times are epoch milliseconds."""

    name: str
    running: bool
    """Whether it goes on: False before it was started, and after it was stopped or the
    store closed."""
    runs: int = 0
    """Passes that are over, the failed ones included."""
    failures: int = 0
    started_at: int | None = None
    """When the last pass began."""
    finished_at: int | None = None
    """When the last pass that is over was."""
    work: int = 0
    """What that pass did, in deliveries and log entries."""
    last_error: str | None = None
    """What the last failed pass failed by, whether or not it worked again since."""
