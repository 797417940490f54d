"""Deliveries, receipts, settlements, and the replies of the verbs on them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NewType, Self, TypeAlias

from msgspec import Struct

from penstock.model.duration import Duration, convert_durations
from penstock.model.message import Durability, Message, MessageId, Offset, Published
from penstock.model.states import State, Transition

__all__ = [
    "Ack",
    "Attempt",
    "CancelReply",
    "ClaimOrder",
    "Delivery",
    "Event",
    "Extend",
    "FoundMessages",
    "LogEntry",
    "LogPage",
    "MessageDeliveries",
    "Nack",
    "Outcome",
    "Ownership",
    "Page",
    "PartitionStats",
    "PurgeReply",
    "QueueStats",
    "Receipt",
    "Reject",
    "Release",
    "ReplayReply",
    "ReplaySource",
    "Result",
    "ResultStatus",
    "RouteReply",
    "SettleAndClaimReply",
    "SettleReply",
    "Settlement",
    "Snapshot",
    "SweepReply",
    "Verdict",
]

#: The fencing token of one claim: opaque, compared whole, never reused (C1, S1).
Receipt = NewType("Receipt", str)


#: How a claim of several queues uses them: ``given`` exhausts each queue before the next, ``fair``
#: gives every queue its turn.
ClaimOrder: TypeAlias = Literal["given", "fair"]


class Delivery(Struct, frozen=True, gc=False, omit_defaults=True):
    """One claimed message, as a worker gets it.

    The last three fields are set if it was claimed from a dead-letter queue, and are omitted
    on the wire otherwise.
    """

    queue: str
    receipt: Receipt
    message: Message
    payload: bytes
    attempts: int
    """Grants so far, including this one (C2). Claims of a dead letter continue the count."""
    claimed_at: int
    lease_deadline: int
    error: str | None = None
    """The last error that was reported for it."""
    failed_at: int | None = None
    original_queue: str | None = None
    """The queue in which it failed."""


class Ack(
    Struct,
    frozen=True,
    gc=False,
    tag_field="verb",
    tag="ack",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Done; ``result`` is stored with the delivery, like a payload."""

    receipt: Receipt
    result: bytes | None = None

    if TYPE_CHECKING:

        def __init__(self, receipt: Receipt, result: object = ...) -> None: ...


class Nack(
    Struct,
    frozen=True,
    gc=False,
    tag_field="verb",
    tag="nack",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Retry after ``delay_ms`` or the policy's backoff, or fail if no attempts are left."""

    receipt: Receipt
    error: str | None = None
    delay_ms: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self, receipt: Receipt, error: str | None = ..., delay_ms: Duration | None = ...
        ) -> None: ...

    def __post_init__(self) -> None:
        convert_durations(self, "delay_ms")


class Reject(
    Struct,
    frozen=True,
    gc=False,
    tag_field="verb",
    tag="reject",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Fail immediately, without a retry."""

    receipt: Receipt
    error: str | None = None


class Release(
    Struct,
    frozen=True,
    gc=False,
    tag_field="verb",
    tag="release",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Return unprocessed: available immediately or after ``delay_ms``.

    The grant does not count as an attempt.
    """

    receipt: Receipt
    delay_ms: int | None = None

    if TYPE_CHECKING:

        def __init__(self, receipt: Receipt, delay_ms: Duration | None = ...) -> None: ...

    def __post_init__(self) -> None:
        convert_durations(self, "delay_ms")


class Extend(
    Struct,
    frozen=True,
    gc=False,
    tag_field="verb",
    tag="extend",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Not a settlement but a longer lease: the new deadline is now + ``lease_ms``.

    None is the queue's ``lease_ms``. The extensions of a claim add up to at most the
    queue's ``max_lease_ms``.
    """

    receipt: Receipt
    lease_ms: int | None = None

    if TYPE_CHECKING:

        def __init__(self, receipt: Receipt, lease_ms: Duration | None = ...) -> None: ...

    def __post_init__(self) -> None:
        convert_durations(self, "lease_ms")


Settlement: TypeAlias = Ack | Nack | Reject | Release | Extend


class Verdict(StrEnum):
    """The outcome of one settlement."""

    OK = "ok"
    STALE = "stale"
    """The receipt is not the current claim's; nothing changed (S1)."""
    ABORTED = "aborted"
    """Another receipt of a settle-with-publish was stale; nothing changed."""


class Outcome(Struct, frozen=True, gc=False):
    """The outcome of one settlement, and the delivery's state."""

    receipt: Receipt
    verdict: Verdict
    state: State | None = None
    """None when the verdict is not OK."""
    until: int | None = None
    """The new lease deadline of an extend, or when a nacked or released delivery is due."""

    @property
    def ok(self) -> bool:
        """Whether the settlement took effect."""
        return self.verdict is Verdict.OK


class SettleReply(Struct, frozen=True):
    """One outcome per settlement, in order, and the messages published with them."""

    outcomes: tuple[Outcome, ...]
    published: tuple[Published, ...]
    durability: Durability
    repeated: bool = False
    """The same settle with publish was executed before: this is its first answer (P4)."""


class SettleAndClaimReply(Struct, frozen=True):
    """What a settle and the claim after it answered."""

    deliveries: list[Delivery]
    outcomes: tuple[Outcome, ...]
    published: tuple[Published, ...]
    durability: Durability
    repeated: bool = False
    """As in ``SettleReply``."""

    @classmethod
    def of(cls, settled: SettleReply, deliveries: list[Delivery]) -> Self:
        """The reply to both."""
        return cls(
            deliveries, settled.outcomes, settled.published, settled.durability, settled.repeated
        )


class Attempt(Struct, frozen=True, gc=False):
    """One grant of a delivery."""

    claimed_at: int
    consumer: str


class Snapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery's current state, for browsing: reading it consumes nothing."""

    queue: str
    message: Message
    state: State
    attempts: int
    released: int = 0
    """How many attempts do not count (C2): known for live deliveries of a queue, and for dead
    letters in flight."""
    at: int | None = None
    """When it became done, failed or expired; when a delayed delivery is due."""
    claimed_at: int | None = None
    lease_deadline: int | None = None
    consumer: str | None = None
    error: str | None = None
    """The last error that was reported for it."""
    payload: bytes | None = None
    """Only if the caller asked for payloads."""
    receipt: Receipt | None = None
    """The receipt of the current claim: only from ``message``, and over HTTP only for a caller that
    may consume from the queue."""


class Page(Struct, frozen=True):
    """Some deliveries, and the cursor of the next page; None at the end."""

    items: tuple[Snapshot, ...]
    cursor: str | None


class ReplaySource(StrEnum):
    """Which deliveries a replay takes."""

    FAILED = "failed"
    DONE = "done"
    LOG = "log"


class ReplayReply(Struct, frozen=True):
    """The deliveries that a replay moved, or in a dry run would move."""

    count: int
    sample: tuple[Snapshot, ...]
    skipped: int = 0
    """Selected, but past their expires_at or already moved under the same replay id."""


class PurgeReply(Struct, frozen=True):
    """How many deliveries a purge removed, and whether more are left."""

    count: int
    more: bool


class CancelReply(Struct, frozen=True):
    """The deliveries of one message that a cancel removed."""

    count: int
    queues: tuple[str, ...]
    """The queues that had one, by name; a dead letter counts for its queue."""
    pending: tuple[str, ...] = ()
    """Queues that have not routed the message yet and will still take it, by name."""


class RouteReply(Struct, frozen=True):
    """The router's progress in one queue."""

    scanned: int
    assigned: int
    cursor: Offset | None
    """None: the queue is caught up."""


class LogEntry(Struct, frozen=True, omit_defaults=True):
    """One entry of the log."""

    message: Message
    payload: bytes | None = None


class LogPage(Struct, frozen=True):
    """Entries from an offset on, and the offset to continue from (L2)."""

    entries: tuple[LogEntry, ...]
    next_offset: Offset


class FoundMessages(Struct, frozen=True):
    """Messages that were found by idempotency id or key, in publish order."""

    messages: tuple[Message, ...]
    next_offset: Offset | None = None
    """Where to continue the search; None at the end of the log."""


class Ownership(Struct, frozen=True):
    """The partitions that a consumer owns after a join or heartbeat."""

    consumer: str
    partitions: dict[str, int]
    """Partition key to epoch (O1)."""
    deadline: int
    """Heartbeat before this, or the partitions may be taken."""


class ResultStatus(StrEnum):
    """How a delivery ended."""

    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"


class Result(Struct, frozen=True, kw_only=True):
    """How a delivery ended."""

    message_id: MessageId
    status: ResultStatus
    result: bytes | None = None
    """The value that the ack carried; None unless it is done."""
    error: str | None = None
    """The last error that was reported; None if it is done."""
    attempts: int
    at: int
    """When it became done, failed or expired."""


class Event(Struct, frozen=True, kw_only=True):
    """One transition of a delivery."""

    at: int
    queue: str
    transition: Transition
    state: State | None
    consumer: str | None = None
    error: str | None = None


class MessageDeliveries(Struct, frozen=True):
    """A message, its payload and its state in every queue that has it."""

    message: Message
    payload: bytes
    deliveries: tuple[Snapshot, ...]


class PartitionStats(Struct, frozen=True):
    """One partition of an ordered queue."""

    partition: str
    owner: str | None
    epoch: int
    unsettled: int
    in_flight: int
    watermark: Offset


class QueueStats(Struct, frozen=True, kw_only=True):
    """The statistics of a queue (Q2). Counts by state are exact; reading them is always cheap."""

    delayed: int = 0
    available: int = 0
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    expired: int = 0
    oldest_available_ms: int | None = None
    """Age of the oldest available delivery."""
    in_flight_by_consumer: dict[str, int]
    grants: int = 0
    acks: int = 0
    nacks: int = 0
    failures: int = 0
    watermark: Offset
    """Every message of this queue at or below it is settled; -1 when none is."""
    lag: int
    """Unsettled deliveries, and messages still to be routed."""
    partitions: tuple[PartitionStats, ...] = ()

    @property
    def depth(self) -> int:
        """The number that ``max_depth`` limits."""
        return self.delayed + self.available + self.in_flight


class SweepReply(Struct, frozen=True, kw_only=True):
    """What one sweep did."""

    due: int = 0
    lapsed: int = 0
    expired: int = 0
    removed: int = 0
    """Done, expired and failed deliveries past their retention."""
    entries_removed: int = 0
    """Log entries, with their payloads, that are no longer referenced."""
    ids_forgotten: int = 0
    """Idempotency ids past their window."""
    more: bool = False
    """The sweep stopped at its limit; call it again."""
