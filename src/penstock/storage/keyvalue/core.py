"""The engine's state: tenants, queues, the log and staged changes, and how it is loaded.

Opening reads specs, cursors and in-flight deliveries, never the backlog. After that memory stays
bounded, because every commit evicts buckets far from the claim head.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import Final

from penstock.errors import StoreCorrupt, StoreTooNew, StoreUnfinished
from penstock.filters import parse
from penstock.filters.batch_routes import INLINE_EVALUATIONS
from penstock.model.fixed_fields import changed_fixed_field, not_empty
from penstock.model.queue import Ordering, QueuePolicy, RetryPosition, auto_created_policy
from penstock.storage.contract import EngineOptions
from penstock.storage.copied_receipts import RECEIPT_KIND, decode_claims
from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.chain import Chain
from penstock.storage.keyvalue.dedup import Dedup
from penstock.storage.keyvalue.disk_space import DiskSpace
from penstock.storage.keyvalue.encoding import seal, unseal, untangle
from penstock.storage.keyvalue.identity import Identity
from penstock.storage.keyvalue.keys import (
    COPY_KEY,
    FORMAT_KEY,
    QUEUE_NUMBER_KEY,
    SPEC_PREFIX,
    TOPIC_PREFIX,
    QueueKeys,
    documents_prefix,
)
from penstock.storage.keyvalue.log import SEGMENT_ENTRIES, Log
from penstock.storage.keyvalue.long_changes import STEP, LongChanges
from penstock.storage.keyvalue.notifications import Notifier
from penstock.storage.keyvalue.partitions import MOST_MOVES, Partitions
from penstock.storage.keyvalue.positions import Positions
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.receipts import Receipts
from penstock.storage.keyvalue.recent_payloads import RECENT_BYTES
from penstock.storage.keyvalue.records import KEYED_BY_NUMBER, decode_spec
from penstock.storage.keyvalue.stage import ENCODE_STEP, Stage
from penstock.storage.keyvalue.tenant import Tenant
from penstock.storage.keyvalue.topics import decode_topic
from penstock.storage.quotas import check_filter_quota
from penstock.storage.turns import SLICE_S

__all__ = ["FORMAT_VERSION", "SLICE", "Core"]

#: Incremented with every change of the records that an older Penstock cannot read.
FORMAT_VERSION: Final = 3
#: The format of a new store, until it contains something from a later one: format 2 added queues
#: whose records are keyed by their number.
_FIRST_FORMAT: Final = 1
_KEYED_BY_NUMBER_FORMAT: Final = 2
_POSITIONS_FORMAT: Final = 3
#: Decoded deliveries cached over all queues, besides those in flight: about 50 MB.
_CACHED_ENTRIES: Final = 50_000
_MIN_BUCKETS: Final = 2
#: Queues whose buckets are evicted after a commit: under two milliseconds. A message may change ten
#: thousand; the others follow after later commits.
_QUEUES_A_COMMIT: Final = 500
#: Deliveries per slice of a bulk verb: under five milliseconds if it moves all of them.
SLICE: Final = 64

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Core:
    """The engine's state, shared by the verbs."""

    def __init__(
        self,
        adapter: Adapter,
        options: EngineOptions,
        slice_size: int = SLICE,
        step_size: int = STEP,
        slice_s: float = SLICE_S,
        inline_evaluations: int = INLINE_EVALUATIONS,
        segment_entries: int = SEGMENT_ENTRIES,
        recent_payload_bytes: int = RECENT_BYTES,
    ) -> None:
        self.adapter = adapter
        self.options = options
        self.slice_size = slice_size
        self.step_size = step_size
        self.slice_s = slice_s
        self.inline_evaluations = inline_evaluations
        self.changes = LongChanges(slice_s)
        self.stage = Stage(adapter, min(step_size, ENCODE_STEP), recent_payload_bytes)
        self.notifier = Notifier()
        self.log = Log(self.stage, segment_entries)
        self.dedup = Dedup(self.stage)
        self.identity = Identity(self.stage, options.random)
        self.space = DiskSpace(adapter, options.limits.free_disk_bytes)
        self.chain = Chain(adapter, options.clock, self.log) if adapter.persistent else None
        self.receipts: Receipts
        self.tenants: dict[str, Tenant] = {}
        self._next_queue_number = 0
        self._queue_count = 0
        #: Queues that changed, in order, whose buckets are to be evicted.
        self._changed_queues: dict[Queue, None] = {}
        self.format_version = _FIRST_FORMAT
        #: Whether a queue was deleted since the store was opened: a verb that began before may
        #: still hold it, so queues created from now on must not share a key with it.
        self._deleted = False

    def load(self, *, restart_above: int | None = None) -> None:
        """Read specs, cursors and in-flight deliveries, never the backlog.

        Raises if commits are missing, unless ``restart_above`` restarts the chain above a number.
        """
        if self.stage.get(COPY_KEY) is not None:
            raise StoreUnfinished("A copy or a restore into this store has not finished.")
        if self.chain is not None:
            if restart_above is None:
                self.chain.load()
            else:
                self.chain.restart(self.stage, restart_above)
        value = self.stage.get(FORMAT_KEY)
        if value is None:
            self._write_format(_FIRST_FORMAT)
        else:
            (self.format_version,) = _U32.unpack(unseal(value, "format"))
        if self.format_version > FORMAT_VERSION:
            raise StoreTooNew(
                f"The store has format {self.format_version}; "
                f"this Penstock supports up to {FORMAT_VERSION}.",
                field="url",
                limit=FORMAT_VERSION,
            )
        self.identity.load(self.adapter.place())
        prefix = documents_prefix(RECEIPT_KIND)
        copied = (
            (key[len(prefix) :].decode(), unseal(value, "document"))
            for key, value in self.stage.prefix(prefix)
        )
        self.receipts = Receipts(self.identity.receipt_key, decode_claims(copied))
        self.log.load()
        number = self.stage.get(QUEUE_NUMBER_KEY)
        if number is not None:
            (self._next_queue_number,) = _U64.unpack(unseal(number, "queue number"))
        for key, value in self.stage.prefix(TOPIC_PREFIX):
            tenant, position = untangle(key, len(TOPIC_PREFIX))
            self.tenant(tenant.decode()).topics[key[position:].decode()] = decode_topic(value)
        for key, value in self.stage.prefix(SPEC_PREFIX):
            tenant_name, _, name = key[len(SPEC_PREFIX) :].decode().partition("/")
            policy, facts = decode_spec(value)
            if not {"queue_number", "filter_version", "created_at"} <= facts.keys():
                raise StoreCorrupt(f"The specification of queue {name!r} is not complete.")
            queue = self._build(
                tenant_name,
                name,
                facts["queue_number"],
                policy,
                keyed_by_number=KEYED_BY_NUMBER in facts,
            )
            queue.filter_version = facts["filter_version"]
            queue.created_at = facts["created_at"]
            queue.load(self.log.next_offset - 1)
            if queue.partitions is not None:
                queue.partitions.load()
            self.tenant(tenant_name).add(queue)
            self._queue_count += 1

    def tenant(self, name: str) -> Tenant:
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = Tenant(name, self.log.tenant(name))
        return tenant

    def new_queue(
        self, tenant: str, name: str, now: int, policy: QueuePolicy | None = None
    ) -> Queue:
        """Build an unregistered queue. Without a policy, it is the queue of the topic ``name``."""
        if policy is None:
            demand = self.tenant(tenant).topic(name)
            policy = auto_created_policy(name, demand, self.options.default_policy)
        queue = self._build(
            tenant,
            name,
            self._next_queue_number,
            policy,
            keyed_by_number=self._deleted or self._has_records(tenant, name),
        )
        self._next_queue_number += 2
        queue.created_at = now
        return queue

    def register(self, queue: Queue) -> None:
        self.stage.put(QUEUE_NUMBER_KEY, seal(_U64.pack(self._next_queue_number)))
        self._raise_format(queue)
        queue.write_spec()
        queue.touch()
        self.tenant(queue.tenant).add(queue)
        self._queue_count += 1
        self.log.wanted += 1

    def unregister(self, queue: Queue) -> None:
        self._deleted = True
        self.tenant(queue.tenant).remove(queue)
        queue.discard()
        self._changed_queues.pop(queue, None)
        self._queue_count -= 1

    def change_policy(self, queue: Queue, policy: QueuePolicy) -> None:
        """Replace a queue's policy. A changed filter applies to later messages only (R1)."""
        before = queue.policy
        changed = parse(policy.filter)
        owner = self.tenant(queue.tenant)
        check_filter_quota(self.options.limits, owner.unindexed, changed, queue.filter)
        fixed = changed_fixed_field(before, policy)
        if fixed is not None and (queue.depth or (queue.dead and queue.dead.depth)):
            raise not_empty(queue.name, fixed)
        queue.change_policy(policy, changed)
        queue.positions = self._positions(queue)
        owner.bounded += (policy.max_depth is not None) - (before.max_depth is not None)
        if before.ordering is not policy.ordering:
            ordered = policy.ordering is Ordering.PARTITION
            queue.partitions = self._partitions(queue) if ordered else None
        elif queue.partitions is not None and (
            before.partition_concurrency != policy.partition_concurrency
            or before.partition_batch != policy.partition_batch
        ):
            queue.partitions.policy_changed()
        if before.filter != policy.filter:
            queue.filter_version += 1
            owner.reindex(queue)
        self._raise_format(queue)
        queue.write_spec()

    def queues(self) -> list[Queue]:
        return [queue for tenant in self.tenants.values() for queue in tenant.queues.values()]

    def committed(self, completed: int) -> None:
        """After a commit: make it visible to readers and evict buckets."""
        self.log.committed()
        changed = self._changed_queues
        for item in self.stage.written:
            if isinstance(item, Queue):
                changed[item] = None
        for queue in list(islice(changed, _QUEUES_A_COMMIT)):
            del changed[queue]
            per_queue = _CACHED_ENTRIES // 10**queue.policy.bucket_size
            keep = max(_MIN_BUCKETS, per_queue // max(1, self._queue_count))
            queue.evict(keep, completed)

    def window_of(self, tenant: str, topic: str) -> int:
        return self.tenant(tenant).topic(topic).dedup_window_ms

    def _has_records(self, tenant: str, name: str) -> bool:
        """Whether a deleted queue left records behind, as versions up to format 1 could."""
        return self.stage.get(QueueKeys(tenant, name).state) is not None

    def _positions(self, queue: Queue) -> Positions | None:
        if queue.policy.retry_position is RetryPosition.KEEP:
            return None
        return Positions(self.stage, queue.keys, self.log.draw_position)

    def _raise_format(self, queue: Queue) -> None:
        """Raise the format of the store to the one that the queue needs."""
        needed = _KEYED_BY_NUMBER_FORMAT if queue.keyed_by_number else _FIRST_FORMAT
        if queue.positions is not None:
            needed = _POSITIONS_FORMAT
        if self.format_version < needed:
            self._write_format(needed)

    def _write_format(self, version: int) -> None:
        self.format_version = version
        self.stage.put(FORMAT_KEY, seal(_U32.pack(version)))

    def _build(
        self, tenant: str, name: str, number: int, policy: QueuePolicy, *, keyed_by_number: bool
    ) -> Queue:
        queue = Queue(
            self.stage,
            tenant,
            name,
            number,
            policy,
            parse(policy.filter),
            notifier=self.notifier,
            receipts=self.receipts,
            keyed_by_number=keyed_by_number,
        )
        queue.positions = self._positions(queue)
        if policy.ordering is Ordering.PARTITION:
            queue.partitions = self._partitions(queue)
        return queue

    def _partitions(self, queue: Queue) -> Partitions:
        return Partitions(queue, min(MOST_MOVES, self.slice_size))
