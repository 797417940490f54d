"""One run of verify: the store, what was seen of it so far, and the ledger.

Also the laws that are checked at all, in the order of the report, and the bounds that keep
a run finite on a store that is being used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from penstock.model.queue import QueueInfo
from penstock.verify.browse import Scans
from penstock.verify.index import LogIndex
from penstock.verify.report import Ledger, Subject
from penstock.verify.store import Damaged, Missing, Store, look

__all__ = ["PAGE", "PAYLOAD_BYTES", "RECHECKS", "SUBJECTS", "Inspection", "Progress"]

#: What is read now, how much of it is done, and how much there is, where that is known.
Progress: TypeAlias = Callable[[str, int, int | None], None]
T = TypeVar("T")

#: Entries or deliveries in one answer: what the verbs give at most.
PAGE: Final = 1_000
#: Payload bytes in one answer, as far as one payload is not larger by itself.
PAYLOAD_BYTES: Final = 8 * 1024 * 1024
#: How often a suspect is looked at again; each time it has to look wrong.
RECHECKS: Final = 3
#: Suspects of one law in one queue that are looked at again. A queue that is being drained
#: has thousands of deliveries that moved; a broken one shows itself in the first of them.
_MAX_SUSPECTS: Final = 1_000

SUBJECTS: Final = {
    "L1": Subject("log order", "Offsets strictly increase, and no entry changes between readings."),
    "L2": Subject("stable prefix", "Nothing appears or is missing below an offset once passed."),
    "P3": Subject("payloads", "Payloads have the size and checksum they were published with."),
    "X1": Subject("readable", "Everything can be read: no record is damaged."),
    "G1": Subject("kept", "What a queue holds, or has still to route, is in the log."),
    "R1": Subject("routed", "Filters that never changed are TRUE for what their queues hold."),
    "S2": Subject("settled once", "Nothing was acked twice without a replay.", deep=True),
    "S3": Subject("one state", "Every delivery is in exactly one state, whoever is asked."),
    "C1": Subject("claims", "What is in flight has one holder and a deadline; grants end once."),
    "C2": Subject("attempts", "Attempts equal the grants on record."),
    "C3": Subject("times", "Nothing was granted before deliver_at or after expires_at."),
    "C4": Subject("claim order", "Deliveries come by priority descending, then publish order."),
    "D1": Subject("dead letters", "What failed is whole in the dead-letter queue."),
    "O1": Subject("owners", "A partition has one owner an epoch, who holds what is in flight."),
    "Q2": Subject("counts", "Counts, watermark and lag in stats equal a full scan."),
}


class Inspection:
    """What one run has to hand."""

    def __init__(self, store: Store, *, deep: bool, progress: Progress | None) -> None:
        self.store = store
        self.deep = deep
        self.ledger = Ledger(SUBJECTS)
        self.index = LogIndex(0)
        #: The queues that are verified, as they were at first, and what was seen in them.
        self.queues: dict[str, QueueInfo] = {}
        self.scans: dict[str, Scans] = {}
        self._progress = progress
        self._suspects: Counter[tuple[str, str | None]] = Counter()

    async def look(self, call: Awaitable[T]) -> T | Missing:
        """The answer of a verb, or why there is none."""
        return await look(self.store, call)

    def tell(self, what: str, done: int, total: int | None = None) -> None:
        """How far it has come."""
        if self._progress is not None:
            self._progress(what, done, total)

    def may_confirm(self, law: str, queue: str | None = None) -> bool:
        """Whether one more suspect is looked at again; if not, it stays unresolved."""
        self._suspects[law, queue] += 1
        if self._suspects[law, queue] <= _MAX_SUSPECTS:
            return True
        self.ledger.unresolved(law)
        return False

    def damaged(
        self,
        found: Missing,
        what: str,
        *,
        queue: str | None = None,
        message_id: int | None = None,
    ) -> None:
        """Write damage up as what it is (X1); what is gone is nobody's fault."""
        if isinstance(found, Damaged):
            detail = f"{what} cannot be read: {found.detail}"
            self.ledger.violation("X1", detail, queue=queue, message_id=message_id)
