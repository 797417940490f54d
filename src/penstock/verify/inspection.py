"""One run of verify: the store, what was seen of it so far, and the ledger.

It also lists the laws that are checked, in the order of the report, and the bounds that keep a
run finite on a busy store.

A missing record is a reply here, and so is damage (X1): one unreadable record does not prevent the
check of the others. Every other error propagates: a store that does not answer cannot be verified.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from penstock.errors import NotFound, StoreCorrupt, StoreUnavailable
from penstock.model.checksum import checksum
from penstock.model.delivery import Event, LogPage, MessageDeliveries, Page, QueueStats
from penstock.model.message import Message, Offset
from penstock.model.queue import QueueInfo
from penstock.model.states import State
from penstock.verify.report import Ledger, Subject

if TYPE_CHECKING:
    from penstock.verify.browse import Scans

__all__ = [
    "MOVED",
    "PAGE",
    "PAYLOAD_BYTES",
    "RECHECKS",
    "SUBJECTS",
    "Damaged",
    "Gone",
    "Inspection",
    "LogIndex",
    "Missing",
    "Progress",
    "Store",
    "fingerprint",
]

#: What is being read, how much of it is done, and the total, if known.
Progress: TypeAlias = Callable[[str, int, int | None], None]
T = TypeVar("T")

#: Entries or deliveries per reply: the limit of the verbs.
PAGE: Final = 1_000
#: Payload bytes per reply, unless a single payload is larger.
PAYLOAD_BYTES: Final = 8 * 1024 * 1024
#: How often a suspect is checked again; it has to be wrong each time.
RECHECKS: Final = 3
#: A check could not tell, because something moved meanwhile.
MOVED: Final = ""
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
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class Store(Protocol):
    """The verbs that verify uses, for one tenant. A broker and the HTTP client both have them."""

    async def queues(self) -> tuple[QueueInfo, ...]:
        """All queues by name."""

    async def queue(self, name: str, /) -> QueueInfo:
        """The queue's policy and state."""

    async def stats(self, queue: str, /) -> QueueStats:
        """The statistics of a queue."""

    async def peek(
        self,
        queue: str,
        state: State,
        /,
        *,
        limit: int,
        cursor: str | None = None,
        payloads: bool = False,
    ) -> Page:
        """Browse deliveries in one state, in claim order."""

    async def read_log(self, start: int, /, *, limit: int, payloads: bool = False) -> LogPage:
        """Committed log entries from an offset on."""

    async def log_end(self) -> Offset:
        """The offset after the last committed entry."""

    async def message(self, message_id: int, /) -> MessageDeliveries:
        """A message, its payload, and its state in every queue, at one moment."""

    async def history(self, message_id: int, /) -> tuple[Event, ...]:
        """Every transition of a message's deliveries that is still on record."""


class Missing(Struct, frozen=True):
    """There is no reply."""


class Gone(Missing, frozen=True):
    """The record does not exist, or was removed by retention, a purge or an operator."""


class Damaged(Missing, frozen=True):
    """The record cannot be read."""

    detail: str


def fingerprint(message: Message) -> int:
    """A checksum of all metadata."""
    return checksum(_ENCODER.encode(message))


class LogIndex:
    """The entries below ``end`` at the first reading, by offset, for later comparisons.

    Twenty bytes per entry: its offset, the id of its message, and a checksum of all its metadata.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self.offsets = array("Q")
        self.ids = array("Q")
        self.prints = array("I")
        #: (from, to) of offsets that could not be read.
        self.holes: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, message: Message) -> None:
        """Add the next entry, in offset order."""
        self.offsets.append(message.offset)
        self.ids.append(message.id)
        self.prints.append(fingerprint(message))

    def position_of(self, offset: int) -> int:
        """How many entries are below an offset."""
        return bisect_left(self.offsets, offset)

    def find(self, offset: int) -> int | None:
        """The position of the entry at an offset."""
        position = self.position_of(offset)
        if position < len(self.offsets) and self.offsets[position] == offset:
            return position
        return None

    def covers(self, offset: int) -> bool:
        """Whether an entry at that offset would have been seen."""
        return offset < self.end and not any(low <= offset < high for low, high in self.holes)

    def is_first(self, position: int) -> bool:
        """Whether this is the first entry of its message."""
        return self.ids[position] == self.offsets[position] or self.find(self.ids[position]) is None


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
        try:
            return await call
        except NotFound:
            return Gone()
        except StoreCorrupt as error:
            return Damaged(error.detail)
        except StoreUnavailable as error:
            # A bad sector, if the store still answers; otherwise this raises.
            await self.store.log_end()
            return Damaged(error.detail)

    async def read(
        self,
        call: Awaitable[T],
        what: str,
        *,
        queue: str | None = None,
        message_id: int | None = None,
    ) -> T | Missing:
        """Like ``look``, and record damage as a violation of X1."""
        found = await self.look(call)
        if isinstance(found, Missing):
            self.damaged(found, what, queue=queue, message_id=message_id)
        return found

    async def message(self, message_id: int) -> MessageDeliveries | Missing:
        """The message and its deliveries; damage is recorded."""
        call = self.store.message(message_id)
        return await self.read(call, "the message", message_id=message_id)

    async def history(self, message_id: int) -> tuple[Event, ...] | Missing:
        """The history of the message; damage is recorded."""
        call = self.store.history(message_id)
        return await self.read(call, "the history", message_id=message_id)

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

    async def confirm(
        self,
        law: str,
        check: Callable[[], Awaitable[str | None]],
        *,
        queue: str | None = None,
        message_id: int | None = None,
    ) -> None:
        """Report a suspect that is wrong repeatedly.

        ``check`` reads it again. It returns what is wrong, None if nothing is, or ``MOVED``.
        """
        wrong = []
        for _ in range(RECHECKS):
            detail = await check()
            if detail is None:
                return
            if detail != MOVED:
                wrong.append(detail)
        if len(wrong) > 1:
            self.ledger.violation(law, wrong[-1], queue=queue, message_id=message_id)
        else:
            self.ledger.unresolved(law)

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
