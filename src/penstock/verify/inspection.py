"""One run of verify: the store, what was seen of it so far, and the ledger.

It also lists the laws that are checked, in the order of the report, and the bounds that keep a
run finite on a busy store.
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

#: What is being read, how much of it is done, and the total, if known.
Progress: TypeAlias = Callable[[str, int, int | None], None]
T = TypeVar("T")

#: Entries or deliveries per reply: the limit of the verbs.
PAGE: Final = 1_000
#: Payload bytes per reply, unless a single payload is larger.
PAYLOAD_BYTES: Final = 8 * 1024 * 1024
#: How often a suspect is checked again; it has to be wrong each time.
RECHECKS: Final = 3
#: Suspects per law and queue that are checked again. A queue that is being drained has thousands
#: of deliveries that moved; a broken one shows among the first of them.
_MAX_SUSPECTS: Final = 1_000

SUBJECTS: Final = {
    "L1": Subject("log order", "Offsets strictly increase, and no entry changes between readings."),
    "L2": Subject("stable prefix", "Nothing appears or is missing below an offset once passed."),
    "P3": Subject("payloads", "Payloads have the size and checksum they were published with."),
    "X1": Subject("readable", "Everything can be read: no record is damaged."),
    "G1": Subject("kept", "What a queue holds, or has still to route, is in the log."),
    "R1": Subject("routed", "Filters that never changed are TRUE for what their queues hold."),
    "S2": Subject("settled once", "Nothing was acked twice without a replay.", deep=True),
    "S3": Subject("one state", "Every delivery is in exactly one state, by every verb."),
    "C1": Subject("claims", "What is in flight has one holder and a deadline; grants end once."),
    "C2": Subject("attempts", "Attempts equal the grants on record."),
    "C3": Subject("times", "Nothing was granted before deliver_at or after expires_at."),
    "C4": Subject("claim order", "Deliveries come by priority descending, then publish order."),
    "D1": Subject("dead letters", "What failed is complete in the dead-letter queue."),
    "O1": Subject("owners", "A partition has one owner per epoch, which holds all in flight."),
    "Q2": Subject("counts", "Counts, watermark and lag in stats equal a full scan."),
}


class Inspection:
    """The state of one run."""

    def __init__(self, store: Store, *, deep: bool, progress: Progress | None) -> None:
        self.store = store
        self.deep = deep
        self.ledger = Ledger(SUBJECTS)
        self.index = LogIndex(0)
        #: The queues that are verified, as first read, and what was seen in them.
        self.queues: dict[str, QueueInfo] = {}
        self.scans: dict[str, Scans] = {}
        self._progress = progress
        self._suspects: Counter[tuple[str, str | None]] = Counter()

    async def look(self, call: Awaitable[T]) -> T | Missing:
        """The reply of a verb, or why there is none."""
        return await look(self.store, call)

    def tell(self, what: str, done: int, total: int | None = None) -> None:
        """Report progress."""
        if self._progress is not None:
            self._progress(what, done, total)

    def may_confirm(self, law: str, queue: str | None = None) -> bool:
        """Whether one more suspect may be checked again; if not, it stays unresolved."""
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
        """Record damage as a violation of X1; a record that is gone is not one."""
        if isinstance(found, Damaged):
            detail = f"{what} cannot be read: {found.detail}"
            self.ledger.violation("X1", detail, queue=queue, message_id=message_id)
