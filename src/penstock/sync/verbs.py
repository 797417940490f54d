"""The verbs of ``penstock.api`` as blocking calls.

Generated from ``penstock.api`` by ``generate.py``: change that, and generate again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from penstock.api import ANONYMOUS, BULK_LIMIT, ROUTE_BATCH
from penstock.filters.editor import Completions, Diagnosis
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
from penstock.model.runs import Run, StoredReport
from penstock.model.server_settings import ServerSettings
from penstock.model.settling_exceptions import SettlingException
from penstock.model.states import State
from penstock.model.webhooks import NewWebhook, Webhook
from penstock.model.writes import Write
from penstock.sync.blocking import BlockingVerbs, SyncBatchConsumption, SyncConsumption

__all__ = ["SyncVerbs"]


class SyncVerbs(BlockingVerbs):
    """The verbs of a queue service, for one tenant."""

    def create_queue(
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
        return self._run(self._verbs.create_queue, name, filter, start=start, **policy)

    def ensure_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue, or leave the one of that name alone, even if its policy differs."""
        return self._run(self._verbs.ensure_queue, name, filter, start=start, **policy)

    def put_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue, or replace the whole policy of the one of that name."""
        return self._run(self._verbs.put_queue, name, filter, start=start, **policy)

    def update_queue(self, name: str, **changes: Unpack[PolicyChanges]) -> QueueInfo:
        """Change some fields of a queue's policy and keep the others."""
        return self._run(self._verbs.update_queue, name, **changes)

    def queue(self, name: str) -> QueueInfo:
        """The queue's policy and state."""
        return self._run(self._verbs.queue, name)

    def queues(self, *, labels: Mapping[str, str] | None = None) -> tuple[QueueInfo, ...]:
        """The queues by name: all, or those that have all of these labels."""
        return self._run(self._verbs.queues, labels=labels)

    def delete_queue(self, name: str) -> None:
        """Remove a queue, its deliveries and its dead letters; the log stays."""
        self._run(self._verbs.delete_queue, name)

    def pause(self, queue: str) -> None:
        """Hand out nothing until ``resume``."""
        self._run(self._verbs.pause, queue)

    def resume(self, queue: str) -> None:
        """Hand out deliveries again."""
        self._run(self._verbs.resume, queue)

    def put_topic(self, name: str, policy: TopicPolicy | None = None) -> None:
        """Register a topic, or replace its policy."""
        self._run(self._verbs.put_topic, name, policy)

    def topic(self, name: str) -> TopicPolicy | None:
        """The topic's policy, or None when it is not registered."""
        return self._run(self._verbs.topic, name)

    def topics(self) -> tuple[tuple[str, TopicPolicy], ...]:
        """All registered topics by name."""
        return self._run(self._verbs.topics)

    def delete_topic(self, name: str) -> None:
        """Remove a topic's policy; its messages stay."""
        self._run(self._verbs.delete_topic, name)

    def publish(
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
        return self._run(
            self._verbs.publish,
            topic,
            payload,
            headers=headers,
            id=id,
            key=key,
            partition_key=partition_key,
            priority=priority,
            content_type=content_type,
            delay_ms=delay_ms,
            deliver_at=deliver_at,
            ttl_ms=ttl_ms,
            expires_at=expires_at,
            auto_create=auto_create,
            max_attempts=max_attempts,
            durability=durability,
            connection=connection,
        )

    def publish_batch(
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
        return self._run(
            self._verbs.publish_batch,
            topic,
            messages,
            durability=durability,
            batch_id=batch_id,
            batch_ms=batch_ms,
            auto_create=auto_create,
            connection=connection,
        )

    def claim(
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
        return self._run(
            self._verbs.claim,
            queue,
            limit=limit,
            consumer=consumer,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            order=order,
            where=where,
        )

    def settle(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        *,
        publish: Sequence[Outgoing] = (),
    ) -> SettleReply:
        """End claims, each on its own; with ``publish``, all of it in one commit or nothing."""
        return self._run(self._verbs.settle, queue, settlements, publish=publish)

    def settle_and_claim(
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
        return self._run(
            self._verbs.settle_and_claim,
            queue,
            settlements,
            publish=publish,
            limit=limit,
            consumer=consumer,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            where=where,
        )

    def ack(self, delivery: Delivery, result: object = None) -> Outcome:
        """Mark as done; ``result`` is stored like a payload.

        Raises ``StaleReceipt`` if the claim is no longer current.
        """
        return self._run(self._verbs.ack, delivery, result)

    def nack(
        self, delivery: Delivery, error: str | None = None, *, delay_ms: Duration | None = None
    ) -> Outcome:
        """Retry later, or fail when no attempts are left."""
        return self._run(self._verbs.nack, delivery, error, delay_ms=delay_ms)

    def reject(self, delivery: Delivery, error: str | None = None) -> Outcome:
        """Fail immediately, without a retry."""
        return self._run(self._verbs.reject, delivery, error)

    def release(self, delivery: Delivery, delay_ms: Duration | None = None) -> Outcome:
        """Return the delivery unprocessed, to be handed out again now or after ``delay_ms``.

        The grant does not count as an attempt.
        """
        return self._run(self._verbs.release, delivery, delay_ms)

    def extend(self, delivery: Delivery, lease_ms: Duration | None = None) -> Outcome:
        """Set the end of the lease to ``lease_ms`` from now; by default, the queue's lease."""
        return self._run(self._verbs.extend, delivery, lease_ms)

    def join(self, queue: str, consumer: str) -> Ownership:
        """Join an ordered queue, or heartbeat."""
        return self._run(self._verbs.join, queue, consumer)

    def leave(self, queue: str, consumer: str) -> None:
        """Release the consumer's partitions immediately."""
        self._run(self._verbs.leave, queue, consumer)

    def route(self, queue: str, limit: int = ROUTE_BATCH) -> RouteReply:
        """Catch a queue up by at most ``limit`` log entries."""
        return self._run(self._verbs.route, queue, limit)

    def assign(
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
        return self._run(
            self._verbs.assign,
            queue,
            filter=filter,
            start=start,
            end=end,
            offsets=offsets,
            store=store,
        )

    def replay(
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
        return self._run(
            self._verbs.replay,
            queue,
            source,
            where=where,
            ids=ids,
            limit=limit,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
            ttl_ms=ttl_ms,
        )

    def purge(
        self,
        queue: str,
        state: State | str,
        *,
        where: str | None = None,
        ids: Sequence[int] | None = None,
        limit: int = BULK_LIMIT,
    ) -> PurgeReply:
        """Remove deliveries in one state for good."""
        return self._run(self._verbs.purge, queue, state, where=where, ids=ids, limit=limit)

    def cancel(self, message_id: int, *, queue: str | None = None) -> CancelReply:
        """Remove the delivery of a message, in any state, from one queue or from every queue.

        A consumer that holds it gets a stale receipt. Queues that have not routed the message yet
        are ``pending`` in the reply. Repeating a cancel removes nothing.
        """
        return self._run(self._verbs.cancel, message_id, queue=queue)

    def peek(
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
        return self._run(
            self._verbs.peek,
            queue,
            state,
            where=where,
            limit=limit,
            cursor=cursor,
            payloads=payloads,
        )

    def sweep(self, limit: int = 10000) -> SweepReply:
        """Apply the passage of time to every queue, and remove what retention allows."""
        return self._run(self._verbs.sweep, limit)

    def archived(self, through: int, store: StoreIdentity) -> None:
        """Report to retention that everything up to ``through`` has a verified copy (A1).

        ``store`` is what ``identity`` returned when the copy was made.
        """
        self._run(self._verbs.archived, through, store)

    def read_log(self, start: int = 0, *, limit: int = MAX_PAGE, payloads: bool = False) -> LogPage:
        """Committed log entries from an offset on."""
        return self._run(self._verbs.read_log, start, limit=limit, payloads=payloads)

    def queue_log(self, queue: str, start: int, *, limit: int = MAX_PAGE) -> LogPage:
        """Entries from an offset on whose messages have, or had, deliveries in the queue.

        With payloads, for a consumer that rereads what it was handed; ``limit`` counts the log
        entries that are scanned.
        """
        return self._run(self._verbs.queue_log, queue, start, limit=limit)

    def batch_log(self, topic: str, batch_id: str, start: int, *, limit: int = MAX_PAGE) -> LogPage:
        """Entries from an offset on that were published to a topic under a batch id.

        With payloads, for a publisher that rereads what it has published, as long as the id is
        remembered.
        """
        return self._run(self._verbs.batch_log, topic, batch_id, start, limit=limit)

    def identity(self) -> StoreIdentity:
        """The identity of the store. Offsets are valid only within one store."""
        return self._run(self._verbs.identity)

    def log_end(self) -> Offset:
        """The offset after the last committed entry."""
        return self._run(self._verbs.log_end)

    def log_trimmed(self) -> Offset:
        """The offset after the last entry that retention has removed; 0 if none.

        A reader that has read up to there has missed nothing.
        """
        return self._run(self._verbs.log_trimmed)

    def log_start(self) -> Offset:
        """The first offset that is still there; the end of the log if it is empty."""
        return self._run(self._verbs.log_start)

    def log_splits(self, start: int, end: int, entries: int) -> tuple[Offset, ...]:
        """Offsets that split a part of the log into pieces of about ``entries`` entries each.

        The first is ``start``, the last the lower of ``end`` and the end of the log.
        """
        return self._run(self._verbs.log_splits, start, end, entries)

    def preview(self, filter: str, *, start: int = 0) -> Preview:
        """What a queue with this filter would take from the log: a count and a sample."""
        return self._run(self._verbs.preview, filter, start=start)

    def validate_filter(self, text: str) -> Diagnosis:
        """Whether the text is a filter; if not, the reason and the position. Does not raise."""
        return self._run(self._verbs.validate_filter, text)

    def complete_filter(
        self, text: str, cursor: int, *, headers: Sequence[str] = ()
    ) -> Completions:
        """What may stand at the offset ``cursor`` of a filter, for these known header names."""
        return self._run(self._verbs.complete_filter, text, cursor, headers=headers)

    def find(
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
        return self._run(
            self._verbs.find, topic, id=id, key=key, partition_key=partition_key, start=start
        )

    def message(self, message_id: int) -> MessageDeliveries:
        """A message, its payload, and its state in every queue."""
        return self._run(self._verbs.message, message_id)

    def result(self, queue: str, message_id: int, *, wait_ms: Duration = 0) -> Result | None:
        """How a delivery ended, waiting up to ``wait_ms`` for it; None if it has not ended.

        Raises ``UnknownDelivery`` if the queue has none, ``UnknownMessage`` if the log has not.
        """
        return self._run(self._verbs.result, queue, message_id, wait_ms=wait_ms)

    def history(self, message_id: int) -> tuple[Event, ...]:
        """Every transition of a message's deliveries that is still on record."""
        return self._run(self._verbs.history, message_id)

    def queue_history(self, queue: str, start: int = 0, *, limit: int = MAX_PAGE) -> HistoryPage:
        """The transitions in one queue of the messages at and above an offset."""
        return self._run(self._verbs.queue_history, queue, start, limit=limit)

    def stats(self, queue: str) -> QueueStats:
        """The statistics of a queue."""
        return self._run(self._verbs.stats, queue)

    def failures(
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
        return self._run(
            self._verbs.failures, queue, where=where, fingerprint=fingerprint, limit=limit
        )

    def explain(self, queue: str, message_id: int) -> Why:
        """Why a queue does or does not hand out a message."""
        return self._run(self._verbs.explain, queue, message_id)

    def consume(
        self,
        queue: str | Sequence[str],
        *,
        consumer: str | None = None,
        max_in_flight: int = 32,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
    ) -> SyncConsumption:
        """Claim forever: ``for delivery in q.consume(…): with delivery: …``.

        ``with q.consume(…) as deliveries:`` sends, when it ends, what was settled, and
        releases what was claimed ahead.
        """
        return self._iterate(
            self._verbs.consume,
            queue,
            consumer=consumer,
            max_in_flight=max_in_flight,
            lease_ms=lease_ms,
            order=order,
            where=where,
        )

    def consume_batches(
        self,
        queue: str | Sequence[str],
        *,
        size: int = 100,
        consumer: str | None = None,
        max_in_flight: int | None = None,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
    ) -> SyncBatchConsumption:
        """Claim forever, many at a time: ``for batch in …: with batch: …``.

        Like ``consume``, closed by the end of ``with`` around the loop.
        """
        return self._iterate_batches(
            self._verbs.consume_batches,
            queue,
            size=size,
            consumer=consumer,
            max_in_flight=max_in_flight,
            lease_ms=lease_ms,
            order=order,
            where=where,
        )

    def begin_write(
        self, topic: str, id: str, run: str, *, number: int | None = None, all_topics: bool = False
    ) -> Write:
        """Begin a write to a topic, unless a run has begun it already; returns the stored write.

        For a job that publishes in many batches: another run of the same write learns that it
        was begun, and whether it is finished, before it publishes anything. Writes with a
        ``number`` follow each other under one id: only the last is remembered, and an earlier
        one is refused (``Conflict``).

        With ``all_topics`` the id means one write to all topics: the run that began it for the
        first topic has begun it for the others too.
        """
        return self._run(
            self._verbs.begin_write, topic, id, run, number=number, all_topics=all_topics
        )

    def finish_write(
        self, topic: str, id: str, run: str, rows: int, *, number: int | None = None
    ) -> Write:
        """Finish a write that has published ``rows`` messages; it is kept for 30 days."""
        return self._run(self._verbs.finish_write, topic, id, run, rows, number=number)

    def put_run(self, run: Run) -> None:
        """Store a run, or an update of it; the last 1,000 are kept."""
        self._run(self._verbs.put_run, run)

    def run(self, id: str) -> Run | None:
        """The run, or None when it is not on record."""
        return self._run(self._verbs.run, id)

    def runs(self, job: str | None = None, limit: int = 100) -> tuple[Run, ...]:
        """Runs of one job or of all, the newest first."""
        return self._run(self._verbs.runs, job, limit)

    def put_report(self, page: str) -> None:
        """Store the page of a report, for the console; it replaces the one before."""
        self._run(self._verbs.put_report, page)

    def report(self) -> StoredReport | None:
        """The newest report, or None if there is none."""
        return self._run(self._verbs.report)

    def server_settings(self) -> ServerSettings:
        """The settings of the server that jobs and commands depend on."""
        return self._run(self._verbs.server_settings)

    def put_webhook(
        self,
        id: str,
        url: str,
        *,
        queue: str,
        events: Sequence[str],
        threshold: int | None = None,
        headers: Mapping[str, str] | None = None,
        description: str = "",
        enabled: bool = True,
        secret: str | None = None,
    ) -> NewWebhook:
        """Create a webhook, or replace the one of that id.

        ``queue`` is a name, or a pattern in which ``*`` stands for any characters. The reply has
        the secret if the webhook is new and none was given. A replaced webhook keeps its secret
        unless another one is given. ``threshold`` is the depth of ``queue.depth``.
        """
        return self._run(
            self._verbs.put_webhook,
            id,
            url,
            queue=queue,
            events=events,
            threshold=threshold,
            headers=headers,
            description=description,
            enabled=enabled,
            secret=secret,
        )

    def webhook(self, id: str) -> Webhook:
        """The webhook, without its secret."""
        return self._run(self._verbs.webhook, id)

    def webhooks(self) -> tuple[Webhook, ...]:
        """All webhooks by id, without their secrets."""
        return self._run(self._verbs.webhooks)

    def delete_webhook(self, id: str) -> None:
        """Remove a webhook, with the events that it has not delivered and its dead letters."""
        self._run(self._verbs.delete_webhook, id)

    def test_webhook(self, id: str) -> Published:
        """Send a ``webhook.test`` event to one webhook, through its queue.

        ``result`` of the queue ``penstock.webhook.<id>`` says how the call ended.
        """
        return self._run(self._verbs.test_webhook, id)
