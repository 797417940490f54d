"""The verbs of the public API, as a protocol.

``penstock.open(url)`` implements them over a store in this process, ``penstock.connect(url)``
over HTTP; they behave the same, down to the errors. The worker, the command line and ``penstock
verify`` need only this protocol, so they run on either. ``penstock.sync`` is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

from penstock.consume_api import ConsumeApi
from penstock.job_api import JobApi
from penstock.model.delivery import (
    CancelReply,
    ClaimOrder,
    Delivery,
    Event,
    FoundMessages,
    LogPage,
    MessageDeliveries,
    Outcome,
    Ownership,
    Page,
    PurgeReply,
    QueueStats,
    ReplayReply,
    ReplaySource,
    Result,
    RouteReply,
    SettleAndClaimReply,
    Settlement,
    SettleReply,
    SweepReply,
)
from penstock.model.duration import Duration
from penstock.model.failures import FAILURE_SCAN, Failures
from penstock.model.identity import StoreIdentity
from penstock.model.limits import DEFAULT_PRIORITY, MAX_PAGE
from penstock.model.message import (
    NO_HEADERS,
    Durability,
    HeaderValue,
    NewMessage,
    Offset,
    Outgoing,
    Published,
    PublishReply,
)
from penstock.model.policy_fields import PolicyChanges, PolicyFields
from penstock.model.queue import QueueInfo, Start, TopicPolicy
from penstock.model.reports import HistoryPage, Preview, Why
from penstock.model.settling_exceptions import SettlingException
from penstock.model.states import State
from penstock.webhook_api import WebhookApi

if TYPE_CHECKING:
    from penstock.filters.editor import Completions, Diagnosis

__all__ = ["ANONYMOUS", "BULK_LIMIT", "ROUTE_BATCH", "QueueApi"]

#: The default name of a claim's consumer.
ANONYMOUS = "anonymous"
#: Log entries that one call of ``route`` reads.
ROUTE_BATCH = 10_000
#: The default limit of a replay or purge.
BULK_LIMIT = 1_000_000


class QueueApi(ConsumeApi, JobApi, WebhookApi, Protocol):
    """The verbs of a queue service, for one tenant."""

    # -- queues and topics -------------------------------------------------------------

    async def create_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue; ``QueueExists`` if there is one with another policy.

        ``start`` other than ``latest`` also takes older messages; the router catches the queue up.
        """
        ...

    async def ensure_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue, or leave the one of that name alone, even if its policy differs."""
        ...

    async def put_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue, or replace the whole policy of the one of that name."""
        ...

    async def update_queue(self, name: str, **changes: Unpack[PolicyChanges]) -> QueueInfo:
        """Change some fields of a queue's policy and keep the others."""
        ...

    async def queue(self, name: str) -> QueueInfo:
        """The queue's policy and state."""
        ...

    async def queues(self, *, labels: Mapping[str, str] | None = None) -> tuple[QueueInfo, ...]:
        """The queues by name: all, or those that have all of these labels."""
        ...

    async def delete_queue(self, name: str) -> None:
        """Remove a queue, its deliveries and its dead letters; the log stays."""
        ...

    async def pause(self, queue: str) -> None:
        """Hand out nothing until ``resume``."""
        ...

    async def resume(self, queue: str) -> None:
        """Hand out deliveries again."""
        ...

    async def put_topic(self, name: str, policy: TopicPolicy | None = None) -> None:
        """Register a topic, or replace its policy."""
        ...

    async def topic(self, name: str) -> TopicPolicy | None:
        """The topic's policy, or None when it is not registered."""
        ...

    async def topics(self) -> tuple[tuple[str, TopicPolicy], ...]:
        """All registered topics by name."""
        ...

    async def delete_topic(self, name: str) -> None:
        """Remove a topic's policy; its messages stay."""
        ...

    # -- publishing, claiming, settling ------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: object,
        *,
        headers: Mapping[str, HeaderValue] = NO_HEADERS,
        id: str | None = None,
        key: str | None = None,
        partition_key: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        content_type: str | None = None,
        delay_ms: Duration | None = None,
        deliver_at: int | None = None,
        ttl_ms: Duration | None = None,
        expires_at: int | None = None,
        auto_create: bool = True,
        max_attempts: int | None = None,
        durability: Durability = "fsync",
        connection: object | None = None,
    ) -> Published:
        """Publish one message: bytes unchanged, text as UTF-8, anything else as JSON.

        The reply says how many queues have the message. With ``auto_create=False`` the message
        creates no queue if no queue takes it.

        With a ``connection`` to the store's own database, the message is part of the transaction
        open there: it is published if and when that transaction commits. A server cannot do that.
        """
        ...

    async def publish_batch(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        durability: Durability = "fsync",
        batch_id: str | None = None,
        batch_ms: Duration | None = None,
        auto_create: bool = True,
        connection: object | None = None,
    ) -> PublishReply:
        """Publish a batch: all of it or nothing (P2), once per ``batch_id`` (P4).

        The id is remembered for the topic's dedup window, or for ``batch_ms``.
        With ``auto_create=False`` no message of the batch creates a queue.
        With a ``connection`` the batch is part of the transaction open there, as in ``publish``.
        """
        ...

    async def claim(
        self,
        queue: str | Sequence[str],
        *,
        limit: int = 1,
        consumer: str = ANONYMOUS,
        lease_ms: Duration | None = None,
        wait_ms: Duration = 0,
        order: ClaimOrder = "given",
        where: str | None = None,
    ) -> list[Delivery]:
        """Lease up to ``limit`` deliveries, waiting up to ``wait_ms`` for the first.

        Of several queues, ``given`` uses a queue only if those before it have too few deliveries;
        ``fair`` gives every queue its turn. With ``where`` only deliveries that match this filter
        are leased, of the first 1,000 that wait; the others stay as they are.
        """
        ...

    async def settle(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        *,
        publish: Sequence[Outgoing] = (),
    ) -> SettleReply:
        """End claims, each on its own; with ``publish``, all of it in one commit or nothing."""
        ...

    async def settle_and_claim(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        *,
        publish: Sequence[Outgoing] = (),
        limit: int = 1,
        consumer: str = ANONYMOUS,
        lease_ms: Duration | None = None,
        wait_ms: Duration = 0,
        where: str | None = None,
    ) -> SettleAndClaimReply:
        """Settle, then claim from the queue; the outcomes wait for the claim too."""
        ...

    async def ack(self, delivery: Delivery, result: object = None) -> Outcome:
        """Mark as done; ``result`` is stored like a payload.

        Raises ``StaleReceipt`` if the claim is no longer current.
        """
        ...

    async def nack(
        self, delivery: Delivery, error: str | None = None, *, delay_ms: Duration | None = None
    ) -> Outcome:
        """Retry later, or fail when no attempts are left."""
        ...

    async def reject(self, delivery: Delivery, error: str | None = None) -> Outcome:
        """Fail immediately, without a retry."""
        ...

    async def release(self, delivery: Delivery, delay_ms: Duration | None = None) -> Outcome:
        """Return the delivery unprocessed, to be handed out again now or after ``delay_ms``.

        The grant does not count as an attempt.
        """
        ...

    async def extend(self, delivery: Delivery, lease_ms: Duration | None = None) -> Outcome:
        """Set the end of the lease to ``lease_ms`` from now; by default, the queue's lease."""
        ...

    async def join(self, queue: str, consumer: str) -> Ownership:
        """Join an ordered queue, or heartbeat."""
        ...

    async def leave(self, queue: str, consumer: str) -> None:
        """Release the consumer's partitions immediately."""
        ...

    # -- bulk verbs --------------------------------------------------------------------

    async def route(self, queue: str, limit: int = ROUTE_BATCH) -> RouteReply:
        """Catch a queue up by at most ``limit`` log entries."""
        ...

    async def assign(
        self,
        queue: str,
        *,
        filter: str,
        start: int,
        end: int,
        offsets: Sequence[int],
        store: StoreIdentity | None = None,
    ) -> RouteReply:
        """Catch a queue up by ``[start, end)``; it may take only the entries in ``offsets``.

        For an external router: pass the entries that the queue's ``filter`` takes, and every entry
        with a key. Entries routed meanwhile are skipped, so a call may be repeated. ``store`` is
        what ``identity`` returned before the log was read: offsets of another store are refused
        with ``OtherStore``.
        """
        ...

    async def replay(
        self,
        queue: str,
        source: ReplaySource | str = ReplaySource.FAILED,
        *,
        where: str | None = None,
        ids: Sequence[int] | None = None,
        limit: int = BULK_LIMIT,
        rate: int | None = None,
        dry_run: bool = False,
        replay_id: str | None = None,
        ttl_ms: Duration | None = None,
    ) -> ReplayReply:
        """Make deliveries available again, with attempts 0, at their old position.

        ``where`` and ``ids`` select deliveries; with both, those that match both. Expired ones are
        skipped, unless ``ttl_ms`` gives all of them a new expiry: that long after they are due.
        """
        ...

    async def purge(
        self,
        queue: str,
        state: State | str,
        *,
        where: str | None = None,
        ids: Sequence[int] | None = None,
        limit: int = BULK_LIMIT,
    ) -> PurgeReply:
        """Remove deliveries in one state for good."""
        ...

    async def cancel(self, message_id: int, *, queue: str | None = None) -> CancelReply:
        """Remove the delivery of a message, in any state, from one queue or from every queue.

        A consumer that holds it gets a stale receipt. Queues that have not routed the message yet
        are ``pending`` in the reply. Repeating a cancel removes nothing.
        """
        ...

    async def peek(
        self,
        queue: str,
        state: State | str = State.AVAILABLE,
        *,
        where: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        payloads: bool = False,
    ) -> Page:
        """Browse deliveries in one state, consuming nothing."""
        ...

    async def sweep(self, limit: int = 10_000) -> SweepReply:
        """Apply the passage of time to every queue, and remove what retention allows."""
        ...

    async def archived(self, through: int, store: StoreIdentity) -> None:
        """Report to retention that everything up to ``through`` has a verified copy (A1).

        ``store`` is what ``identity`` returned when the copy was made.
        """
        ...

    # -- reading -----------------------------------------------------------------------

    async def read_log(
        self, start: int = 0, *, limit: int = MAX_PAGE, payloads: bool = False
    ) -> LogPage:
        """Committed log entries from an offset on."""
        ...

    async def queue_log(self, queue: str, start: int, *, limit: int = MAX_PAGE) -> LogPage:
        """Entries from an offset on whose messages have, or had, deliveries in the queue.

        With payloads, for a consumer that rereads what it was handed; ``limit`` counts the log
        entries that are scanned.
        """
        ...

    async def batch_log(
        self, topic: str, batch_id: str, start: int, *, limit: int = MAX_PAGE
    ) -> LogPage:
        """Entries from an offset on that were published to a topic under a batch id.

        With payloads, for a publisher that rereads what it has published, as long as the id is
        remembered.
        """
        ...

    async def identity(self) -> StoreIdentity:
        """The identity of the store. Offsets are valid only within one store."""
        ...

    async def log_end(self) -> Offset:
        """The offset after the last committed entry."""
        ...

    async def log_trimmed(self) -> Offset:
        """The offset after the last entry that retention has removed; 0 if none.

        A reader that has read up to there has missed nothing.
        """
        ...

    async def log_start(self) -> Offset:
        """The first offset that is still there; the end of the log if it is empty."""
        ...

    async def log_splits(self, start: int, end: int, entries: int) -> tuple[Offset, ...]:
        """Offsets that split a part of the log into pieces of about ``entries`` entries each.

        The first is ``start``, the last the lower of ``end`` and the end of the log.
        """
        ...

    async def preview(self, filter: str, *, start: int = 0) -> Preview:
        """What a queue with this filter would take from the log: a count and a sample."""
        ...

    async def validate_filter(self, text: str) -> Diagnosis:
        """Whether the text is a filter; if not, the reason and the position. Does not raise."""
        ...

    async def complete_filter(
        self, text: str, cursor: int, *, headers: Sequence[str] = ()
    ) -> Completions:
        """What may stand at the offset ``cursor`` of a filter, for these known header names."""
        ...

    async def find(
        self,
        topic: str,
        *,
        id: str | None = None,
        key: str | None = None,
        partition_key: str | None = None,
        start: int = 0,
    ) -> FoundMessages:
        """The messages of a topic with this idempotency id or key.

        An id is found inside the topic's dedup window. If its ids are unique per partition only,
        the ``partition_key`` is needed too. A key is searched for in the log, in up to
        10,000 entries from ``start`` on; continue at the reply's ``next_offset``.
        """
        ...

    async def message(self, message_id: int) -> MessageDeliveries:
        """A message, its payload, and its state in every queue."""
        ...

    async def result(self, queue: str, message_id: int, *, wait_ms: Duration = 0) -> Result | None:
        """How a delivery ended, waiting up to ``wait_ms`` for it; None if it has not ended.

        Raises ``UnknownDelivery`` if the queue has none, ``UnknownMessage`` if the log has not.
        """
        ...

    async def history(self, message_id: int) -> tuple[Event, ...]:
        """Every transition of a message's deliveries that is still on record."""
        ...

    async def queue_history(
        self, queue: str, start: int = 0, *, limit: int = MAX_PAGE
    ) -> HistoryPage:
        """The transitions in one queue of the messages at and above an offset."""
        ...

    async def stats(self, queue: str) -> QueueStats:
        """The statistics of a queue."""
        ...

    async def failures(
        self,
        queue: str,
        *,
        where: str | None = None,
        fingerprint: str | None = None,
        limit: int = FAILURE_SCAN,
    ) -> Failures:
        """The failed deliveries of a queue by error, the largest group first; ``limit`` are read.

        With a ``fingerprint`` of a group, that group alone, with the ids of its messages.
        """
        ...

    async def explain(self, queue: str, message_id: int) -> Why:
        """Why a queue does or does not hand out a message."""
        ...

    async def close(self) -> None:
        """Finish the calls in progress, then disconnect."""
        ...
