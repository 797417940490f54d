"""Makes the records of a key-value store from a dump.

The records are those that the engine would have written. A bucket is complete before its record is
made, so every key occurs once, and the same dump makes the same records in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, assert_never

from penstock.storage import dump
from penstock.storage.keyvalue.dedup import (
    FirstPublish,
    batch_value,
    id_value,
    settle_value,
    slot_value,
)
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.keys import (
    QUEUE_NUMBER_KEY,
    SEQ_BLOCK_KEY,
    batch_key,
    dedup_key,
    dedup_slot_key,
    document_key,
    open_key,
    partition_dedup_key,
    payload_key,
    replaced_key,
    replacement_key,
    settle_key,
    tenant_key,
    topic_key,
)
from penstock.storage.keyvalue.log_records import encode_block, encode_tenant
from penstock.storage.keyvalue.metadata import encode_metadata
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.storage.keyvalue.records import Logged
from penstock.storage.keyvalue.topics import encode_topic
from penstock.storage.keyvalue.transfer.log_writer import LogWriter
from penstock.storage.keyvalue.transfer.queue_writer import QueueWriter
from penstock.storage.keyvalue.transfer.record_kinds import kind_of
from penstock.storage.transfer import Item

__all__ = ["Loader"]

_U64: Final = struct.Struct("<Q")
_SLOT_MS: Final = 60_000


class Loader:
    """Takes the records of one dump in their order."""

    def __init__(self) -> None:
        self._log = LogWriter()
        self._queues: dict[tuple[str, str], QueueWriter] = {}
        self._present: QueueWriter | None = None
        self._ids = 0

    def items(self, record: dump.DumpRecord) -> Iterator[Item]:
        """The records of the store that are complete after this record of the dump."""
        for key, value in self._pairs(record):
            yield Item(kind_of(key), key, value)

    def rest(self) -> Iterator[Item]:
        """The records that are complete at the end of the dump."""
        for key, value in self._last_pairs():
            yield Item(kind_of(key), key, value)

    def _pairs(self, record: dump.DumpRecord) -> Iterator[tuple[bytes, bytes]]:
        match record:
            case dump.StoreInfo():
                if record.next_offset:
                    yield SEQ_BLOCK_KEY, encode_block(0, record.next_offset)
            case dump.TenantInfo():
                yield from _tenant(record)
            case dump.TopicInfo():
                yield topic_key(record.tenant, record.name), encode_topic(record.policy)
            case dump.QueueInfo():
                queue = QueueWriter(record, 2 * len(self._queues))
                self._queues[record.tenant, record.name] = queue
                yield queue.spec()
            case dump.Position():
                pass  # It is the number that the claim id of its delivery has.
            case dump.Entry():
                yield from self._entry(record)
            case dump.Consumer():
                yield self._queue(record.tenant, record.queue).consumer(record)
            case dump.Partition():
                self._queue(record.tenant, record.queue).partition(record)
            case dump.Delivery():
                yield from self._delivery(record)
            case dump.ReplayMark():
                yield self._queue(record.tenant, record.queue).replay_mark(record), b""
            case dump.OpenKey():
                known = OpenKey(record.message_id, record.priority, record.queues)
                yield open_key(record.tenant, record.topic, record.key), known.encode()
            case dump.IdempotencyId() | dump.BatchId() | dump.SettleId():
                yield from self._id(record)
            case dump.Document():
                yield document_key(record.kind, record.name), seal(record.value)
            case _:
                assert_never(record)

    def _queue(self, tenant: str, name: str) -> QueueWriter:
        return self._queues[tenant, name]

    def _entry(self, entry: dump.Entry) -> Iterator[tuple[bytes, bytes]]:
        message = entry.message
        yield payload_key(message.offset), entry.payload
        if message.is_replacement:
            yield replacement_key(message.offset), seal(_U64.pack(message.id))
            if entry.newest:
                yield replaced_key(message.id), seal(_U64.pack(message.offset))
        logged: Logged = (message, encode_metadata(message))
        yield from self._log.append(entry.tenant, logged)

    def _delivery(self, delivery: dump.Delivery) -> Iterator[tuple[bytes, bytes]]:
        queue = self._queue(delivery.tenant, delivery.queue)
        if self._present is not queue and self._present is not None:
            yield from self._present.flush()
        self._present = queue
        yield from queue.delivery(delivery)

    def _id(
        self, record: dump.IdempotencyId | dump.BatchId | dump.SettleId
    ) -> Iterator[tuple[bytes, bytes]]:
        match record:
            case dump.IdempotencyId():
                named = partition_dedup_key if record.partitioned else dedup_key
                key = named(record.tenant, record.topic, record.id)
                yield key, id_value(FirstPublish(record.message_id, record.offset, record.at))
            case dump.BatchId():
                key = batch_key(record.tenant, record.topic, record.id)
                yield key, batch_value(record.at, record.own_ms, record.reply)
            case _:
                key = settle_key(record.tenant, record.queue, record.id)
                yield key, settle_value(record.at, record.reply)
        yield dedup_slot_key(record.until // _SLOT_MS, self._ids), slot_value([key])
        self._ids += 1

    def _last_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        yield from self._log.flush()
        if self._present is not None:
            yield from self._present.flush()
        for queue in self._queues.values():
            yield from queue.rest()
        if self._queues:
            yield QUEUE_NUMBER_KEY, seal(_U64.pack(2 * len(self._queues)))


def _tenant(record: dump.TenantInfo) -> Iterator[tuple[bytes, bytes]]:
    archived = -1 if record.archived is None else record.archived
    if record.end or record.trimmed or archived >= 0:
        yield tenant_key(record.name), encode_tenant(record.end, archived, record.trimmed)
