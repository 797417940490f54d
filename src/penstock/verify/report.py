"""What verify found: one check a law, and the ledger that it is written up in.

The report is bounded whatever is wrong with the store: the first violations of each law are
kept, all are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.model.message import MessageId

__all__ = ["MAX_KEPT", "Check", "Ledger", "Report", "Subject", "Violation"]

#: Violations of one law that the report shows; more would not be read.
MAX_KEPT: Final = 100
#: Violations of one law that are told apart; above it the same one may be counted twice.
_MAX_TOLD_APART: Final = 100_000
#: Reasons for a skipped check that are shown.
_MAX_REASONS: Final = 10


class Violation(Struct, frozen=True, kw_only=True):
    """One thing that a law does not allow, and where it is."""

    law: str
    queue: str | None = None
    """None: it is about the log, or about a message in all queues."""
    message_id: MessageId | None = None
    """None: it is about the queue as a whole."""
    detail: str

    def __str__(self) -> str:
        where = [] if self.queue is None else [f"queue {self.queue!r}"]
        if self.message_id is not None:
            where.append(f"message {self.message_id}")
        return f"{self.law} {', '.join(where) or 'the log'}: {self.detail}"


class Check(Struct, frozen=True, kw_only=True):
    """What became of one law."""

    law: str
    name: str
    what: str
    """What was checked, in a sentence."""
    examined: int
    """Log entries, deliveries, messages or queues that were looked at for it."""
    violations: tuple[Violation, ...]
    """The first of them."""
    violation_count: int
    """All of them."""
    unresolved: int
    """Suspects that moved whenever they were looked at again: neither confirmed nor cleared."""
    skipped: str | None = None
    """Why it, or a part of it, was not checked."""
    note: str | None = None
    """A figure that is not a violation, and worth knowing."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.violation_count == 0


class Report(Struct, frozen=True, kw_only=True):
    """Everything that verify found."""

    checks: tuple[Check, ...]
    started_at: int
    finished_at: int
    deep: bool
    """Whether payloads and histories were read too."""
    quiescent: bool
    """Whether nothing is known to have moved meanwhile: ends and counters stayed the same."""
    queues: int
    log_entries: int
    deliveries: int

    @property
    def ok(self) -> bool:
        """Whether no law was found broken."""
        return all(check.ok for check in self.checks)

    @property
    def violation_count(self) -> int:
        """Violations of all laws."""
        return sum(check.violation_count for check in self.checks)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Those that were kept, law by law."""
        return tuple(item for check in self.checks for item in check.violations)


class Subject(Struct, frozen=True):
    """What the check of one law is about."""

    name: str
    what: str
    deep: bool = False
    """Only a deep run has anything to check it with."""


class _Page:
    """One law's page of the ledger."""

    def __init__(self) -> None:
        self.examined = 0
        self.kept: list[Violation] = []
        self.count = 0
        self.unresolved = 0
        self.reasons: dict[str, None] = {}
        self.note: str | None = None
        self.known: set[tuple[str | None, int | str]] = set()


class Ledger:
    """Where checks write down what they looked at and what they found."""

    def __init__(self, subjects: Mapping[str, Subject]) -> None:
        self._subjects = subjects
        self._pages = {law: _Page() for law in subjects}

    def examined(self, law: str, count: int = 1) -> None:
        """One more thing, or several, were looked at."""
        self._pages[law].examined += count

    def violation(
        self, law: str, detail: str, *, queue: str | None = None, message_id: int | None = None
    ) -> None:
        """A law is broken; what is found in several ways counts once."""
        page = self._pages[law]
        same = (queue, detail if message_id is None else message_id)
        if same in page.known:
            return
        if len(page.known) < _MAX_TOLD_APART:
            page.known.add(same)
        page.count += 1
        if len(page.kept) < MAX_KEPT:
            shown = None if message_id is None else MessageId(message_id)
            page.kept.append(Violation(law=law, queue=queue, message_id=shown, detail=detail))

    def unresolved(self, law: str) -> None:
        """A suspect that could be neither confirmed nor cleared."""
        self._pages[law].unresolved += 1

    def skip(self, law: str, reason: str) -> None:
        """A part of the check was not possible."""
        reasons = self._pages[law].reasons
        if len(reasons) < _MAX_REASONS:
            reasons[reason] = None

    def note(self, law: str, text: str) -> None:
        """A figure to show beside the check."""
        self._pages[law].note = text

    def checks(self, *, deep: bool) -> tuple[Check, ...]:
        """Every law's check, in the order of the subjects."""
        for law, subject in self._subjects.items():
            if subject.deep and not deep:
                self.skip(law, "only a deep run reads histories")
        return tuple(self._check(law, page) for law, page in self._pages.items())

    def _check(self, law: str, page: _Page) -> Check:
        subject = self._subjects[law]
        return Check(
            law=law,
            name=subject.name,
            what=subject.what,
            examined=page.examined,
            violations=tuple(page.kept),
            violation_count=page.count,
            unresolved=page.unresolved,
            skipped="; ".join(page.reasons) or None,
            note=page.note,
        )
