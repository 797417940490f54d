"""The SQL engine: every verb of the contract, delegated to the module that implements it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.errors import PenstockError, StoreError, StoreUnavailable
from penstock.filters import Filter, Selection
from penstock.model.columns import LogColumns
from penstock.model.delivery import (
    CancelReply,
    Delivery,
    Event,
    LogPage,
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
from penstock.model.reports import HistoryPage
from penstock.model.states import State
from penstock.storage.abandoned_claims import AbandonedClaims
from penstock.storage.assignment import Assignment
from penstock.storage.claim_selector import ClaimSelector
from penstock.storage.contract import Capabilities, Engine, EngineOptions
from penstock.storage.listener import Listener
from penstock.storage.sql import (
    browse,
    log,
    messages,
    partitions,
    queues,
    replay,
    route,
    sweep,
)
from penstock.storage.sql import store as store_rows
from penstock.storage.sql.batching import Call, CallBatchers
from penstock.storage.sql.cancel import cancel
from penstock.storage.sql.claim import acks_of, claim
from penstock.storage.sql.clock import DatabaseClock, clock_for
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import ConnectionLost, Database, RetryTransaction
from penstock.storage.sql.dead_letter_copies import append_copies
from penstock.storage.sql.granting import Claim
from penstock.storage.sql.ids import find_batch
from penstock.storage.sql.notifications import Watch
from penstock.storage.sql.publish import Publish, publish, publish_within
from penstock.storage.sql.settle import Settle, settle, settle_and_publish
from penstock.storage.topic_checks import CheckedBy

__all__ = ["SqlEngine"]

#: Messages plus KiB of payload that one transaction publishes at most, if several calls share
#: it.
_MAX_PUBLISH: Final = 4_000
#: A second transaction starts beside the first only if this much waits: it is prepared while the
#: database executes the first. Smaller amounts wait for the next transaction.
_PUBLISH_BESIDE: Final = 600
#: Deliveries that one transaction hands out or settles at most, if several calls share it.
_MAX_CLAIM: Final = 2_000
#: Seconds that closing waits for the server number to be released.
_RELEASE_S: Final = 2.0


class SqlEngine(Engine):
    """The verbs of the contract, over a database."""

    def __init__(self, core: Core) -> None:
        self._core = core
        core.append_copies = partial(append_copies, core)
        self.turns = core.turns
        self.clock = core.clock
        self.capabilities = Capabilities(
            engine=core.database.name,
            durability="fsync",
            persistent=True,
            multi_process=True,
            limits_throughput=True,
        )
        self._watch = Watch(core)
        self._abandoned = AbandonedClaims(self)
        core.broadcast = self._watch.broadcast
        # By tenant and whether the publish may wait; by tenant and queue.
        self._publishes: CallBatchers[tuple[str, bool], Publish, PublishReply] = CallBatchers(
            lambda key, calls: publish(core, key[0], calls), _MAX_PUBLISH, _PUBLISH_BESIDE
        )
        self._claims: CallBatchers[tuple[str, str], Claim, list[Delivery]] = CallBatchers(
            lambda key, calls: claim(core, *key, calls), _MAX_CLAIM
        )
        self._settles: CallBatchers[tuple[str, str], Settle, SettleReply] = CallBatchers(
            lambda key, calls: settle(core, *key, calls), _MAX_CLAIM
        )

    @classmethod
    async def open(cls, database: Database, options: EngineOptions) -> SqlEngine:
        """The engine over a database whose schema was already checked."""
        try:
            clock = await clock_for(database, options.clock)
        except (RetryTransaction, ConnectionLost) as error:
            raise StoreUnavailable(f"The database went away: {error}.", field="url") from error
        core = Core(database, options, clock)
        engine = cls(core)
        try:
            await core.server_numbers.lease()
            await store_rows.ensure(core)
            await engine._watch.start()
        except BaseException:
            await engine.close()
            raise
        return engine

    @property
    def listener(self) -> Listener:
        """The object that the engine notifies."""
        return self._core.listener

    @listener.setter
    def listener(self, listener: Listener) -> None:
        self._core.listener = listener

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
        return await queues.put_queue(self._core, tenant, name, policy, start, if_exists, was)

    async def get_queue(self, tenant: str, name: str) -> QueueInfo:
        return await queues.get_queue(self._core, tenant, name)

    async def list_queues(self, tenant: str) -> tuple[QueueInfo, ...]:
        return await queues.list_queues(self._core, tenant)

    async def delete_queue(self, tenant: str, name: str) -> None:
        await queues.delete_queue(self._core, tenant, name)

    async def pause(self, tenant: str, queue: str, paused: bool) -> None:
        await queues.pause(self._core, tenant, queue, paused=paused)

    async def put_topic(self, tenant: str, name: str, policy: TopicPolicy) -> None:
        await queues.put_topic(self._core, tenant, name, policy)

    async def get_topic(self, tenant: str, name: str) -> TopicPolicy | None:
        return await queues.get_topic(self._core, tenant, name)

    async def list_topics(self, tenant: str) -> tuple[tuple[str, TopicPolicy], ...]:
        return await queues.list_topics(self._core, tenant)

    async def delete_topic(self, tenant: str, name: str) -> None:
        await queues.delete_topic(self._core, tenant, name)

    # -- messages and deliveries -------------------------------------------------------

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
        del durability  # A commit of the database is at least as durable; the reply says so.
        self._core.check_open()
        asked = Publish(topic, messages, batch_id, batch_ms, checked)
        size = sum([len(message.payload) for message in messages])
        return await self._publishes.call(
            (tenant, self._may_wait(tenant, topic)), asked, len(messages) + size // 1024
        )

    def _may_wait(self, tenant: str, topic: str) -> bool:
        """Whether the publish may wait for other servers, and should not delay other publishes.

        A guess from the last known catalog: a wrong one costs only time.
        """
        known = self._core.catalog.seen(tenant)
        return known is None or bool(known.bounded_for(topic))

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
        self._core.check_open()
        asked = Publish(topic, messages, batch_id, batch_ms, checked)
        return await publish_within(self._core, tenant, asked, connection)

    async def claim(
        self,
        tenant: str,
        queue: str,
        consumer: str,
        limit: int,
        lease_ms: int | None,
        where: Filter | None = None,
    ) -> list[Delivery]:
        self._core.check_open()
        if where is None:
            call = self._claims.call((tenant, queue), Claim(consumer, limit, lease_ms), limit)
        else:
            selector = ClaimSelector(where, self._core.turns.slice_s)
            call = self._claim_alone(tenant, queue, Claim(consumer, limit, lease_ms, selector))
        return await self._claimed(tenant, queue, limit, call)

    async def _claimed(
        self, tenant: str, queue: str, limit: int, call: Coroutine[None, None, list[Delivery]]
    ) -> list[Delivery]:
        """The answer of a claim call. If the caller is gone, it is released."""
        claiming = asyncio.ensure_future(call)
        try:
            deliveries = await asyncio.shield(claiming)
            if len(deliveries) < limit:
                # The claim has succeeded; do not fail it. A waiting caller also calls ``next_due``.
                with suppress(StoreError):
                    await self._watch.interested_in(tenant, queue)
        except asyncio.CancelledError:
            self._abandoned.release_granted(tenant, queue, claiming)
            raise
        return deliveries

    async def _claim_alone(self, tenant: str, queue: str, asked: Claim) -> list[Delivery]:
        """Claim in a transaction that no other call shares."""
        call: Call[Claim, list[Delivery]] = Call(asked, asked.limit)
        await claim(self._core, tenant, queue, [call])
        return await call.answered()

    async def settle(
        self,
        tenant: str,
        queue: str,
        settlements: Sequence[Settlement],
        publish: Sequence[Outgoing] = (),
        *,
        checked: CheckedBy = None,
    ) -> SettleReply:
        self._core.check_open()
        if publish:
            return await settle_and_publish(
                self._core, tenant, queue, settlements, publish, checked
            )
        return await self._settles.call((tenant, queue), Settle(settlements), len(settlements))

    async def settle_and_claim(
        self,
        tenant: str,
        queue: str,
        settlements: Sequence[Settlement],
        consumer: str,
        limit: int,
        lease_ms: int | None,
    ) -> tuple[SettleReply, list[Delivery]]:
        """One statement for acks and a claim, where a claim is one. Other settlements may return
        deliveries, which the claim has to see."""
        self._core.check_open()
        acks = acks_of(self._core, tenant, queue, settlements)
        if acks is None:
            return await super().settle_and_claim(
                tenant, queue, settlements, consumer, limit, lease_ms
            )
        call = self._claims.call(
            (tenant, queue), Claim(consumer, limit, lease_ms, acks=acks), limit + len(settlements)
        )
        deliveries = await self._claimed(tenant, queue, limit, call)
        return SettleReply(tuple(acks.outcomes), (), "fsync"), deliveries

    async def route(self, tenant: str, queue: str, limit: int) -> RouteReply:
        return await route.route(self._core, tenant, queue, limit)

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
        asked = Assignment(filter, start, end, offsets)
        return await route.assign(self._core, tenant, queue, asked, store)

    async def join(self, tenant: str, queue: str, consumer: str) -> Ownership:
        return await partitions.join(self._core, tenant, queue, consumer)

    async def leave(self, tenant: str, queue: str, consumer: str) -> None:
        await partitions.leave(self._core, tenant, queue, consumer)

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
        return await replay.replay(
            self._core,
            tenant,
            queue,
            source,
            where,
            limit,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
            ttl_ms=ttl_ms,
        )

    async def purge(
        self, tenant: str, queue: str, state: State, where: Selection | None, limit: int
    ) -> PurgeReply:
        return await browse.purge(self._core, tenant, queue, state, where, limit)

    async def cancel(
        self, tenant: str, message_id: MessageId, queue: str | None = None
    ) -> CancelReply:
        return await cancel(self._core, tenant, message_id, queue)

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
        return await browse.peek(
            self._core, tenant, queue, state, where, limit, cursor, payloads=payloads
        )

    async def sweep(self, limit: int = 10_000) -> SweepReply:
        return await sweep.sweep(self._core, limit)

    async def archived(self, tenant: str, through: Offset, store: StoreIdentity) -> None:
        await store_rows.archived(self._core, tenant, through, store)

    # -- identity ----------------------------------------------------------------------

    async def identity(self, tenant: str) -> StoreIdentity:
        return await store_rows.identity(self._core, tenant)

    async def new_epoch(self) -> None:
        await store_rows.new_epoch(self._core)

    # -- documents ---------------------------------------------------------------------

    async def put_document(self, kind: str, name: str, value: bytes) -> None:
        await store_rows.put_document(self._core, kind, name, value)

    async def add_document(
        self, kind: str, name: str, value: bytes, replaces: bytes | None = None
    ) -> bytes:
        return await store_rows.add_document(self._core, kind, name, value, replaces)

    async def get_document(self, kind: str, name: str) -> bytes | None:
        return await store_rows.get_document(self._core, kind, name)

    async def list_documents(self, kind: str) -> tuple[tuple[str, bytes], ...]:
        return await store_rows.list_documents(self._core, kind)

    async def delete_document(self, kind: str, name: str, value: bytes | None = None) -> bool:
        return await store_rows.delete_document(self._core, kind, name, value)

    # -- reading -----------------------------------------------------------------------

    async def tenants(self) -> tuple[str, ...]:
        return await log.tenants(self._core)

    async def behind(self) -> tuple[tuple[str, str], ...]:
        return await log.behind(self._core)

    async def next_due(self, tenant: str, queue: str) -> int | None:
        await self._watch.interested_in(tenant, queue)
        return await browse.next_due(self._core, tenant, queue)

    async def read_log(
        self, tenant: str, start: Offset, limit: int, *, payloads: bool = False
    ) -> LogPage:
        return await log.read_log(self._core, tenant, start, limit, payloads=payloads)

    async def batch(self, tenant: str, topic: str, batch_id: str) -> tuple[Published, ...] | None:
        return await find_batch(self._core, tenant, topic, batch_id)

    async def log_trimmed(self, tenant: str) -> Offset:
        return await log.log_trimmed(self._core, tenant)

    async def log_end(self, tenant: str) -> Offset:
        return await log.log_end(self._core, tenant)

    async def log_splits(
        self, tenant: str, start: Offset, end: Offset, entries: int
    ) -> tuple[Offset, ...]:
        return await log.log_splits(self._core, tenant, start, end, entries)

    async def read_log_columns(self, tenant: str, start: Offset, limit: int) -> LogColumns:
        return await log.read_columns(self._core, tenant, start, limit)

    async def read_payloads(
        self, tenant: str, offsets: Sequence[int], sizes: Sequence[int], checksums: Sequence[int]
    ) -> Sequence[bytes | memoryview] | None:
        del sizes, checksums  # The segment contains them.
        return await log.read_payloads(self._core, tenant, offsets)

    async def read_history(
        self, tenant: str, start: Offset, limit: int, queue: str | None = None
    ) -> HistoryPage:
        return await log.read_history(self._core, tenant, start, limit, queue)

    async def message(self, tenant: str, message_id: MessageId) -> MessageDeliveries:
        return await messages.message(self._core, tenant, message_id)

    async def find(
        self, tenant: str, topic: str, id: str, partition_key: str | None = None
    ) -> Message | None:
        return await messages.find(self._core, tenant, topic, id, partition_key)

    async def result(self, tenant: str, queue: str, message_id: MessageId) -> Result | None:
        found = await messages.result(self._core, tenant, queue, message_id)
        if found is None:
            # A waiting caller is notified if another server settles it.
            await self._watch.interested_in(tenant, queue)
        return found

    async def history(self, tenant: str, message_id: MessageId) -> tuple[Event, ...]:
        return await messages.history(self._core, tenant, message_id)

    async def stats(self, tenant: str, queue: str) -> QueueStats:
        return await browse.stats(self._core, tenant, queue)

    async def close(self) -> None:
        if self._core.closed:
            return
        await self._abandoned.close()
        self._core.closed = True
        for batchers in (self._publishes, self._claims, self._settles):
            await batchers.drain()
        await self._release_server_number()
        await self._watch.close()
        if isinstance(self._core.clock, DatabaseClock):
            await self._core.clock.close()
        await self._core.database.close()

    async def _release_server_number(self) -> None:
        """Free the number for another server. If that fails, its lease runs out."""
        with suppress(RetryTransaction, ConnectionLost, PenstockError, TimeoutError):
            async with asyncio.timeout(_RELEASE_S), self._core.database.transaction() as session:
                await self._core.server_numbers.release(session)
