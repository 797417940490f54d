"""The read-only verbs: the log, messages, deliveries, counts, and the next due time.

They wait until what they return is committed, so that a crash cannot revoke a reply. ``browse``
provides the pages, ``stats`` the counts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.errors import UnknownMessage
from penstock.filters import Filter
from penstock.model.columns import LogColumns
from penstock.model.counts import QueueCounts
from penstock.model.delivery import (
    Event,
    LogEntry,
    LogPage,
    MessageDeliveries,
    Page,
    PartitionStats,
    QueueStats,
    Result,
    Snapshot,
)
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.message import Message, MessageId, Offset
from penstock.model.message import Published as Stored
from penstock.model.reports import HistoryEntry, HistoryPage
from penstock.model.states import State
from penstock.storage.dedup_scope import is_partitioned, stored_id
from penstock.storage.keyvalue.browse import MAX_SCAN, SLICE_BYTES, peek, snapshots_of
from penstock.storage.keyvalue.columns import read_columns, read_payloads
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.guarded import Guarded, reading
from penstock.storage.keyvalue.histories import Published, histories_in, history_in
from penstock.storage.keyvalue.log_counts import EntryCount
from penstock.storage.keyvalue.payloads import read_payload
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import Logged
from penstock.storage.keyvalue.results import result_of
from penstock.storage.keyvalue.stats import partition_stats, queue_counts, queue_stats
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["ReadingVerbs", "next_due"]

#: Partitions per slice of stats; each may need a seek.
_PARTITIONS: Final = 100
#: Queues that are searched for one message per turn: ten reads each.
_QUEUES: Final = 64
#: Log entries per slice: some three milliseconds.
_ENTRIES: Final = 500


class ReadingVerbs(Guarded):
    """The verbs of the contract that only read."""

    _core: Core

    @reading
    async def tenants(self) -> tuple[str, ...]:
        self._begin()
        # Naming a tenant creates it in memory; such a tenant is not listed.
        names = {
            name for name, tenant in self._core.tenants.items() if tenant.queues or tenant.topics
        }
        names.update(name for name, log in self._core.log.tenants.items() if log.end)
        await self._committer.settled()
        return tuple(sorted(names))

    @reading
    async def behind(self) -> tuple[tuple[str, str], ...]:
        self._begin()
        found = sorted(
            (queue.tenant, queue.name) for queue in self._core.queues() if queue.cursor is not None
        )
        await self._committer.settled()
        return tuple(found)

    @reading
    async def next_due(self, tenant: str, queue: str) -> int | None:
        self._begin()
        # No need to wait for a commit: a time that a crash revokes was only early.
        return next_due(self._core.tenant(tenant).queue(queue))

    @reading
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
        self._begin()
        items: list[Snapshot] = []
        size = self._core.slice_size
        for looked in range(0, MAX_SCAN, size):
            if looked:
                await self._next_slice(tenant)
            # Looked up by name each time: the queue may have been deleted and recreated meanwhile.
            found = self._core.tenant(tenant).queue(queue)
            left = limit - len(items)
            page = peek(found, state, where, left, cursor, size, payloads=payloads)
            items += page.items
            cursor = page.cursor
            if cursor is None or len(items) == limit:
                break
        await self._committer.settled()
        return Page(tuple(items), cursor)

    @reading
    async def read_log(
        self, tenant: str, start: Offset, limit: int, *, payloads: bool = False
    ) -> LogPage:
        self._begin()
        entries: list[LogEntry] = []
        while True:
            size = min(limit - len(entries), _ENTRIES)
            start, more = self._read_some(tenant, start, size, entries, payloads=payloads)
            if not more or len(entries) == limit:
                break
            await self._next_slice(tenant)
        return LogPage(tuple(entries), start)

    def _read_some(
        self, tenant: str, start: Offset, limit: int, out: list[LogEntry], *, payloads: bool
    ) -> tuple[Offset, bool]:
        """Add entries to ``out``; returns the next offset, and whether there may be more."""
        next_offset, size = start, 0
        for read, (message, metadata) in enumerate(
            self._core.log.read(tenant, start, staged=False)
        ):
            if read == limit or size > SLICE_BYTES:
                return next_offset, True
            payload = read_payload(self._core.stage.get, message) if payloads else None
            out.append(LogEntry(message, payload))
            next_offset = Offset(message.offset + 1)
            # Decoding headers takes longer than reading the same bytes of payload.
            size += len(payload or b"") + 2 * len(metadata)
        return max(start, Offset(self._core.log.tenant(tenant).committed_end)), False

    @reading
    async def read_log_columns(self, tenant: str, start: Offset, limit: int) -> LogColumns:
        self._begin()
        return read_columns(self._core.log, tenant, start, limit)

    @reading
    async def read_payloads(
        self, tenant: str, offsets: Sequence[int], sizes: Sequence[int], checksums: Sequence[int]
    ) -> Sequence[bytes | memoryview] | None:
        self._begin()
        del sizes  # Not needed: a payload is a value here.
        return read_payloads(self._core.log, self._core.stage, tenant, offsets, checksums)

    @reading
    async def log_end(self, tenant: str) -> Offset:
        self._begin()
        return Offset(self._core.log.tenant(tenant).committed_end)

    @reading
    async def batch(self, tenant: str, topic: str, batch_id: str) -> tuple[Stored, ...] | None:
        now = self._begin()
        window_ms = self._core.window_of(tenant, topic)
        found = self._core.dedup.find_batch(tenant, topic, batch_id, now, window_ms)
        await self._committer.settled()
        return found

    @reading
    async def log_trimmed(self, tenant: str) -> Offset:
        self._begin()
        trimmed = self._core.log.tenant(tenant).trimmed
        await self._committer.settled()
        return Offset(trimmed)

    @reading
    async def message(self, tenant: str, message_id: MessageId) -> MessageDeliveries:
        self._begin()
        owner = self._core.tenant(tenant)
        message, _ = self._find(tenant, message_id)
        payload = read_payload(self._core.stage.get, message)
        found: list[Snapshot] = []
        async for queue in self._each_queue(owner):
            found += snapshots_of(queue, message)
        deliveries = tuple(sorted(found, key=lambda snapshot: snapshot.queue))
        await self._committer.settled()
        return MessageDeliveries(message, payload, deliveries)

    @reading
    async def find(
        self, tenant: str, topic: str, id: str, partition_key: str | None = None
    ) -> Message | None:
        now = self._begin()
        policy = self._core.tenant(tenant).topic(topic)
        text = stored_id(policy, id, partition_key)
        first = self._core.dedup.find(tenant, topic, text, partitioned=is_partitioned(policy))
        found = None
        if first is not None and now < first.at + policy.dedup_window_ms:
            found = self._core.log.find(tenant, first.message_id)
        await self._committer.settled()
        return None if found is None else found[0]

    @reading
    async def result(self, tenant: str, queue: str, message_id: MessageId) -> Result | None:
        self._begin()
        state = self._core.tenant(tenant).queue(queue)
        message, _ = self._find(tenant, message_id)
        found = result_of(state, message)
        await self._committer.settled()
        return found

    @reading
    async def history(self, tenant: str, message_id: MessageId) -> tuple[Event, ...]:
        self._begin()
        owner = self._core.tenant(tenant)
        message, _ = self._find(tenant, message_id)
        events: list[Event] = []
        async for queue in self._each_queue(owner):
            events += history_in(queue, message)
        events.sort(key=lambda event: event.at)
        await self._committer.settled()
        return tuple(events)

    @reading
    async def read_history(
        self, tenant: str, start: Offset, limit: int, queue: str | None = None
    ) -> HistoryPage:
        self._begin()
        owner = self._core.tenant(tenant)
        if queue is not None:
            owner.queue(queue)
        found: list[HistoryEntry] = []
        end = start
        while limit > 0:
            size = min(limit, _ENTRIES)
            end, count, part = await self._histories(owner, end, size, queue)
            found += part
            limit -= count
            if count < size:
                break
            await self._next_slice(tenant)
        await self._committer.settled()
        return HistoryPage(tuple(found), end)

    async def _histories(
        self, tenant: Tenant, start: Offset, limit: int, queue: str | None
    ) -> tuple[Offset, int, list[HistoryEntry]]:
        """Histories of up to ``limit`` log entries, some queues per turn.

        Returns the next offset, the number of entries read, and their histories.
        """
        columns = read_columns(self._core.log, tenant.name, start, limit)
        messages = Published(columns)
        events: dict[int, list[Event]] = {message_id: [] for message_id in messages.ids}
        home = None if queue is None else queue.removesuffix(DLQ_SUFFIX)
        done = 0
        for name in sorted(tenant.queues):
            place = tenant.queues.get(name)
            if place is None or home not in (None, name):
                continue
            done += _ENTRIES // _QUEUES
            for message_id, recorded in histories_in(place, messages):
                events[message_id] += recorded
                done += 1
            if done >= _ENTRIES:
                done = 0
                await self._next_slice(tenant.name)
        for recorded in events.values():
            recorded.sort(key=lambda event: event.at)
        found = [
            HistoryEntry(MessageId(message_id), event)
            for message_id, recorded in events.items()
            for event in recorded
            if queue in (None, event.queue)
        ]
        return columns.next_offset, len(columns.id), found

    @reading
    async def stats(self, tenant: str, queue: str) -> QueueStats:
        self._begin()
        owner = self._core.tenant(tenant)
        state = owner.queue(queue)
        unrouted = 0 if state.cursor is None else await self._unrouted(state)
        reply = queue_stats(state, owner, unrouted, self.clock.now())
        partitions: list[PartitionStats] = []
        last: str | None = None
        while found := partition_stats(state, last, _PARTITIONS):
            partitions += found
            last = found[-1].partition
            if len(found) < _PARTITIONS:
                break
            await self._next_slice(tenant, state)
        await self._committer.settled()
        return replace(reply, partitions=tuple(partitions))

    @reading
    async def counts(self, tenant: str, queues: Sequence[str]) -> tuple[QueueCounts | None, ...]:
        self._begin()
        known = self._core.tenant(tenant).queues
        found = [known.get(name) for name in queues]
        counts = tuple(None if queue is None else queue_counts(queue) for queue in found)
        await self._committer.settled()
        return counts

    async def _unrouted(self, queue: Queue) -> int:
        """The number of log entries after the queue's cursor. It is valid until the next await."""
        count = EntryCount(self._core.log, queue.tenant, queue.cursor or 0)
        while (cursor := queue.cursor) is not None and count.run(cursor):
            await self._next_slice(queue.tenant, queue)
        return 0 if cursor is None else count.total

    async def _each_queue(self, tenant: Tenant) -> AsyncIterator[Queue]:
        """The tenant's queues by name, some per turn; queues deleted meanwhile are skipped."""
        for position, name in enumerate(sorted(tenant.queues), 1):
            queue = tenant.queues.get(name)
            if queue is not None:
                yield queue
            if not position % _QUEUES:
                await self._next_slice(tenant.name)

    def _find(self, tenant: str, message_id: MessageId) -> Logged:
        found = self._core.log.find(tenant, message_id)
        if found is None:
            raise UnknownMessage(f"There is no message {message_id}.", field="id")
        return found


def next_due(queue: Queue) -> int | None:
    """When a claim of the queue may return more just because time has passed, or None.

    Never late, but maybe early: the next due and expiring deliveries are only updated when their
    time has come, so a waiter still wakes once for one that was purged meanwhile.
    """
    if queue.paused:
        return None
    times = [queue.next_due, queue.deadlines.next]
    if queue.partitions is not None:
        # Ordering blocks deliveries, and time unblocks them in two more ways: the blocking one
        # expires while it is delayed, or a silent consumer loses its partitions.
        times.append(queue.next_expiry)
        if queue.partitions.by_name:
            times.extend(queue.partitions.consumers.values())
    return min((time for time in times if time is not None), default=None)
