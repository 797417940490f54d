"""The broker: every verb a program has, over whatever engine is below.

It refuses bad input before anything is touched (E1), applies the limits that need no state,
and answers in the words of docs/semantics.md. One broker serves one tenant;
``for_tenant`` gives another's, over the same engine (T1).

Waiting, payload schemas and keepers come with the service; until then a program that
embeds Penstock calls ``sweep`` and ``route`` itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

from msgspec import Struct

from penstock.broker.claim import Throttle, check_claim
from penstock.broker.explain import Why, explain_delivery
from penstock.broker.publish import check_batch, to_payload
from penstock.broker.queues import changed_policy, new_policy, to_start
from penstock.broker.settle import check_settlements
from penstock.errors import BadInput, StaleReceipt, UnknownTopic
from penstock.filters import Filter, parse
from penstock.model.delivery import (
    Ack,
    Delivery,
    Event,
    Extend,
    LogEntry,
    LogPage,
    MessageDeliveries,
    Nack,
    Outcome,
    Ownership,
    Page,
    PurgeReply,
    QueueStats,
    Reject,
    Release,
    ReplayReply,
    ReplaySource,
    Result,
    RouteReply,
    Settlement,
    SettleReply,
    Snapshot,
    SweepReply,
)
from penstock.model.limits import (
    DEFAULT_PRIORITY,
    MAX_KEY_BYTES,
    MAX_PAGE,
    check_name,
    check_queue_name,
)
from penstock.model.message import (
    NO_HEADERS,
    Durability,
    HeaderValue,
    MessageId,
    NewMessage,
    Offset,
    Published,
    PublishReply,
)
from penstock.model.queue import (
    Ordering,
    QueueInfo,
    QueuePolicy,
    Start,
    TopicPolicy,
    check_topic_policy,
)
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions, Outgoing

__all__ = ["Broker", "BrokerOptions", "Preview"]

#: Entries that one call of ``route`` or one page of ``preview`` looks at.
ROUTE_BATCH: Final = 10_000
#: Deliveries that a replay or purge takes without being told a limit.
BULK_LIMIT: Final = 1_000_000
_SAMPLE: Final = 10
_ANONYMOUS: Final = "anonymous"


class BrokerOptions(Struct, frozen=True, kw_only=True):
    """What an operator may choose; the engine's own choices are inside."""

    engine: EngineOptions = EngineOptions()
    require_topics: bool = False
    """Publishing to a topic that was not registered is refused."""


class Preview(Struct, frozen=True):
    """What a filter would take from the log."""

    count: int
    scanned: int
    sample: tuple[LogEntry, ...]


class Broker:
    """The verbs, for one tenant."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str = "default") -> None:
        self._engine = engine
        self._options = options
        self._limits = options.engine.limits
        self._clock = options.engine.clock
        self._throttles: dict[tuple[str, str], Throttle] = {}
        self.tenant = check_name(tenant, "tenant")

    @property
    def engine(self) -> Engine:
        """The engine below, for those who need the contract itself."""
        return self._engine

    def for_tenant(self, tenant: str) -> Broker:
        """The same store as another tenant sees it; closing either closes both."""
        other = Broker(self._engine, self._options, tenant)
        other._throttles = self._throttles
        return other

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Commit what is staged and release the store."""
        await self._engine.close()

    # -- queues and topics -------------------------------------------------------------

    async def create_queue(
        self, name: str, filter: str = "TRUE", *, start: str | Start = "latest", **policy: object
    ) -> QueueInfo:
        """Create a queue, or give the one of that name exactly this policy.

        ``start`` other than ``latest`` takes history: call ``route`` until it is caught up.
        """
        check_name(name, "queue")
        wanted = new_policy({"filter": filter, **policy})
        return await self._put(name, wanted, to_start(start))

    async def update_queue(self, name: str, **changes: object) -> QueueInfo:
        """Change some fields of a queue's policy; the others stay."""
        check_name(name, "queue")
        info = await self._engine.get_queue(self.tenant, name)
        return await self._put(name, changed_policy(info.policy, changes), Start())

    async def queue(self, name: str) -> QueueInfo:
        """The queue as it is."""
        return await self._engine.get_queue(self.tenant, check_queue_name(name))

    async def queues(self) -> tuple[QueueInfo, ...]:
        """All queues by name."""
        return await self._engine.list_queues(self.tenant)

    async def delete_queue(self, name: str) -> None:
        """Remove a queue, its deliveries and its dead letters; the log stays."""
        await self._engine.delete_queue(self.tenant, check_name(name, "queue"))
        self._throttles.pop((self.tenant, name), None)

    async def pause(self, queue: str) -> None:
        """Hand out nothing until ``resume``."""
        await self._engine.pause(self.tenant, check_queue_name(queue), True)

    async def resume(self, queue: str) -> None:
        """Hand out again."""
        await self._engine.pause(self.tenant, check_queue_name(queue), False)

    async def put_topic(self, name: str, policy: TopicPolicy | None = None) -> None:
        """Register a topic, or replace its policy."""
        checked = check_topic_policy(policy or TopicPolicy())
        await self._engine.put_topic(self.tenant, check_name(name, "topic"), checked)

    async def topic(self, name: str) -> TopicPolicy | None:
        """The topic's policy, or None when it is not registered."""
        return await self._engine.get_topic(self.tenant, check_name(name, "topic"))

    async def topics(self) -> tuple[tuple[str, TopicPolicy], ...]:
        """All registered topics by name."""
        return await self._engine.list_topics(self.tenant)

    async def delete_topic(self, name: str) -> None:
        """Forget a topic's policy; its messages stay."""
        await self._engine.delete_topic(self.tenant, check_name(name, "topic"))

    # -- publish -----------------------------------------------------------------------

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
        delay_ms: int | None = None,
        deliver_at: int | None = None,
        ttl_ms: int | None = None,
        expires_at: int | None = None,
        durability: Durability = "fsync",
    ) -> Published:
        """Publish one message: bytes as they are, text as UTF-8, anything else as JSON."""
        raw, natural_type = to_payload(payload)
        message = NewMessage(
            raw,
            headers,
            id,
            key,
            partition_key,
            priority,
            natural_type if content_type is None else content_type,
            deliver_at,
            expires_at,
            delay_ms,
            ttl_ms,
        )
        reply = await self.publish_batch(topic, (message,), durability=durability)
        return reply.messages[0]

    async def publish_batch(
        self, topic: str, messages: Sequence[NewMessage], *, durability: Durability = "fsync"
    ) -> PublishReply:
        """Publish a batch: all of it or nothing (P2)."""
        if durability not in ("fsync", "os"):
            raise BadInput(
                f"durability is {durability!r}; it is fsync or os.", field="durability"
            )
        outgoing = await self._check_outgoing(topic, messages)
        return await self._engine.publish(self.tenant, topic, outgoing.messages, durability)

    # -- claim and settle --------------------------------------------------------------

    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        consumer: str = _ANONYMOUS,
        lease_ms: int | None = None,
    ) -> list[Delivery]:
        """Lease up to ``limit`` deliveries."""
        check_queue_name(queue)
        check_name(consumer, "consumer")
        check_claim(limit, lease_ms)
        throttle = await self._throttle(queue)
        allowed = throttle.allowance(limit, self._clock.now())
        if not allowed:
            return []
        deliveries = await self._engine.claim(self.tenant, queue, consumer, allowed, lease_ms)
        throttle.charge(len(deliveries))
        return deliveries

    async def settle(
        self,
        queue: str,
        settlements: Sequence[Settlement],
        *,
        publish: Sequence[Outgoing] = (),
    ) -> SettleReply:
        """End claims, each on its own; with ``publish``, all of it in one commit or nothing."""
        check_queue_name(queue)
        check_settlements(settlements, self._limits.payload_bytes)
        outgoing = [await self._check_outgoing(item.topic, item.messages) for item in publish]
        return await self._engine.settle(self.tenant, queue, settlements, outgoing)

    async def ack(self, delivery: Delivery, result: bytes | None = None) -> Outcome:
        """Done. Raises ``StaleReceipt`` if the claim is no longer current."""
        return await self._settle_one(delivery, Ack(delivery.receipt, result))

    async def nack(
        self, delivery: Delivery, error: str | None = None, *, delay_ms: int | None = None
    ) -> Outcome:
        """Not done: again later, or failed when no attempts are left."""
        return await self._settle_one(delivery, Nack(delivery.receipt, error, delay_ms))

    async def reject(self, delivery: Delivery, error: str | None = None) -> Outcome:
        """Never again: failed at once."""
        return await self._settle_one(delivery, Reject(delivery.receipt, error))

    async def release(self, delivery: Delivery) -> Outcome:
        """Hand back untouched; the grant does not count."""
        return await self._settle_one(delivery, Release(delivery.receipt))

    async def extend(self, delivery: Delivery, lease_ms: int) -> Outcome:
        """Hold it for ``lease_ms`` more, from now."""
        return await self._settle_one(delivery, Extend(delivery.receipt, lease_ms))

    async def join(self, queue: str, consumer: str) -> Ownership:
        """Join an ordered queue, or heartbeat."""
        check_queue_name(queue)
        return await self._engine.join(self.tenant, queue, check_name(consumer, "consumer"))

    async def leave(self, queue: str, consumer: str) -> None:
        """Release the consumer's partitions at once."""
        check_queue_name(queue)
        await self._engine.leave(self.tenant, queue, check_name(consumer, "consumer"))

    # -- bulk verbs --------------------------------------------------------------------

    async def route(self, queue: str, limit: int = ROUTE_BATCH) -> RouteReply:
        """Catch a queue up by at most ``limit`` log entries."""
        check_queue_name(queue)
        _check_count("limit", limit, BULK_LIMIT)
        return await self._engine.route(self.tenant, queue, limit)

    async def replay(
        self,
        queue: str,
        source: ReplaySource | str = ReplaySource.FAILED,
        *,
        where: str | None = None,
        limit: int = BULK_LIMIT,
        rate: int | None = None,
        dry_run: bool = False,
        replay_id: str | None = None,
    ) -> ReplayReply:
        """Make deliveries available again, with attempts 0, at their old place."""
        check_queue_name(queue)
        _check_count("limit", limit, BULK_LIMIT)
        if rate is not None:
            _check_count("rate", rate, 10**9)
        if replay_id is not None:
            _check_id("replay_id", replay_id)
        try:
            source = ReplaySource(source)
        except ValueError as error:
            raise BadInput("source is failed, done or log.", field="source") from error
        return await self._engine.replay(
            self.tenant,
            queue,
            source,
            _where(where),
            limit,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
        )

    async def purge(
        self,
        queue: str,
        state: State | str,
        *,
        where: str | None = None,
        limit: int = BULK_LIMIT,
    ) -> PurgeReply:
        """Remove deliveries in one state for good."""
        check_queue_name(queue)
        _check_count("limit", limit, BULK_LIMIT)
        return await self._engine.purge(
            self.tenant, queue, _state(state), _where(where), limit
        )

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
        check_queue_name(queue)
        _check_count("limit", limit, MAX_PAGE)
        if cursor is not None:
            _check_cursor(cursor)
        return await self._engine.peek(
            self.tenant, queue, _state(state), _where(where), limit, cursor, payloads=payloads
        )

    async def sweep(self, limit: int = 10_000) -> SweepReply:
        """Let time take effect in every queue, and retention remove what may go."""
        _check_count("limit", limit, BULK_LIMIT)
        return await self._engine.sweep(limit)

    async def archived(self, through: int) -> None:
        """Tell retention that everything up to ``through`` has a verified copy (A1)."""
        if type(through) is not int or through < 0:
            raise BadInput("through is an offset.", field="through")
        await self._engine.archived(self.tenant, Offset(through))

    # -- reading -----------------------------------------------------------------------

    async def read_log(
        self, start: int = 0, *, limit: int = MAX_PAGE, payloads: bool = False
    ) -> LogPage:
        """Committed log entries from an offset on."""
        if type(start) is not int or start < 0:
            raise BadInput(f"start is {start!r}; it is an offset.", field="start")
        _check_count("limit", limit, ROUTE_BATCH)
        return await self._engine.read_log(self.tenant, Offset(start), limit, payloads=payloads)

    async def log_end(self) -> Offset:
        """The offset after the last committed entry."""
        return await self._engine.log_end(self.tenant)

    async def preview(self, filter: str, *, start: int = 0) -> Preview:
        """What a queue with this filter would take from the log: count and sample."""
        wanted = parse(filter)
        count = scanned = 0
        sample: list[LogEntry] = []
        end = await self._engine.log_end(self.tenant)
        position = Offset(start)
        while position < end:
            page = await self._engine.read_log(self.tenant, position, ROUTE_BATCH)
            for entry in page.entries:
                scanned += 1
                if wanted.matches(entry.message):
                    count += 1
                    if len(sample) < _SAMPLE:
                        sample.append(entry)
            position = page.next_offset
        return Preview(count, scanned, tuple(sample))

    async def message(self, message_id: int) -> MessageDeliveries:
        """A message, its payload, and where it stands in every queue."""
        return await self._engine.message(self.tenant, _message_id(message_id))

    async def result(self, queue: str, message_id: int) -> Result | None:
        """What the ack of a delivery left behind."""
        check_queue_name(queue)
        return await self._engine.result(self.tenant, queue, _message_id(message_id))

    async def history(self, message_id: int) -> tuple[Event, ...]:
        """Every transition of a message's deliveries that is still on record."""
        return await self._engine.history(self.tenant, _message_id(message_id))

    async def stats(self, queue: str) -> QueueStats:
        """A queue in numbers."""
        return await self._engine.stats(self.tenant, check_queue_name(queue))

    async def explain(self, queue: str, message_id: int) -> Why:
        """Why a message is, or is not, handed out by a queue."""
        check_queue_name(queue)
        info = await self._engine.get_queue(self.tenant, queue)
        found = await self._engine.message(self.tenant, _message_id(message_id))
        snapshot = next((item for item in found.deliveries if item.queue == queue), None)
        stats = await self._engine.stats(self.tenant, queue)
        ahead = await self._ahead(info, snapshot)
        now = self._clock.now()
        return explain_delivery(info, found.message, snapshot, stats, ahead, now)

    # -- shared ------------------------------------------------------------------------

    async def _put(self, name: str, policy: QueuePolicy, start: Start) -> QueueInfo:
        info = await self._engine.put_queue(self.tenant, name, policy, start)
        throttle = self._throttles.get((self.tenant, name))
        if throttle is not None:
            throttle.remember(policy.throughput_limit, self._clock.now())
        return info

    async def _check_outgoing(self, topic: str, messages: Sequence[NewMessage]) -> Outgoing:
        check_name(topic, "topic")
        checked = check_batch(messages, self._limits.payload_bytes, self._clock.now())
        if self._options.require_topics and await self.topic(topic) is None:
            raise UnknownTopic(f"There is no topic {topic!r}.", field="topic")
        return Outgoing(topic, checked)

    async def _throttle(self, queue: str) -> Throttle:
        now = self._clock.now()
        throttle = self._throttles.get((self.tenant, queue))
        if throttle is None or not throttle.is_fresh(now):
            info = await self._engine.get_queue(self.tenant, queue)
            limit = info.policy.throughput_limit
            if throttle is None:
                throttle = self._throttles[self.tenant, queue] = Throttle(limit, now)
            else:
                throttle.remember(limit, now)
        return throttle

    async def _settle_one(self, delivery: Delivery, settlement: Settlement) -> Outcome:
        reply = await self.settle(delivery.queue, (settlement,))
        outcome = reply.outcomes[0]
        if not outcome.ok:
            raise StaleReceipt(
                f"The claim of message {delivery.message.id} in {delivery.queue!r} is over.",
                field="receipt",
            )
        return outcome

    async def _ahead(self, info: QueueInfo, snapshot: Snapshot | None) -> Snapshot | None:
        """What stands before a delivery in its partition of an ordered queue."""
        if snapshot is None or info.policy.ordering is not Ordering.PARTITION:
            return None
        message = snapshot.message
        candidates: list[Snapshot] = []
        for state in (State.IN_FLIGHT, State.DELAYED, State.AVAILABLE):
            candidates += await self._first_before(info.name, state, message.id, message.partition_key)
        return min(candidates, key=lambda item: item.message.id, default=None)

    async def _first_before(
        self, queue: str, state: State, message_id: int, partition: str | None
    ) -> list[Snapshot]:
        quoted = (partition or "").replace("'", "''")
        same = f"partition_key = '{quoted}'"
        where = parse(same if partition else f"({same}) OR partition_key IS NULL")
        page = await self._engine.peek(self.tenant, queue, state, where, MAX_PAGE)
        return [item for item in page.items if item.message.id < message_id]


def _where(where: str | None) -> Filter | None:
    return None if where is None else parse(where)


def _state(state: State | str) -> State:
    try:
        return State(state)
    except ValueError as error:
        states = ", ".join(item.value for item in State)
        raise BadInput(f"state is {state!r}; it is one of {states}.", field="state") from error


def _message_id(message_id: object) -> MessageId:
    if type(message_id) is not int or not 0 <= message_id < 2**64:
        raise BadInput(f"{message_id!r} is not a message id.", field="id")
    return MessageId(message_id)


def _check_count(field: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise BadInput(
            f"{field} is {value!r}; it is a whole number from 1 to {most}.",
            field=field,
            limit=most,
        )


def _check_id(field: str, value: object) -> None:
    if type(value) is not str or not value or len(value.encode(errors="replace")) > MAX_KEY_BYTES:
        raise BadInput(
            f"{field} is text of 1 to {MAX_KEY_BYTES} bytes.", field=field, limit=MAX_KEY_BYTES
        )


def _check_cursor(cursor: object) -> None:
    try:
        if type(cursor) is not str:
            raise ValueError(cursor)
        int(cursor, 16)
    except ValueError as error:
        raise BadInput(
            "cursor is what the page before gave.", field="cursor"
        ) from error
