"""The result of verify: one check per law, and the ledger that collects them.

The report is bounded: the first violations of each law are kept, and all are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.model.message import MessageId

__all__ = ["MAX_KEPT", "Check", "Ledger", "Report", "Subject", "Violation"]

#: Violations per law in the report; more would not be read.
MAX_KEPT: Final = 100
#: Violations per law that are deduplicated; beyond it one may be counted twice.
_MAX_TOLD_APART: Final = 100_000
#: Reasons for a skipped check in the report.
_MAX_REASONS: Final = 10


class Violation(Struct, frozen=True, kw_only=True):
    """One violation of a law, and where it is."""

    law: str
    queue: str | None = None
    """None: it concerns the log, or a message in all queues."""
    message_id: MessageId | None = None
    """None: it concerns the queue as a whole."""
    detail: str

    def __str__(self) -> str:
        where = [] if self.queue is None else [f"queue {self.queue!r}"]
        if self.message_id is not None:
            where.append(f"message {self.message_id}")
        return f"{self.law} {', '.join(where) or 'the log'}: {self.detail}"


class Check(Struct, frozen=True, kw_only=True):
    """The result for one law."""

    law: str
    name: str
    what: str
    """What was checked, as a sentence."""
    examined: int
    """Log entries, deliveries, messages or queues that were checked."""
    violations: tuple[Violation, ...]
    """The first violations."""
    violation_count: int
    """The number of all violations."""
    unresolved: int
    """Suspects that moved each time they were checked: neither confirmed nor cleared."""
    skipped: str | None = None
    """Why the check, or a part of it, was skipped."""
    note: str | None = None
    """A figure worth knowing that is not a violation."""

    @property
    def ok(self) -> bool:
        """Whether there is no violation."""
        return self.violation_count == 0


class Report(Struct, frozen=True, kw_only=True):
    """The result of verify."""

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
        """Whether no law is violated."""
        return all(check.ok for check in self.checks)

    @property
    def violation_count(self) -> int:
        """The number of violations of all laws."""
        return sum(check.violation_count for check in self.checks)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The violations that were kept, by law."""
        return tuple(item for check in self.checks for item in check.violations)


class Subject(Struct, frozen=True):
    """The description of one law's check."""

    name: str
    what: str
    deep: bool = False
    """Only a deep run can check it."""


class _Page:
    """The ledger's page for one law."""

    def __init__(self) -> None:
        self.examined = 0
        self.kept: list[Violation] = []
        self.count = 0
        self.unresolved = 0
        self.reasons: dict[str, None] = {}
        self.note: str | None = None
        self.known: set[tuple[str | None, int | str]] = set()


class Ledger:
    """Records what the checks examined and found."""

    def __init__(self, subjects: Mapping[str, Subject]) -> None:
        self._subjects = subjects
        self._pages = {law: _Page() for law in subjects}

    def examined(self, law: str, count: int = 1) -> None:
        """Count examined items."""
        self._pages[law].examined += count

    def violation(
        self, law: str, detail: str, *, queue: str | None = None, message_id: int | None = None
    ) -> None:
        """Record a violation; one that is found in several ways counts once."""
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
        """Count a suspect that could be neither confirmed nor cleared."""
        self._pages[law].unresolved += 1

    def skip(self, law: str, reason: str) -> None:
        """Record why a part of the check was not possible."""
        reasons = self._pages[law].reasons
        if len(reasons) < _MAX_REASONS:
            reasons[reason] = None

    def note(self, law: str, text: str) -> None:
        """Record a figure to show with the check."""
        self._pages[law].note = text

    def checks(self, *, deep: bool) -> tuple[Check, ...]:
        """One check per law, in the order of the subjects."""
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
