"""The replies of reading verbs: previews, explanations, pages of history, keeper reports."""

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
    """A message's state in one queue, and why it is or is not handed out."""

    queue: str
    message_id: MessageId
    state: State | None
    """None: the queue does not have it."""
    deliverable: bool
    """Whether a claim could hand it out now."""
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        where = "not in the queue" if self.state is None else self.state.value
        return f"message {self.message_id} in {self.queue!r}: {where}; " + "; ".join(self.reasons)


class HistoryEntry(Struct, frozen=True):
    """One transition of one message."""

    message_id: MessageId
    event: Event


class HistoryPage(Struct, frozen=True):
    """Transitions in one queue, by message, and the offset to continue from."""

    entries: tuple[HistoryEntry, ...]
    next_offset: Offset


class KeeperReport(Struct, frozen=True, kw_only=True):
    """The state of one background duty; times are epoch milliseconds."""

    name: str
    running: bool
    """False before it was started, and after it was stopped or the store closed."""
    runs: int = 0
    """Finished passes, including failed ones."""
    failures: int = 0
    started_at: int | None = None
    """When the last pass began."""
    finished_at: int | None = None
    """When the last finished pass ended."""
    work: int = 0
    """The deliveries and log entries that this pass processed."""
    last_error: str | None = None
    """The error of the last failed pass, even if later ones succeeded."""
    counters: dict[str, int] = {}
    """What it did since the store was opened, by outcome: calls of webhooks."""
