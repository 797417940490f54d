"""Writes the contents of a store in a database as a dump."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.errors import Conflict, StoreCorrupt
from penstock.model.identity import derive_receipt_key
from penstock.model.message import Published
from penstock.model.states import Transition
from penstock.storage import dump as records
from penstock.storage.copied_receipts import RECEIPT_KIND, Claim, decode_claims
from penstock.storage.dump import Counters, Delivery, DumpRecord, Entry, Step
from penstock.storage.sql.catalog import Queue, Tenant, read_tenant
from penstock.storage.sql.claim_numbers import Receipts
from penstock.storage.sql.database import Database
from penstock.storage.sql.deliveries import (
    INDEX_BITS,
    DeliveryGroup,
    DeliveryRecord,
    Kind,
    Phase,
    delivered,
    is_dead,
    message_id,
    segment_of,
    state_of,
)
from penstock.storage.sql.ids import decode_batch_reply
from penstock.storage.sql.log import end_of_log
from penstock.storage.sql.segments import Segment, Segments
from penstock.storage.sql.transfer.tables import GROUPS, TABLES, to_row

__all__ = ["dump"]

#: The states whose deliveries are exported in claim order together, and the others.
_LIVE: Final = (Phase.FRESH, Phase.RETURNED)
_DEAD_LIVE: Final = (Phase.DEAD_RETURNED,)
_IN_FLIGHT: Final = (Phase.IN_FLIGHT, Phase.DEAD_IN_FLIGHT)
_MESSAGE: Final = 0
_BATCH: Final = 1
_SETTLE: Final = 2
_PARTITION_MESSAGE: Final = 3
_TABLES: Final = {table.name: table for table in TABLES}
_ENDINGS: Final = frozenset(
    {Transition.ACK, Transition.NACK, Transition.RELEASE, Transition.LAPSE, Transition.REJECT}
)


class _Placed(NamedTuple):
    """A delivery at its place in claim order."""

    rank: int
    position: int
    nth: int
    """The index in its group; the first one stands for the group. Positions do not repeat."""
    delivery: Delivery


async def dump(database: Database, store: bytes) -> AsyncIterator[DumpRecord]:
    """The contents of the store with this identity, which must not change meanwhile."""
    exporter = _Exporter(database, Receipts(derive_receipt_key(store)))
    await exporter.read_catalog()
    for part in (exporter.catalog, exporter.log, exporter.queues, exporter.others):
        async for record in part():
            yield record


class _Exporter:
    def __init__(self, database: Database, receipts: Receipts) -> None:
        self._database = database
        self._receipts = receipts
        #: Receipts from before an earlier copy, by claim.
        self._copied: dict[Claim, str] = {}
        self._segments = Segments()
        self._tenants: dict[int, Tenant] = {}
        self._facts: dict[int, tuple[int | None, int | None]] = {}
        self._queues: dict[int, Queue] = {}
        self._epochs: dict[int, int] = {}
        self._given = 0

    # -- tenants and queues ------------------------------------------------------------

    async def read_catalog(self) -> None:
        """Read the tenants; refuse a queue that is being caught up, which only servers finish."""
        async with self._database.reading() as session:
            ((given,),) = await session.fetch("given")
            self._given = int(given)
            documents = await session.fetch("list_documents", kind=RECEIPT_KIND)
        claims = decode_claims((name, bytes(value)) for name, value in documents)
        self._copied = {claim: receipt for receipt, claim in claims.items()}
        async for rows in self._rows("penstock_tenant"):
            for number, name, _, archived, trimmed in rows:
                async with self._database.reading() as session:
                    tenant, _ = await read_tenant(session, name)
                self._tenants[number] = tenant
                self._facts[number] = (archived, trimmed)
                self._queues |= tenant.numbered
        async for rows in self._rows("penstock_queue"):
            for number, _, name, _, _, _, _, joining, _, _, epoch in rows:
                self._epochs[number] = int(epoch)
                if joining is not None:
                    raise Conflict(
                        f"Queue {name!r} is being caught up; let a server finish that first.",
                        field="queue",
                    )

    async def catalog(self) -> AsyncIterator[DumpRecord]:
        """The store, its tenants, topics and queues."""
        yield records.StoreInfo(self._given + 1 << INDEX_BITS)
        for number, tenant in sorted(self._tenants.items()):
            archived, trimmed = self._facts[number]
            async with self._database.reading() as session:
                end = await end_of_log(session, number, self._given)
            yield records.TenantInfo(tenant.name, end, archived, trimmed or 0)
            for topic, policy in sorted(tenant.topics.items()):
                yield records.TopicInfo(tenant.name, topic, policy)
            for name in sorted(tenant.queues):
                yield await self._info(tenant.queues[name])

    async def _info(self, queue: Queue) -> records.QueueInfo:
        async with self._database.reading() as session:
            sums = {int(k): int(n) for k, n in await session.fetch("tallies", queue=queue.number)}

        def counters(*kinds: Kind) -> Counters:
            return Counters(*(sums.get(int(kind), 0) for kind in kinds))

        return records.QueueInfo(
            tenant=queue.tenant,
            name=queue.name,
            policy=queue.policy,
            filter_version=queue.filter_version,
            created_at=queue.created_at,
            cursor=queue.cursor,
            dead_paused=queue.dead_paused,
            epoch=self._epochs[queue.number],
            counters=counters(Kind.GRANTS, Kind.ACKS, Kind.NACKS, Kind.FAILURES),
            dead_counters=counters(
                Kind.DEAD_GRANTS, Kind.DEAD_ACKS, Kind.DEAD_NACKS, Kind.DEAD_FAILURES
            ),
        )

    async def _rows(self, name: str) -> AsyncIterator[list[list[Any]]]:
        table = _TABLES[name]
        statement, after = f"first_{name}", dict[str, object]()
        while True:
            async with self._database.reading() as session:
                stored = await session.fetch(statement, **after)
            yield [to_row(table, self._database.name, row) for row in stored]
            if len(stored) < table.page:
                return
            statement, after = f"next_{name}", table.after(stored[-1])

    # -- the log -----------------------------------------------------------------------

    async def log(self) -> AsyncIterator[Entry]:
        """The entries of all tenants. Drawn positions need no mention: ids stay as they are."""
        async for rows in self._rows("penstock_log"):
            for number, tenant, published_at, _, metadata, payloads in rows:
                segment = Segment.read(number, tenant, published_at, metadata, payloads)
                newest = await self._newest(segment)
                name = self._tenants[tenant].name
                for index in range(len(segment.metadata)):
                    message = segment.message(index)
                    is_newest = newest.get(message.id, message.offset) == message.offset
                    yield Entry(name, message, segment.payload(index), is_newest)
            await asyncio.sleep(0)

    async def _newest(self, segment: Segment) -> dict[int, int]:
        """The newest entries of the messages that the segment's entries replace."""
        replaced = [metadata.id for metadata in segment.metadata if metadata.id is not None]
        if not replaced:
            return {}
        async with self._database.reading() as session:
            rows = await session.fetch("find_newest", messages=replaced)
        return {int(message): int(entry) for message, entry in rows}

    # -- deliveries --------------------------------------------------------------------

    async def queues(self) -> AsyncIterator[DumpRecord]:
        """Consumers, partitions, deliveries and replay marks, queue by queue."""
        consumers = await self._by_queue("penstock_consumer")
        owners = await self._by_queue("penstock_owner")
        marks = await self._by_queue("penstock_replayed")
        for tenant in sorted(self._tenants.values(), key=lambda one: one.name):
            for name in sorted(tenant.queues):
                queue = tenant.queues[name]
                for _, consumer, deadline in consumers.get(queue.number, ()):
                    yield records.Consumer(tenant.name, name, consumer, deadline)
                for _, partition, owner, epoch in owners.get(queue.number, ()):
                    yield records.Partition(tenant.name, name, partition.decode(), epoch, owner)
                for dead in (False, True):
                    async for delivery in self._deliveries(queue, dead=dead):
                        yield delivery
                for _, dead, replay_id, message in marks.get(queue.number, ()):
                    yield records.ReplayMark(tenant.name, name, dead, message, replay_id)

    async def _by_queue(self, name: str) -> dict[int, list[list[Any]]]:
        found: dict[int, list[list[Any]]] = {}
        async for rows in self._rows(name):
            for row in rows:
                found.setdefault(row[0], []).append(row)
        return found

    async def _deliveries(self, queue: Queue, *, dead: bool) -> AsyncIterator[Delivery]:
        waiting = [self._in_order(queue, phase) for phase in (_DEAD_LIVE if dead else _LIVE)]
        held_in = Phase.DEAD_IN_FLIGHT if dead else Phase.IN_FLIGHT
        held = sorted([one async for one in self._of_phase(queue, held_in)])
        async for placed in _merged([*waiting, _each(held)]):
            yield placed.delivery
        others = (
            (Phase.DEAD_DELAYED, Phase.DEAD_DONE)
            if dead
            else (Phase.DELAYED, Phase.DONE, Phase.EXPIRED)
        )
        for phase in others:
            async for placed in self._in_order(queue, phase):
                yield placed.delivery

    async def _in_order(self, queue: Queue, phase: Phase) -> AsyncIterator[_Placed]:
        """The deliveries of a phase in claim order: members of groups may alternate."""
        pending: list[_Placed] = []
        present = (-1, -1)
        async for placed in self._of_phase(queue, phase):
            # Rows come in the order of their first members, and a member is not before those.
            if placed.nth == 0:
                present = placed[:2]
                while pending and pending[0][:2] < present:
                    yield heapq.heappop(pending)
            heapq.heappush(pending, placed)
        while pending:
            yield heapq.heappop(pending)

    async def _of_phase(self, queue: Queue, phase: Phase) -> AsyncIterator[_Placed]:
        """The deliveries of a phase, group by group; ``nth`` is 0 for the first of a group."""
        key: tuple[int, int] = (-1, -1)
        while True:
            async with self._database.reading() as session:
                stored = await session.fetch(
                    "groups_of_phase",
                    queue=queue.number,
                    phase=int(phase),
                    key_a=key[0],
                    key_b=key[1],
                )
                rows = [to_row(GROUPS, self._database.name, row) for row in stored]
                groups = [DeliveryGroup.read(row) for row in rows]
                tenant = self._tenants_by_name(queue.tenant)
                wanted = {group.entry_segment for group in groups}
                segments = await self._segments.read(session, tenant.number, wanted)
            for group in groups:
                for placed in _placed(queue, group, segments):
                    if group.phase in _IN_FLIGHT:
                        receipt = self._receipt(group, placed.delivery.message.id)
                        delivery = replace(placed.delivery, receipt=receipt)
                        yield placed._replace(delivery=delivery)
                    else:
                        yield placed
            if len(rows) < GROUPS.page:
                return
            key = rows[-1][2], rows[-1][3]

    def _receipt(self, group: DeliveryGroup, message: int) -> str:
        place = (group.queue, group.rank, group.record.lease)
        copied = self._copied.get((*place, message))
        return f"{self._receipts.prefix(*place)}{message:x}" if copied is None else copied

    def _tenants_by_name(self, name: str) -> Tenant:
        return next(tenant for tenant in self._tenants.values() if tenant.name == name)

    # -- everything else ---------------------------------------------------------------

    async def others(self) -> AsyncIterator[DumpRecord]:
        """Keys, ids and documents."""
        async for rows in self._rows("penstock_key"):
            for tenant, topic, key, message in rows:
                known = await self._key(self._tenants[tenant], topic, key.decode(), message)
                if known is not None:
                    yield known
        async for rows in self._rows("penstock_id"):
            for row in rows:
                identified = self._id(row)
                if identified is not None:
                    yield identified
        async for rows in self._rows("penstock_document"):
            for kind, name, value in rows:
                if kind != RECEIPT_KIND:
                    yield records.Document(kind, name, value)

    async def _key(
        self, tenant: Tenant, topic: str, key: str, message: int
    ) -> records.OpenKey | None:
        """The open key; None if no queue has the message any more."""
        number, index = segment_of(message)
        async with self._database.reading() as session:
            stored = await session.fetch(
                "segment_groups", segments=[number], queues=sorted(tenant.numbered)
            )
            found = await self._segments.messages(session, tenant.number, [message])
        groups = [DeliveryGroup.read(row) for row in stored]
        queues = [tenant.numbered[group.queue].name for group in groups if index in group.members]
        if not queues or message not in found:
            return None
        return records.OpenKey(
            tenant.name, topic, key, message, found[message].priority, tuple(sorted(queues))
        )

    def _id(
        self, row: Sequence[Any]
    ) -> records.IdempotencyId | records.BatchId | records.SettleId | None:
        number, kind, topic, raw, at, until, _, message, entry, reply = row
        tenant, text = self._tenants[number].name, raw.decode()
        match kind:
            case 1 if reply is not None:
                decoded: tuple[Published, ...] = decode_batch_reply(reply)
                return records.BatchId(tenant, topic, text, at, until, message, decoded)
            case 2 if reply is not None:
                return records.SettleId(tenant, topic, text, at, until, reply)
            case 0 | 3 if message is not None:
                return records.IdempotencyId(
                    tenant, topic, text, kind == _PARTITION_MESSAGE, at, until, message, entry
                )
            case _:
                return None


def _placed(queue: Queue, group: DeliveryGroup, segments: dict[int, Segment]) -> list[_Placed]:
    record = group.record
    segment = segments.get(group.entry_segment)
    history = _history(record)
    found = []
    for nth, index in enumerate(group.members):
        own = message_id(group.segment, index)
        entry = index if record.entry is None else segment_of(record.entry)[1]
        if segment is None or entry >= len(segment.metadata):
            raise StoreCorrupt(f"The entry of message {own} is missing from the log.")
        delivery = Delivery(
            tenant=queue.tenant,
            queue=queue.name,
            message=delivered(segment.message(entry), record),
            state=state_of(group.phase),
            dead=is_dead(group.phase),
            attempts=record.attempts,
            released=record.released,
            due_at=record.due_at,
            at=record.at,
            claimed_at=record.claimed_at,
            deadline=record.deadline,
            consumer=record.consumer,
            error=record.error,
            result=record.result,
            position=record.position,
            history=history,
        )
        position = own if record.position is None else record.position
        found.append(_Placed(group.rank, position, nth, delivery))
    return found


def _history(record: DeliveryRecord) -> tuple[Step, ...]:
    """The marks. One that ends a claim which was cut off has no consumer, as in every engine."""
    steps: list[Step] = []
    claimed = False
    for mark in record.marks:
        consumer = mark.consumer
        if mark.transition is Transition.CLAIM:
            claimed = True
        elif mark.transition in _ENDINGS:
            consumer = consumer if claimed else None
            claimed = False
        steps.append(Step(mark.at, mark.transition, mark.state, mark.dead, consumer, mark.error))
    return tuple(steps)


async def _each(placed: Sequence[_Placed]) -> AsyncIterator[_Placed]:
    for one in placed:
        yield one


async def _merged(streams: Sequence[AsyncIterator[_Placed]]) -> AsyncIterator[_Placed]:
    """Several ordered streams as one."""
    heads: list[tuple[int, int, int, _Placed]] = []
    for number, stream in enumerate(streams):
        async for placed in stream:
            heads.append((placed.rank, placed.position, number, placed))
            break
    heapq.heapify(heads)
    while heads:
        _, _, number, placed = heads[0]
        yield placed
        async for following in streams[number]:
            heapq.heapreplace(heads, (following.rank, following.position, number, following))
            break
        else:
            heapq.heappop(heads)
