"""The storage contract: the verbs that every engine implements, and the laws they keep.

The interface is semantic rather than get/put: an engine publishes, claims and settles. The broker
has already validated the form of a call. The engine decides everything that depends on state,
atomically: one verb is one commit (S3), and a reply is sent only when the commit is as durable as
it says (P1). Engines are independent; ``penstock.testing.conformance`` and the oracle keep them
consistent.

Rules that all verbs share
- ``tenant`` comes first. Nothing crosses it (T1). Tenants exist as soon as they are named.
- ``queue`` may be ``Q.dlq`` wherever a queue is read, claimed, settled, peeked, replayed,
  purged, paused or counted: its available deliveries are the failed ones of Q (D1).
- Unknown queues raise ``UnknownQueue``, unknown messages ``UnknownMessage``.
- The engine reads time once per verb, from its ``clock``: the one it was opened with, or the
  database's where several machines share the store.
- Time takes effect at ``claim`` and ``sweep``: they first make due deliveries available,
  take lapsed leases back, and expire deliveries past ``expires_at``. Other verbs report what
  is stored. Until then the holder of a lapsed lease may still settle it.
- A verb that fails or expires a delivery of a queue with a ``dead_letter_topic`` appends its copy
  to that topic in the same commit. Nothing refuses a copy (docs/semantics.md).
- A cancelled call may or may not have taken effect, like a lost reply (P2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

from penstock.errors import BadInput
from penstock.filters import Filter, Selection
from penstock.model.clock import Clock
from penstock.model.counts import QueueCounts
from penstock.model.delivery import (
    CancelReply,
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
from penstock.model.message import (
    Durability,
    Message,
    MessageId,
    NewMessage,
    Offset,
    Outgoing,
    Published,
    PublishReply,
)
from penstock.model.queue import IfExists, QueueInfo, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.bulk import BulkReading
from penstock.storage.counting import count_each
from penstock.storage.document_verbs import Documents
from penstock.storage.engine_options import Capabilities, EngineOptions, Role
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
    "Role",
    "full_jitter",
    "random_bytes",
    "random_token",
]


class Engine(BulkReading, Documents, ABC):
    """The verbs. The module docstring has the rules that all of them share."""

    capabilities: Capabilities
    clock: Clock
    """The engine's clock. Use it for every time that is compared with the engine's."""
    listener: Listener = Listener()
    """Receives the engine's notifications. There is one listener."""
    role: Role = Role()
    """Whether this process writes; changes when it takes over or is replaced."""

    @cached_property
    def turns(self) -> Turns:
        """Schedules slices of long work."""
        return Turns()

    @cached_property
    def shares(self) -> Shares:
        """Limits how much of the capacity the calls of each tenant use at a time."""
        return Shares(self.turns)

    # -- queues and topics -------------------------------------------------------------

    @abstractmethod
    async def put_queue(
        self,
        tenant: str,
        name: str,
        policy: QueuePolicy,
        start: Start,
        if_exists: IfExists = IfExists.REPLACE,
        *,
        was: QueuePolicy | None = None,
    ) -> QueueInfo:
        """Create the queue, or do with an existing one what ``if_exists`` says.

        The decision and the change are one commit: ``keeps_existing`` makes the decision. With
        ``was`` the queue must exist and have this policy: ``check_unchanged``.

        ``start`` only matters on creation: a queue with ``latest`` is caught up immediately;
        ``earliest``, ``offset`` and ``time`` leave a cursor for ``route``. A changed filter applies
        to later messages only (R1). ``bucket_size`` and ``ordering`` of a queue with live or failed
        deliveries cannot change: ``QueueNotEmpty``. ``Q.dlq`` cannot be put.
        """

    @abstractmethod
    async def get_queue(self, tenant: str, name: str) -> QueueInfo:
        """The queue as it is now. The policy of ``Q.dlq`` is derived from Q's."""

    @abstractmethod
    async def list_queues(self, tenant: str) -> tuple[QueueInfo, ...]:
        """All queues of the tenant by name; dead-letter queues are not listed separately."""

    @abstractmethod
    async def delete_queue(self, tenant: str, name: str) -> None:
        """Remove the queue, its deliveries and its dead letters. The log stays (Q1)."""

    @abstractmethod
    async def pause(self, tenant: str, queue: str, paused: bool) -> None:
        """Stop or resume claims; everything else continues."""

    @abstractmethod
    async def put_topic(self, tenant: str, name: str, policy: TopicPolicy) -> None:
        """Register the topic, or replace its policy."""

    @abstractmethod
    async def get_topic(self, tenant: str, name: str) -> TopicPolicy | None:
        """The topic's policy, or None if the topic is not registered."""

    @abstractmethod
    async def list_topics(self, tenant: str) -> tuple[tuple[str, TopicPolicy], ...]:
        """All registered topics of the tenant by name."""

    @abstractmethod
    async def delete_topic(self, tenant: str, name: str) -> None:
        """Delete the topic's policy; its messages stay. ``UnknownTopic`` if there is none."""

    # -- message flow ------------------------------------------------------------------

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

        Raises ``TopicChanged``, before depths are compared, if ``checked`` differs (E1).

        A ``batch_id`` seen inside its window stores nothing: the first reply is returned, marked
        ``repeated``, even if the messages differ (P4). The window is the ``batch_ms`` of the call
        that stored the batch, even if the topic's dedup window changes; without it, the topic's
        dedup window. A batch id lets a caller repeat a call whose reply was lost. It costs one
        record per batch.

        For each message in order: an idempotency id seen inside the topic's dedup window (or in
        this batch) returns the first message's id and ``duplicate`` (P4). Otherwise, a ``key``
        whose message is waiting in all its queues, never settled in any, replaces payload, headers,
        content type and expiry in place: id, position, priority, partition key, deliver_at and
        attempts stay, a new log entry is appended, and the message is routed again: it leaves the
        queues whose filter is no longer TRUE and joins those where it now is. Otherwise, it is a
        new message, routed to every caught-up queue whose filter is TRUE (R1). With
        ``auto_create``, a message, new or replaced, goes to a new queue named after the topic if no
        queue's filter, caught up or not, is TRUE and no queue has that name. A replaced message
        that is in no queue closes its key. A message with ``auto_create=False`` creates no queue.
        The reply says how many queues have the message after this commit; None for a duplicate. A
        ``deliver_at`` later than now starts delayed. The topic's default ttl applies if
        ``expires_at`` is None.

        A queue that would exceed ``max_depth`` rejects the whole batch: ``QueueFull``.
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
        """Publish inside the transaction that the caller has open on ``connection``.

        The caller's commit makes the messages visible, a rollback leaves nothing (P2), and the
        reply's durability is ``transaction``. Only engines on a database that the caller can
        connect to support this; the others raise ``BadInput``.
        """
        raise BadInput(
            f"A {self.capabilities.engine} store cannot publish within a caller's transaction.",
            field="connection",
        )

    @abstractmethod
    async def batch(self, tenant: str, topic: str, batch_id: str) -> tuple[Published, ...] | None:
        """The published messages of a batch; None if its id is unknown or outside its window."""

    @abstractmethod
    async def claim(
        self,
        tenant: str,
        queue: str,
        consumer: str,
        limit: int,
        lease_ms: int | None,
        where: Filter | None = None,
    ) -> list[Delivery]:
        """Lease up to ``limit`` deliveries: priority descending, then publish order (C4).

        It may return fewer if their payloads exceed ``MAX_CLAIM_BYTES``, but always one.
        The lease is clamped to the policy's bounds; None uses ``lease_ms``. Every grant increments
        attempts, appends to the attempts record (C2) and issues a new receipt (C1). A waiting
        delivery without attempts left, because ``max_attempts`` was lowered, fails when the claim
        reaches it.

        A paused queue returns none. If the engine ``limits_throughput``, a claim returns no more
        than the queue's ``throughput_limit`` has tokens for, and charges them in the same commit.
        On an ordered queue the claim is also a heartbeat of ``consumer`` and serves only its
        partitions (O1).

        With ``where`` it hands out only deliveries that match, among the first ``MAX_CLAIM_SCAN``
        waiting ones; a partition whose first waiting delivery does not match is passed over.
        If the caller is cancelled, the engine releases what the claim granted.
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

        Repeating an ack is OK while its done record is kept. With ``publish`` the call is all or
        nothing: one stale receipt aborts it and nothing is published; a refused publish
        (``QueueFull``) settles nothing. A claim that an earlier call ended publishes nothing more.
        Repeating the call within ``REPEAT_WINDOW_MS``, with the same settlements except for
        extensions, returns the first reply, marked ``repeated`` (P4).
        """

    async def settle_and_claim(
        self,
        tenant: str,
        queue: str,
        settlements: Sequence[Settlement],
        consumer: str,
        limit: int,
        lease_ms: int | None,
    ) -> tuple[SettleReply, list[Delivery]]:
        """Settle, then claim from the same queue. An engine may do both in one commit."""
        settled = await self.settle(tenant, queue, settlements)
        return settled, await self.claim(tenant, queue, consumer, limit, lease_ms)

    @abstractmethod
    async def route(self, tenant: str, queue: str, limit: int) -> RouteReply:
        """Catch up: route up to ``limit`` log entries from the cursor, advancing it (R1).

        Assigning and advancing are one commit, so repeating the call assigns nothing twice. An
        existing delivery (of a replaced or replayed message) is not changed.
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
        """Catch up over ``[start, end)`` with the entries that an external router found (R1).

        One commit creates deliveries for the entries at ``offsets`` (ascending, in the range) and
        moves the cursor to ``end``. Offsets below the cursor are skipped because they are already
        routed, and a queue that is at ``end`` or caught up does not change, so a late or repeated
        call changes nothing. The router names the entries that match ``filter`` and every entry
        with a key. As in ``route``, the current message decides whether the queue takes it, and an
        existing delivery is not changed.

        Raises ``Conflict`` and does nothing if the queue's filter is no longer this text, if its
        cursor is below ``start`` (a gap), if ``end`` is beyond ``log_end``, or if the log has no
        entry at an offset that is still to be routed. Raises ``OtherStore`` if ``store``, the
        tenant's identity when the log was read, is not the current one.

        Reaching the end of the log does not make the queue caught up; ``route`` does that.
        ``scanned`` in the reply is how many of the named entries were examined.
        """

    @abstractmethod
    async def join(self, tenant: str, queue: str, consumer: str) -> Ownership:
        """Join an ordered queue, or heartbeat: renew the lease and rebalance (O1).

        The share of each of N live consumers is P÷N partitions, one more for the first P mod N by
        name, and at least 1. Excess is released (idle partitions first, then from the last name),
        then free partitions are taken by name. ``Conflict`` if the queue is not ordered.
        """

    @abstractmethod
    async def leave(self, tenant: str, queue: str, consumer: str) -> None:
        """Release every partition of the consumer immediately; its receipts become stale.

        Its in-flight deliveries return as with ``release``. An unknown consumer is not an error.
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
        ttl_ms: int | None = None,
    ) -> ReplayReply:
        """Make selected deliveries available again, with attempts 0, at their old position.

        Selects in publish order: ``failed`` or ``done`` deliveries, or log entries that match the
        queue's filter and are not live in it. The same ``replay_id`` moves a message only once.
        Deliveries past ``expires_at`` are skipped, unless ``ttl_ms`` gives them a new one, counted
        from when they are due. The log keeps the old one. Dead letters do not expire: ``Conflict``
        for a replay within a dead-letter queue. ``rate`` (per second) delays the i-th message by i
        * 1000 // rate ms; ``deliver_at`` still applies. ``dry_run`` counts up to ``limit`` and
        samples ten. Replaying ``Q.dlq`` from ``failed`` is replaying Q from ``failed``.
        """

    @abstractmethod
    async def purge(
        self, tenant: str, queue: str, state: State, where: Selection | None, limit: int
    ) -> PurgeReply:
        """Remove up to ``limit`` deliveries in ``state``. ``Conflict`` if it is in_flight."""

    @abstractmethod
    async def cancel(
        self, tenant: str, message_id: MessageId, queue: str | None = None
    ) -> CancelReply:
        """Remove the message's delivery in any state, from one queue or from every queue.

        All of it is one commit. The receipt of a live claim becomes stale (S1), and the message's
        key is closed. ``queue`` Q includes its dead letter, ``Q.dlq`` is the dead letter only.
        Queues that have not routed the message and will take it are ``pending`` in the reply.
        """

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
        """Page through deliveries in one state in claim order, consuming nothing.

        A page may be short or empty and still have a cursor: the scan is bounded.
        """

    @abstractmethod
    async def sweep(self, limit: int = 10_000) -> SweepReply:
        """Apply the passage of time to every queue, then apply retention (G1, A1)."""

    @abstractmethod
    async def archived(self, tenant: str, through: Offset, store: StoreIdentity) -> None:
        """Record that every entry at or below ``through`` has a verified copy (A1).

        ``store`` is the tenant's identity when the copy was made. Raises ``OtherStore`` and records
        nothing if it is not the current one or if the committed log does not reach ``through``.
        """

    # -- identity ----------------------------------------------------------------------

    @abstractmethod
    async def identity(self, tenant: str) -> StoreIdentity:
        """The identity of this store, for the tenant; the same on every server of a database.

        ``store`` is chosen when the store is first opened and never changes. ``epoch`` is new after
        ``new_epoch``, and after a restore or copy that the engine detects when it is opened.
        """

    @abstractmethod
    async def new_epoch(self) -> None:
        """Begin a new epoch for every tenant: identities recorded before are refused from now on.

        For a restore or copy that the engine cannot detect, and for a store that lost entries.
        """

    # -- reading; the log and histories are in ``penstock.storage.bulk`` ----------------

    @abstractmethod
    async def tenants(self) -> tuple[str, ...]:
        """Every tenant that has a queue or a topic or has ever published, by name."""

    @abstractmethod
    async def behind(self) -> tuple[tuple[str, str], ...]:
        """Every (tenant, queue) that ``route`` still has to catch up."""

    @abstractmethod
    async def next_due(self, tenant: str, queue: str) -> int | None:
        """When a claim of this queue may return more just because time has passed, or None.

        The earliest due time of a delayed delivery, deadline of a lease or, if the engine
        ``limits_throughput`` and the bucket is not full, time of the next token. It may be in the
        past, and it may be early but never late.
        """

    @abstractmethod
    async def message(self, tenant: str, message_id: MessageId) -> MessageDeliveries:
        """The message, its payload, its deliveries by queue name; in flight with their receipt."""

    @abstractmethod
    async def find(
        self, tenant: str, topic: str, id: str, partition_key: str | None = None
    ) -> Message | None:
        """The newest entry of the message that a publish with this id would be a duplicate of."""

    @abstractmethod
    async def result(self, tenant: str, queue: str, message_id: MessageId) -> Result | None:
        """How the delivery ended, or None while it has not, or while it is not routed yet.

        A dead letter is a failure of Q until it is acked in ``Q.dlq``; then it is done for both.
        For ``Q.dlq`` only that ack is a result. Raises ``UnknownDelivery`` if the queue has routed
        the message and has no delivery of it.
        """

    @abstractmethod
    async def stats(self, tenant: str, queue: str) -> QueueStats:
        """The queue's counters (Q2)."""

    async def counts(self, tenant: str, queues: Sequence[str]) -> tuple[QueueCounts | None, ...]:
        """The counts of several queues, for watching; None for a queue that does not exist.

        An engine that has them in memory overrides this and takes at most 20 µs per queue.
        """
        return await count_each(self, tenant, queues)

    @abstractmethod
    async def close(self) -> None:
        """Commit staged changes and release the store. Closing twice is allowed."""
