"""The storage contract: the verbs every engine has, and the laws they keep.

An engine is semantic, not get/put: it publishes, claims and settles. It validates nothing
that a caller could get wrong in form (the broker did), but it decides everything that
depends on state, atomically: one verb is one commit (S3), and a reply is sent only when
the commit is as durable as it says (P1). Engines are independent of each other; what holds
them together is ``penstock.testing.conformance`` and the oracle.

Rules that all verbs share
- ``tenant`` comes first. Nothing crosses it (T1). Tenants exist as soon as they are named.
- ``queue`` may be ``Q.dlq`` wherever a queue is read, claimed, settled, peeked, replayed,
  purged, paused or counted: its available deliveries are the failed ones of Q (D1).
- Unknown queues raise ``UnknownQueue``, unknown messages ``UnknownMessage``.
- The engine reads time from its ``clock``, once a verb: the one it was opened with, or the
  database's where several machines share the store.
- Time takes effect at ``claim`` and ``sweep``: they first make due deliveries available,
  take lapsed leases back, and expire what is past ``expires_at``. Other verbs report what
  is stored. Until then the holder of a lapsed lease may still settle it.
- A cancelled call may or may not have taken effect, like a lost reply (P2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

from msgspec import Struct

from penstock.errors import BadInput
from penstock.filters import Filter, Selection
from penstock.model.clock import Clock, SystemClock
from penstock.model.delivery import (
    Delivery,
    MessageDeliveries,
    Ownership,
    Page,
    PurgeReply,
    QueueStats,
    ReplayReply,
    ReplaySource,
    Result,
    RouteReply,
    Settlement,
    SettleReply,
    SweepReply,
)
from penstock.model.identity import StoreIdentity
from penstock.model.limits import Limits
from penstock.model.message import (
    Durability,
    MessageId,
    NewMessage,
    Offset,
    Outgoing,
    Published,
    PublishReply,
)
from penstock.model.queue import QueueInfo, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.bulk import BulkReading
from penstock.storage.listener import Listener
from penstock.storage.randomness import (
    Jitter,
    RandomBytes,
    full_jitter,
    random_bytes,
    random_token,
)
from penstock.storage.shares import Shares
from penstock.storage.topic_checks import CheckedBy
from penstock.storage.turns import Turns

__all__ = [
    "Capabilities",
    "Engine",
    "EngineOptions",
    "Jitter",
    "Outgoing",
    "RandomBytes",
    "full_jitter",
    "random_bytes",
    "random_token",
]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """What an engine is opened with: its surroundings and the operator's choices."""

    clock: Clock = SystemClock()
    jitter: Jitter = full_jitter
    token: Callable[[], int] = random_token
    """Gives numbers that are never alike, on any server. Injected, as ``jitter`` is."""
    random: RandomBytes = random_bytes
    """For the identity of a new store."""
    limits: Limits = Limits()
    auto_create: bool = True
    """A message that matches no queue creates one named after its topic, if none is."""
    archive: bool = False
    """Retention waits for ``archived``: nothing leaves before its copy is verified (A1)."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine can do, as data: tests name a capability, never an engine."""

    engine: str
    durability: Durability
    """The best a reply can promise."""
    persistent: bool
    """Closing and reopening the same URL finds the same store."""
    multi_process: bool
    """Several processes may have the store open at once."""
    limits_throughput: bool = False
    """``claim`` keeps a queue's ``throughput_limit`` itself, for all processes together, and
    ``next_due`` says when it gives more. Otherwise the broker keeps it, which is the only one."""


class Engine(BulkReading, ABC):
    """The verbs. See the module's head for the rules that all of them share."""

    capabilities: Capabilities
    clock: Clock
    """The clock the engine lives by: whoever compares a time with the engine's reads this."""
    listener: Listener = Listener()
    """Set it to hear of what happens; there is one."""

    @cached_property
    def turns(self) -> Turns:
        """Who does the next slice of long work."""
        return Turns()

    @cached_property
    def shares(self) -> Shares:
        """How much of it the calls of each tenant take at a time."""
        return Shares(self.turns)

    # -- queues and topics -------------------------------------------------------------

    @abstractmethod
    async def put_queue(
        self, tenant: str, name: str, policy: QueuePolicy, start: Start
    ) -> QueueInfo:
        """Create the queue, or replace the policy of the one that is there.

        ``start`` only matters on creation: ``latest`` is caught up at once; ``earliest``,
        ``offset`` and ``time`` leave a cursor for ``route``. A changed filter routes from
        now on (R1). ``bucket_size`` and ``ordering`` of a queue with live or failed
        deliveries do not change: ``QueueNotEmpty``. ``Q.dlq`` cannot be put.
        """

    @abstractmethod
    async def get_queue(self, tenant: str, name: str) -> QueueInfo:
        """The queue as it is. For ``Q.dlq`` the policy is derived from Q's."""

    @abstractmethod
    async def list_queues(self, tenant: str) -> tuple[QueueInfo, ...]:
        """All queues of the tenant by name, dead-letter queues not listed apart."""

    @abstractmethod
    async def delete_queue(self, tenant: str, name: str) -> None:
        """Remove the queue, its deliveries and its dead letters. The log stays (Q1)."""

    @abstractmethod
    async def pause(self, tenant: str, queue: str, paused: bool) -> None:
        """Stop or resume handing out; everything else goes on."""

    @abstractmethod
    async def put_topic(self, tenant: str, name: str, policy: TopicPolicy) -> None:
        """Register the topic, or replace its policy."""

    @abstractmethod
    async def get_topic(self, tenant: str, name: str) -> TopicPolicy | None:
        """The topic's policy, or None when it is not registered."""

    @abstractmethod
    async def list_topics(self, tenant: str) -> tuple[tuple[str, TopicPolicy], ...]:
        """All registered topics of the tenant by name."""

    @abstractmethod
    async def delete_topic(self, tenant: str, name: str) -> None:
        """Forget the topic's policy; its messages stay. ``UnknownTopic`` if there is none."""

    # -- the flow ----------------------------------------------------------------------

    @abstractmethod
    async def publish(
        self,
        tenant: str,
        topic: str,
        messages: Sequence[NewMessage],
        durability: Durability = "fsync",
        batch_id: str | None = None,
        batch_ms: int | None = None,
        *,
        checked: CheckedBy = None,
    ) -> PublishReply:
        """Append the batch and route it, in one commit (P1, P2, S3).

        ``TopicChanged``, before depths are compared, if ``checked`` names other policies (E1).

        A ``batch_id`` seen inside its window is answered as it was the first time, and
        ``repeated``, whatever the batch holds now; nothing is stored (P4). Its window is the
        ``batch_ms`` of the call that stored the batch, whatever the topic's dedup window is or
        becomes; without, it is the topic's. It is for a caller that repeats a call whose reply
        was lost, and costs one record a batch.

        Per message, in order: an idempotency id seen inside the topic's dedup window answers
        with the first message's id and ``duplicate`` (P4; inside one batch too). Else a
        ``key`` whose message was never claimed in any queue it went to replaces payload,
        headers, content type and expiry in place: id, place, priority, partition key and
        deliver_at stay, a new log entry is appended, and the message is routed again:
        it leaves the queues whose filter is no longer TRUE and joins those where it now is.
        Else a new message, routed to every caught-up queue whose filter is TRUE (R1).
        With ``auto_create``, a message, new or replaced, goes to a new queue named after the
        topic if no queue's filter, caught up or not, is TRUE and no queue has that name. A
        replaced message that is in no queue closes its key. ``deliver_at`` later than now
        starts delayed. The topic's default ttl applies where ``expires_at`` is None.

        A queue that would pass ``max_depth`` refuses the whole batch: ``QueueFull``.
        """

    async def publish_within(
        self,
        connection: object,
        tenant: str,
        topic: str,
        messages: Sequence[NewMessage],
        batch_id: str | None = None,
        batch_ms: int | None = None,
        *,
        checked: CheckedBy = None,
    ) -> PublishReply:
        """Publish as a part of the transaction that the caller has open on ``connection``.

        The caller's commit makes it visible, its rollback leaves nothing (P2), and the reply
        says ``transaction`` for its durability. Only engines over a database that the caller
        can have a connection to do that; the others refuse.
        """
        raise BadInput(
            f"A {self.capabilities.engine} store has no transactions of its callers.",
            field="connection",
        )

    @abstractmethod
    async def batch(self, tenant: str, topic: str, batch_id: str) -> tuple[Published, ...] | None:
        """What a batch that was published under this id became; None outside its window."""

    @abstractmethod
    async def claim(
        self, tenant: str, queue: str, consumer: str, limit: int, lease_ms: int | None
    ) -> list[Delivery]:
        """Lease up to ``limit`` deliveries: priority descending, then publish order (C4).

        It may give fewer where their payloads have more than ``MAX_CLAIM_BYTES``, but always one.

        The lease is clamped to the policy's bounds, None takes ``visibility_timeout_ms``.
        Every grant adds one to attempts and to the attempts record (C2) and has a new
        receipt (C1). A waiting delivery that has no attempts left, because ``max_attempts`` was
        lowered, fails when the claim reaches it.

        A paused queue gives none; one with a ``throughput_limit`` gives what its bucket is good
        for, which is charged for it in the same commit, if the engine ``limits_throughput``. On an
        ordered queue the claim is also a heartbeat of ``consumer``, and only its partitions are
        served (O1).
        """

    @abstractmethod
    async def settle(
        self,
        tenant: str,
        queue: str,
        settlements: Sequence[Settlement],
        publish: Sequence[Outgoing] = (),
        *,
        checked: CheckedBy = None,
    ) -> SettleReply:
        """End claims, each on its own, in one commit; a stale receipt changes nothing (S1).

        Repeating an ack is OK while its done record is kept. With ``publish`` the call is
        all or nothing: one stale receipt aborts the others and nothing is published; a
        refused publish (``QueueFull``) settles nothing. A claim that an earlier call has ended
        publishes nothing more: repeated within ``REPEAT_WINDOW_MS``, with the same settlements
        but for extensions, the call is answered as the first time, and ``repeated`` (P4).
        """

    @abstractmethod
    async def route(self, tenant: str, queue: str, limit: int) -> RouteReply:
        """Catch up: route up to ``limit`` log entries from the cursor, advancing it (R1).

        Assigning and advancing is one commit, so doing it again assigns nothing twice. A
        delivery that exists already (a replaced or replayed message) is left alone.
        """

    @abstractmethod
    async def assign(
        self,
        tenant: str,
        queue: str,
        *,
        filter: str,
        start: Offset,
        end: Offset,
        offsets: Sequence[Offset],
        store: StoreIdentity | None = None,
    ) -> RouteReply:
        """Catch up by ``[start, end)``, of which a router outside has found what to take (R1).

        In one commit: deliveries of the entries at ``offsets`` (rising, in the range), and the
        cursor at ``end``. What is below the cursor is passed over, because it was routed
        meanwhile; a queue that is at ``end`` or caught up already is left as it is. So a late or
        repeated call changes nothing. Named are the entries that ``filter`` takes and every
        entry with a key: what the queue gets is decided as in ``route``, by the message as it
        is now, and a delivery that exists already is left alone.

        ``Conflict``, and nothing is done, if the filter of the queue is not this text any more,
        if its cursor is below ``start`` (a gap), if ``end`` is beyond ``log_end``, or if the log
        has no entry at an offset that is still to be routed. ``OtherStore`` if ``store``, the
        tenant's identity when the log was read, is not the present one.

        Reaching the end of the log does not make the queue caught up: that is left to ``route``.
        ``scanned`` in the reply is how many of the named entries were looked at.
        """

    @abstractmethod
    async def join(self, tenant: str, queue: str, consumer: str) -> Ownership:
        """Join an ordered queue, or heartbeat: renew the lease and rebalance (O1).

        The share of each of N live consumers is P÷N partitions, the first P mod N by name one
        more, and at least 1. Excess is released (idle partitions first, then by name from the
        last), then free ones are taken by name. ``Conflict`` if the queue is not ordered.
        """

    @abstractmethod
    async def leave(self, tenant: str, queue: str, consumer: str) -> None:
        """Release every partition of the consumer at once; its receipts become stale.

        Its in-flight deliveries come back as with ``release``. Unknown consumers are fine.
        """

    # -- bulk verbs --------------------------------------------------------------------

    @abstractmethod
    async def replay(
        self,
        tenant: str,
        queue: str,
        source: ReplaySource,
        where: Selection | None,
        limit: int,
        *,
        rate: int | None = None,
        dry_run: bool = False,
        replay_id: str | None = None,
    ) -> ReplayReply:
        """Make selected deliveries available again, with attempts 0, at their old place.

        Selected in publish order: of ``failed`` or ``done``, or log entries that the queue's
        filter takes and that are not live in it. The same ``replay_id`` moves a message
        once. Past ``expires_at`` is skipped. ``rate`` (a second) delays the i-th by
        i * 1000 // rate ms; ``deliver_at`` still holds. ``dry_run`` counts up to ``limit`` and
        samples ten. A replay of ``Q.dlq`` from ``failed`` is the replay of Q from ``failed``.
        """

    @abstractmethod
    async def purge(
        self, tenant: str, queue: str, state: State, where: Filter | None, limit: int
    ) -> PurgeReply:
        """Remove up to ``limit`` deliveries in ``state`` (not in_flight: ``Conflict``)."""

    @abstractmethod
    async def peek(
        self,
        tenant: str,
        queue: str,
        state: State,
        where: Filter | None,
        limit: int,
        cursor: str | None = None,
        *,
        payloads: bool = False,
    ) -> Page:
        """Browse deliveries in one state in claim order, consuming nothing.

        A page may be short, even empty, and still have a cursor: the scan is bounded.
        """

    @abstractmethod
    async def sweep(self, limit: int = 10_000) -> SweepReply:
        """Let time take effect in every queue, and retention remove what may go (G1, A1)."""

    @abstractmethod
    async def archived(self, tenant: str, through: Offset, store: StoreIdentity) -> None:
        """Record that every entry at or below ``through`` has a verified copy (A1).

        ``store`` is the tenant's identity when the copy was made. Raises ``OtherStore``, and
        records nothing, if it is not the present one or if the committed log does not reach it.
        """

    # -- identity ----------------------------------------------------------------------

    @abstractmethod
    async def identity(self, tenant: str) -> StoreIdentity:
        """Which store this is, for the tenant.

        ``store`` is chosen when the store is first opened and never changes. ``epoch`` is new
        after every restore and copy that the engine detects when it opens the store, and after
        ``new_epoch``. Every server of one database returns the same identity.
        """

    @abstractmethod
    async def new_epoch(self) -> None:
        """Begin a new epoch, for every tenant: what was noted before is refused from now on.

        For a restore or a copy that the engine cannot detect, and for a store that was opened
        although some of its entries were lost.
        """

    # -- documents ---------------------------------------------------------------------
    # Small things that a service keeps beside its queues: API keys, runs of jobs. They belong
    # to no tenant; whoever keeps them per tenant puts the tenant into the name.

    @abstractmethod
    async def put_document(self, kind: str, name: str, value: bytes) -> None:
        """Store the document under its kind and name, or replace the one that is there."""

    @abstractmethod
    async def add_document(
        self, kind: str, name: str, value: bytes, replaces: bytes | None = None
    ) -> bytes:
        """Store the document unless there is one other than ``replaces``; the one there is then.

        Of callers at the same time one wins, and all get what it stored.
        """

    @abstractmethod
    async def get_document(self, kind: str, name: str) -> bytes | None:
        """The document, or None."""

    @abstractmethod
    async def list_documents(self, kind: str) -> tuple[tuple[str, bytes], ...]:
        """All documents of the kind, by name."""

    @abstractmethod
    async def delete_document(self, kind: str, name: str) -> bool:
        """Remove the document; whether there was one."""

    # -- reading; the log and histories are in ``penstock.storage.bulk`` ----------------

    @abstractmethod
    async def tenants(self) -> tuple[str, ...]:
        """Every tenant that has a queue or a topic or has ever published, by name."""

    @abstractmethod
    async def behind(self) -> tuple[tuple[str, str], ...]:
        """Every (tenant, queue) that ``route`` still has to catch up."""

    @abstractmethod
    async def next_due(self, tenant: str, queue: str) -> int | None:
        """When time alone next makes a claim of this queue give more, or None: never.

        The earliest of a delayed delivery's due time and a lease's deadline, or where the
        engine ``limits_throughput`` and the bucket is not full, when it has a token. It may be
        in the past, and it may be early, never late.
        """

    @abstractmethod
    async def message(self, tenant: str, message_id: MessageId) -> MessageDeliveries:
        """The message as it is now, with its payload and its deliveries by queue name."""

    @abstractmethod
    async def result(self, tenant: str, queue: str, message_id: MessageId) -> Result | None:
        """What the ack of this delivery left, or None while it is not done."""

    @abstractmethod
    async def stats(self, tenant: str, queue: str) -> QueueStats:
        """The queue in numbers (Q2)."""

    @abstractmethod
    async def close(self) -> None:
        """Commit what is staged and release the store. Closing twice is fine."""
