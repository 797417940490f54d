"""Makes the rows of a store in a database from the dump of a key-value store.

Entries are packed into segments, and consecutive deliveries with the same history into groups, as
publishes and claims would have done it. The same dump makes the same rows in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from penstock.model.message import MessageId, Offset, Published
from penstock.model.queue import Ordering
from penstock.storage import dump
from penstock.storage.sql.catalog import encode_policy
from penstock.storage.sql.deliveries import INDEX_BITS, Kind
from penstock.storage.sql.ids import encode_batch_reply
from penstock.storage.sql.transfer.group_writer import GroupWriter
from penstock.storage.sql.transfer.numbering import Numbering
from penstock.storage.sql.transfer.segment_writer import SegmentWriter

__all__ = ["Loader"]

#: A table and a row of it.
Rows: TypeAlias = Iterator[tuple[str, Sequence[Any]]]
_AfterLog: TypeAlias = (
    dump.Consumer
    | dump.Partition
    | dump.Delivery
    | dump.ReplayMark
    | dump.OpenKey
    | dump.IdempotencyId
    | dump.BatchId
    | dump.SettleId
    | dump.Document
)

_MESSAGE: Final = 0
_BATCH: Final = 1
_SETTLE: Final = 2
_PARTITION_MESSAGE: Final = 3


class Loader:
    """Takes the records of one dump in their order."""

    def __init__(self) -> None:
        self._first_segment = 0
        self._segments = SegmentWriter(0)
        self._tenants: dict[str, int] = {}
        self._numberings: dict[str, Numbering] = {}
        self._pending: list[dump.QueueInfo] = []
        self._queues: dict[tuple[str, str], int] = {}
        self._ordered: set[int] = set()
        self._groups = GroupWriter()
        self._tallies = 0
        self._unsettled: Counter[tuple[int, str]] = Counter()

    def rows(self, record: dump.DumpRecord) -> Rows:
        """The rows that are complete after this record of the dump."""
        if not isinstance(
            record,
            dump.StoreInfo
            | dump.TenantInfo
            | dump.TopicInfo
            | dump.QueueInfo
            | dump.Position
            | dump.Entry,
        ):
            yield from self._end_of_log()
            yield from self._after_log(record)
            return
        match record:
            case dump.StoreInfo():
                self._first_segment = (record.next_offset >> INDEX_BITS) + 1
                self._segments = SegmentWriter(self._first_segment)
            case dump.TenantInfo():
                yield self._tenant(record)
            case dump.TopicInfo():
                policy = encode_policy(record.policy)
                yield "penstock_topic_policy", (self._tenants[record.tenant], record.name, policy)
            case dump.QueueInfo():
                self._pending.append(record)
                self._queues[record.tenant, record.name] = len(self._queues) + 1
            case dump.Position():
                self._segments.reserve(self._tenants[record.tenant], record.number)
            case dump.Entry():
                yield from self._entry(record)
            case _:
                assert_never(record)

    def _after_log(self, record: _AfterLog) -> Rows:
        match record:
            case dump.Consumer():
                number = self._queues[record.tenant, record.queue]
                yield "penstock_consumer", (number, record.name, record.deadline)
            case dump.Partition():
                if record.owner is not None:
                    number = self._queues[record.tenant, record.queue]
                    name = record.name.encode()
                    yield "penstock_owner", (number, name, record.owner, record.epoch)
            case dump.Delivery():
                yield from self._delivery(record)
            case dump.ReplayMark():
                yield from self._replay_mark(record)
            case dump.OpenKey():
                message = self._numberings[record.tenant].find(record.message_id)
                if message is not None:
                    tenant, key = self._tenants[record.tenant], record.key.encode()
                    yield "penstock_key", (tenant, record.topic, key, message)
            case dump.IdempotencyId() | dump.BatchId() | dump.SettleId():
                yield self._id(record)
            case dump.Document():
                yield "penstock_document", (record.kind, record.name, record.value)
            case _:
                assert_never(record)

    def rest(self) -> Rows:
        """The rows that are complete at the end of the dump."""
        yield from self._end_of_log()
        yield from self._groups.flush()
        for (queue, kind), delta in sorted(self._groups.counts.items()):
            yield from self._tally(queue, kind, delta)
        for (queue, partition), unsettled in sorted(self._unsettled.items()):
            yield "penstock_partition", (queue, partition.encode(), unsettled)
        yield "given", (self._segments.last,)

    # -- the catalog and the log -------------------------------------------------------

    def _tenant(self, record: dump.TenantInfo) -> tuple[str, Sequence[Any]]:
        number = self._tenants[record.name] = len(self._tenants) + 1
        self._numberings[record.name] = self._segments.add_tenant(number)
        # Nothing is archived under the new offsets, and nothing before them exists.
        trimmed = self._first_segment << INDEX_BITS if record.trimmed else None
        return "penstock_tenant", (number, record.name, 1, None, trimmed)

    def _entry(self, entry: dump.Entry) -> Rows:
        tenant, message = self._tenants[entry.tenant], entry.message
        numbering = self._numberings[entry.tenant]
        replaces = numbering.find(message.id) if message.is_replacement else None
        offset, rows = self._segments.append(tenant, message, entry.payload, replaces)
        yield from rows
        if entry.newest and replaces is not None:
            yield "penstock_newest", (replaces, tenant, offset)

    def _end_of_log(self) -> Rows:
        """The rest of the log, and the queues, whose cursors are offsets."""
        yield from self._segments.flush()
        for info in self._pending:
            number = self._queues[info.tenant, info.name]
            if info.policy.ordering is Ordering.PARTITION:
                self._ordered.add(number)
            cursor = info.cursor
            if cursor is not None:
                found = self._numberings[info.tenant].at_or_after(cursor)
                cursor = self._segments.last + 1 << INDEX_BITS if found is None else found
            yield (
                "penstock_queue",
                (
                    number,
                    self._tenants[info.tenant],
                    info.name,
                    encode_policy(info.policy),
                    info.filter_version,
                    info.created_at,
                    cursor,
                    None,
                    None,
                    info.dead_paused,
                    info.epoch,
                ),
            )
            yield from self._counters(number, info.counters, dead=False)
            yield from self._counters(number, info.dead_counters, dead=True)
        self._pending = []

    def _counters(self, queue: int, counters: dump.Counters, *, dead: bool) -> Rows:
        for kind, delta in (
            (Kind.GRANTS, counters.grants),
            (Kind.ACKS, counters.acks),
            (Kind.NACKS, counters.nacks),
            (Kind.FAILURES, counters.failures),
        ):
            if delta:
                yield from self._tally(queue, int(Kind.of(kind, dead=dead)), delta)

    def _tally(self, queue: int, kind: int, delta: int) -> Rows:
        self._tallies += 1
        yield "penstock_tally", (queue, kind, self._tallies, delta)

    # -- deliveries --------------------------------------------------------------------

    def _delivery(self, delivery: dump.Delivery) -> Rows:
        numbering = self._numberings[delivery.tenant]
        queue = self._queues[delivery.tenant, delivery.queue]
        message = delivery.message
        own = numbering.find(message.id)
        if own is None:
            return  # Its log entry is gone, and nothing can be delivered.
        entry = numbering.find(message.offset) if message.is_replacement else None
        position = None
        if delivery.position is not None:
            position = numbering.find(delivery.position)
        partition = None
        if queue in self._ordered:
            partition = message.partition_key or ""
            if not delivery.dead and delivery.state.value in ("delayed", "available", "in_flight"):
                self._unsettled[queue, partition] += 1
        yield from self._groups.add(
            queue, delivery, own, entry=entry, position=position, partition=partition
        )

    def _replay_mark(self, record: dump.ReplayMark) -> Rows:
        message = self._numberings[record.tenant].find(record.message_id)
        if message is not None:
            number = self._queues[record.tenant, record.queue]
            yield "penstock_replayed", (number, record.dead, record.replay_id, message)

    # -- ids ---------------------------------------------------------------------------

    def _id(
        self, record: dump.IdempotencyId | dump.BatchId | dump.SettleId
    ) -> tuple[str, Sequence[Any]]:
        numbering, tenant = self._numberings[record.tenant], self._tenants[record.tenant]
        times = (record.id.encode(), record.at, record.until, 0)
        row: tuple[object, ...]
        match record:
            case dump.IdempotencyId():
                kind = _PARTITION_MESSAGE if record.partitioned else _MESSAGE
                message = _present(numbering, record.message_id)
                entry = _present(numbering, record.offset)
                row = (tenant, kind, record.topic, *times, message, entry, None)
            case dump.BatchId():
                reply = encode_batch_reply([_published(numbering, one) for one in record.reply])
                row = (tenant, _BATCH, record.topic, *times, record.own_ms, None, reply)
            case _:
                states, messages = msgspec.msgpack.decode(record.reply)
                for one in messages:
                    one[:2] = (_present(numbering, number) for number in one[:2])
                answer = msgspec.msgpack.encode((states, messages))
                row = (tenant, _SETTLE, record.queue, *times, None, None, answer)
        return "penstock_id", row


def _present(numbering: Numbering, old: int) -> int:
    """The new number; an old one that denotes nothing any more still denotes nothing."""
    found = numbering.find(old)
    return old if found is None else found


def _published(numbering: Numbering, one: Published) -> Published:
    return replace(
        one,
        id=MessageId(_present(numbering, one.id)),
        offset=Offset(_present(numbering, one.offset)),
    )
