"""The oracle: the whole storage contract in memory, small and obviously correct.

It keeps every law of docs/semantics.md by brute force: full scans over dicts and lists, and a copy
of everything before a verb that may be refused half way. It persists nothing and is slow.
Random programs compare engines with it, and the conformance suite also runs on it,
which tests both the suite and the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from penstock.errors import BadName, Conflict, PenstockError, StoreClosed, UnknownTopic
from penstock.filters import Filter, Selection, parse
from penstock.model.delivery import (
    CancelReply,
    Delivery,
    Event,
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
    Settlement,
    SettleReply,
    Snapshot,
    SweepReply,
    Verdict,
)
from penstock.model.identity import (
    ID_BYTES,
    StoreIdentity,
    check_position,
    check_store,
    derive_identity,
)
from penstock.model.limits import is_dead_letter
from penstock.model.message import (
    Durability,
    Message,
    MessageId,
    NewMessage,
    Offset,
    Published,
    PublishReply,
)
from penstock.model.queue import IfExists, Ordering, QueueInfo, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Capabilities, Engine, EngineOptions, Outgoing
from penstock.storage.repetition import REPEAT_WINDOW_MS, settle_id
from penstock.storage.topic_checks import CheckedBy, check_topics
from penstock.testing.oracle import (
    bulk,
    claiming,
    hearing,
    partitions,
    publishing,
    queues,
    read_verbs,
)
from penstock.testing.oracle.state import Queue, Store

__all__ = ["Oracle"]

_DURABILITY: Final[Durability] = "memory"


class Oracle(Engine):
    """Every verb of the contract, implemented in the simplest way."""

    capabilities = Capabilities(
        engine="oracle", durability=_DURABILITY, persistent=False, multi_process=False
    )

    def __init__(self, options: EngineOptions) -> None:
        self.clock = options.clock
        self._options = options
        self._store = Store()
        self._ids = (options.random(ID_BYTES), options.random(ID_BYTES))
        self._closed = False

    # -- queues and topics -------------------------------------------------------------

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
        with self._telling() as (store, now):
            _refuse_dead_letter(name)
            parse(policy.filter)
            queue = store.queues.get((tenant, name))
            queues.check_was(queue, was)
            if queue is not None and queues.keeps(queue, policy, if_exists):
                return read_verbs.info(queue, dead=False)
            queues.check_quotas(self._options.limits, store, tenant, queue, policy)
            if queue is None:
                queue = Queue(tenant, name, policy, now, queues.cursor(store, tenant, start))
                store.queues[(tenant, name)] = queue
            else:
                queues.change_policy(queue, policy)
            return read_verbs.info(queue, dead=False)

    async def get_queue(self, tenant: str, name: str) -> QueueInfo:
        store, _ = self._open()
        queue, dead = store.find(tenant, name)
        return read_verbs.info(queue, dead=dead)

    async def list_queues(self, tenant: str) -> tuple[QueueInfo, ...]:
        store, _ = self._open()
        return tuple(read_verbs.info(queue, dead=False) for queue in store.queues_of(tenant))

    async def delete_queue(self, tenant: str, name: str) -> None:
        with self._telling() as (store, _):
            _refuse_dead_letter(name)
            store.find(tenant, name)
            del store.queues[(tenant, name)]

    async def pause(self, tenant: str, queue: str, paused: bool) -> None:
        with self._telling() as (store, _):
            found, dead = store.find(tenant, queue)
            if dead:
                found.dead_paused = paused
            else:
                found.policy = replace(found.policy, paused=paused)

    async def put_topic(self, tenant: str, name: str, policy: TopicPolicy) -> None:
        store, _ = self._open()
        store.topics[(tenant, name)] = policy

    async def get_topic(self, tenant: str, name: str) -> TopicPolicy | None:
        store, _ = self._open()
        return store.topics.get((tenant, name))

    async def list_topics(self, tenant: str) -> tuple[tuple[str, TopicPolicy], ...]:
        store, _ = self._open()
        return tuple((n, p) for (t, n), p in sorted(store.topics.items()) if t == tenant)

    async def delete_topic(self, tenant: str, name: str) -> None:
        store, _ = self._open()
        if store.topics.pop((tenant, name), None) is None:
            raise UnknownTopic(f"There is no topic {name!r}.", field="topic")

    # -- message flow ------------------------------------------------------------------

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
        with self._telling() as (store, now):
            before = store.copy()
            try:
                published, repeated = publishing.publish_batch(
                    *(store, self._options, now, tenant, Outgoing(topic, messages)),
                    *(batch_id, batch_ms, checked),
                )
            except PenstockError:
                self._store = before
                raise
            return PublishReply(published, _DURABILITY, repeated)

    async def batch(self, tenant: str, topic: str, batch_id: str) -> tuple[Published, ...] | None:
        store, now = self._open()
        seen = store.batches.get((tenant, topic, batch_id))
        policy = store.topics.get((tenant, topic), TopicPolicy())
        return None if seen is None or seen.is_over(policy, now) else seen.published

    async def claim(
        self,
        tenant: str,
        queue: str,
        consumer: str,
        limit: int,
        lease_ms: int | None,
        where: Filter | None = None,
    ) -> list[Delivery]:
        with self._telling() as (store, now):
            found, dead = store.find(tenant, queue)
            return claiming.claim(store, found, consumer, limit, lease_ms, now, where, dead=dead)

    async def settle(
        self,
        tenant: str,
        queue: str,
        settlements: Sequence[Settlement],
        publish: Sequence[Outgoing] = (),
        *,
        checked: CheckedBy = None,
    ) -> SettleReply:
        with self._telling() as (store, now):
            found, dead = store.find(tenant, queue)
            before = store.copy()
            repetition = settle_id(settlements) if publish else None
            if repetition is not None:
                at, first = store.settles.get((tenant, queue, repetition), (0, None))
                if first is not None and now < at + REPEAT_WINDOW_MS:
                    return replace(first, repeated=True)
            outcomes = claiming.settle(
                *(store, found, settlements, now, self._options.jitter),
                dead=dead,
                publishing=bool(publish),
            )
            if not publish:
                return SettleReply(outcomes=tuple(outcomes), published=(), durability=_DURABILITY)
            if not all(outcome.ok for outcome in outcomes):
                self._store = before
                aborted = tuple(_aborted(outcome) for outcome in outcomes)
                return SettleReply(outcomes=aborted, published=(), durability=_DURABILITY)
            try:
                publishing.check_copies(store)
                check_topics(checked, store.topics_of(tenant))
                published = publishing.publish(store, self._options, now, tenant, publish)
            except PenstockError:
                self._store = before
                raise
            reply = SettleReply(tuple(outcomes), published, _DURABILITY)
            if repetition is not None:
                store.settles[tenant, queue, repetition] = (now, reply)
            return reply

    async def route(self, tenant: str, queue: str, limit: int) -> RouteReply:
        with self._telling() as (store, now):
            found, dead = store.find(tenant, queue)
            if dead:
                raise Conflict("Nothing is routed to a dead-letter queue.", field="queue")
            return publishing.route(store, found, limit, now)

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
        if store is not None:
            check_store(await self.identity(tenant), store, "The assignment")
        with self._telling() as (model, now):
            found, dead = model.find(tenant, queue)
            if dead:
                raise Conflict("Nothing is routed to a dead-letter queue.", field="queue")
            return publishing.assign(model, found, filter, start, end, offsets, now)

    async def join(self, tenant: str, queue: str, consumer: str) -> Ownership:
        with self._telling() as (store, now):
            found, dead = store.find(tenant, queue)
            if dead or found.policy.ordering is not Ordering.PARTITION:
                raise Conflict(f"Queue {queue!r} is not ordered by partition.", field="queue")
            return partitions.join(store, found, consumer, now)

    async def leave(self, tenant: str, queue: str, consumer: str) -> None:
        with self._telling() as (store, now):
            found, dead = store.find(tenant, queue)
            if not dead:
                partitions.leave(store, found, consumer, now)

    # -- bulk verbs --------------------------------------------------------------------

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
        with self._telling() as (store, now):
            found, dead = store.find(tenant, queue)
            return bulk.replay(
                store,
                found,
                source,
                where,
                limit,
                now,
                dead=dead,
                rate=rate,
                dry_run=dry_run,
                replay_id=replay_id,
                ttl_ms=ttl_ms,
            )

    async def purge(
        self, tenant: str, queue: str, state: State, where: Selection | None, limit: int
    ) -> PurgeReply:
        with self._telling() as (store, _):
            found, dead = store.find(tenant, queue)
            return bulk.purge(store, found, state, where, limit, dead=dead)

    async def cancel(
        self, tenant: str, message_id: MessageId, queue: str | None = None
    ) -> CancelReply:
        with self._telling() as (store, _):
            named = None if queue is None else store.find(tenant, queue)
            return bulk.cancel(store, tenant, message_id, named)

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
        store, _ = self._open()
        found, dead = store.find(tenant, queue)
        shown = read_verbs.browse(store, found, state, where, dead=dead)

        def key(shown: Snapshot) -> str:
            rank, position = store.place(found, found.deliveries[shown.message.id])
            return f"{rank} {position:020}"

        if cursor is not None:
            shown = [s for s in shown if key(s) > cursor]
        page = shown[:limit]
        if payloads:
            page = [replace(s, payload=store.newest(tenant, s.message.id).payload) for s in page]
        more = len(shown) > limit and bool(page)
        return Page(items=tuple(page), cursor=key(page[-1]) if more else None)

    async def sweep(self, limit: int = 10_000) -> SweepReply:
        with self._telling() as (store, now):
            return bulk.sweep(store, self._options, now, limit)

    async def archived(self, tenant: str, through: Offset, store: StoreIdentity) -> None:
        held, _ = self._open()
        check_store(await self.identity(tenant), store, "What was archived")
        check_position(through + 1, await self.log_end(tenant), "What was archived")
        held.archived[tenant] = max(through, held.archived.get(tenant, through))

    async def identity(self, tenant: str) -> StoreIdentity:
        self._open()
        return derive_identity(*self._ids, tenant)

    async def new_epoch(self) -> None:
        self._open()
        self._ids = (self._ids[0], self._options.random(ID_BYTES))

    # -- documents ---------------------------------------------------------------------

    async def put_document(self, kind: str, name: str, value: bytes) -> None:
        store, _ = self._open()
        store.documents[(kind, name)] = value

    async def add_document(
        self, kind: str, name: str, value: bytes, replaces: bytes | None = None
    ) -> bytes:
        store, _ = self._open()
        if store.documents.get((kind, name), replaces) == replaces:
            store.documents[kind, name] = value
        return store.documents[kind, name]

    async def get_document(self, kind: str, name: str) -> bytes | None:
        store, _ = self._open()
        return store.documents.get((kind, name))

    async def list_documents(self, kind: str) -> tuple[tuple[str, bytes], ...]:
        store, _ = self._open()
        return tuple((n, v) for (k, n), v in sorted(store.documents.items()) if k == kind)

    async def delete_document(self, kind: str, name: str, value: bytes | None = None) -> bool:
        store, _ = self._open()
        if value is not None and store.documents.get((kind, name)) != value:
            return False
        return store.documents.pop((kind, name), None) is not None

    # -- reading -----------------------------------------------------------------------

    async def tenants(self) -> tuple[str, ...]:
        store, _ = self._open()
        return read_verbs.tenants(store)

    async def behind(self) -> tuple[tuple[str, str], ...]:
        store, _ = self._open()
        return read_verbs.behind(store)

    async def next_due(self, tenant: str, queue: str) -> int | None:
        store, _ = self._open()
        found, dead = store.find(tenant, queue)
        return read_verbs.next_due(store, found, dead=dead)

    async def read_log(
        self, tenant: str, start: Offset, limit: int, *, payloads: bool = False
    ) -> LogPage:
        store, _ = self._open()
        return read_verbs.read_log(store, tenant, start, limit, payloads=payloads)

    async def log_trimmed(self, tenant: str) -> Offset:
        store, _ = self._open()
        return read_verbs.log_trimmed(store, tenant)

    async def log_end(self, tenant: str) -> Offset:
        store, _ = self._open()
        return read_verbs.log_end(store, tenant)

    async def log_splits(
        self, tenant: str, start: Offset, end: Offset, entries: int
    ) -> tuple[Offset, ...]:
        store, _ = self._open()
        return read_verbs.log_splits(store, tenant, start, end, entries)

    async def message(self, tenant: str, message_id: MessageId) -> MessageDeliveries:
        store, _ = self._open()
        return read_verbs.message(store, tenant, message_id)

    async def find(
        self, tenant: str, topic: str, id: str, partition_key: str | None = None
    ) -> Message | None:
        store, now = self._open()
        return read_verbs.find(store, tenant, topic, id, partition_key, now)

    async def result(self, tenant: str, queue: str, message_id: MessageId) -> Result | None:
        store, _ = self._open()
        found, dead = store.find(tenant, queue)
        return read_verbs.result(store, found, message_id, dead=dead)

    async def history(self, tenant: str, message_id: MessageId) -> tuple[Event, ...]:
        store, _ = self._open()
        return read_verbs.history(store, tenant, message_id)

    async def stats(self, tenant: str, queue: str) -> QueueStats:
        store, now = self._open()
        found, dead = store.find(tenant, queue)
        return read_verbs.stats(store, found, now, dead=dead)

    async def close(self) -> None:
        self._closed = True

    def waits(self) -> Iterator[tuple[str, str, str, bool]]:
        """Possible waiters: tenant, queue, consumer, and whether a claim would return something.

        In an unordered queue all consumers are equivalent, and one without a name stands for them.
        """
        store, now = self._open()
        for queue in store.queues.values():
            ordered = queue.policy.ordering is Ordering.PARTITION
            for dead in (False, True):
                for consumer in sorted(queue.consumers) if ordered and not dead else [""]:
                    gives = claiming.would_give(store, queue, consumer, now, dead=dead)
                    yield queue.tenant, queue.shown_as(dead=dead), consumer, gives

    @contextmanager
    def _telling(self) -> Iterator[tuple[Store, int]]:
        """For a verb that changes state: notify the listener afterwards, unless it is refused."""
        store, now = self._open()
        before = hearing.hear(store)
        yield store, now
        publishing.append_copies(self._store, self._options, now)
        hearing.tell(self.listener, before, hearing.hear(self._store))

    def _open(self) -> tuple[Store, int]:
        """The store and the time, read once per verb."""
        if self._closed:
            raise StoreClosed("The oracle was closed.")
        return self._store, self.clock.now()


def _refuse_dead_letter(name: str) -> None:
    if is_dead_letter(name):
        raise BadName(f"Queue {name!r} is created and deleted with its queue.", field="queue")


def _aborted(outcome: Outcome) -> Outcome:
    if not outcome.ok:
        return outcome
    return Outcome(receipt=outcome.receipt, verdict=Verdict.ABORTED)
