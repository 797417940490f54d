"""The verbs that change nothing: the log, messages, deliveries, counts, when to look again.

They report what is stored and wait for it to be committed, so that no reply can be taken
back by a crash. What a page shows comes from ``browse``, the numbers from ``stats``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.errors import UnknownMessage
from penstock.filters import Filter
from penstock.model.columns import LogColumns
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
from penstock.model.message import MessageId, Offset
from penstock.model.message import Published as Stored
from penstock.model.reports import HistoryEntry, HistoryPage
from penstock.model.states import State
from penstock.storage.keyvalue.browse import MAX_SCAN, SLICE_BYTES, peek, snapshots_of
from penstock.storage.keyvalue.claim import read_payload
from penstock.storage.keyvalue.columns import read_columns, read_payloads
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.guarded import Guarded, reading
from penstock.storage.keyvalue.histories import Published, histories_in, history_in
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import Logged
from penstock.storage.keyvalue.stats import partition_stats, queue_stats

__all__ = ["ReadingVerbs", "next_due"]

#: Partitions that stats look at in one go; each may be a seek.
_PARTITIONS: Final = 100


class ReadingVerbs(Guarded):
    """The verbs of the contract that only read."""

    _core: Core

    @reading
    async def tenants(self) -> tuple[str, ...]:
        self._begin()
        # Naming a tenant makes it exist in memory; that alone is nothing to list.
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
        # Nothing waits for a commit here: a time that a crash takes back was only early.
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
            # By its name each time: it may have been deleted, and made again, meanwhile.
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
        next_offset = start
        while True:
            room = SLICE_BYTES
            for message, _ in self._core.log.read(tenant, next_offset, staged=False):
                if len(entries) == limit or room < 0:
                    break
                payload = None
                if payloads:
                    payload = read_payload(self._core.stage.get, message)
                    room -= message.size
                entries.append(LogEntry(message, payload))
                next_offset = Offset(message.offset + 1)
            else:
                end = Offset(self._core.log.tenant(tenant).committed_end)
                return LogPage(tuple(entries), max(next_offset, end))
            if len(entries) == limit:
                return LogPage(tuple(entries), next_offset)
            await self._next_slice(tenant)

    @reading
    async def read_log_columns(self, tenant: str, start: Offset, limit: int) -> LogColumns:
        self._begin()
        return read_columns(self._core.log, tenant, start, limit)

    @reading
    async def read_payloads(
        self, tenant: str, offsets: Sequence[int], sizes: Sequence[int], checksums: Sequence[int]
    ) -> Sequence[bytes | memoryview] | None:
        self._begin()
        del sizes  # A payload is a value here.
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
        found = [
            snapshot for queue in owner.queues.values() for snapshot in snapshots_of(queue, message)
        ]
        deliveries = tuple(sorted(found, key=lambda snapshot: snapshot.queue))
        await self._committer.settled()
        return MessageDeliveries(message, payload, deliveries)

    @reading
    async def result(self, tenant: str, queue: str, message_id: MessageId) -> Result | None:
        self._begin()
        state = self._core.tenant(tenant).queue(queue)
        message, _ = self._find(tenant, message_id)
        done = state.done.find(message.priority, message_id)
        value = state.result(message_id)
        await self._committer.settled()
        return None if done is None else Result(message_id, value, done.at)

    @reading
    async def history(self, tenant: str, message_id: MessageId) -> tuple[Event, ...]:
        self._begin()
        owner = self._core.tenant(tenant)
        message, _ = self._find(tenant, message_id)
        events = [
            event
            for name in sorted(owner.queues)
            for event in history_in(owner.queues[name], message)
        ]
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
        columns = read_columns(self._core.log, tenant, start, limit)
        messages = Published(columns)
        events: dict[int, list[Event]] = {message_id: [] for message_id in messages.ids}
        home = None if queue is None else queue.removesuffix(DLQ_SUFFIX)
        for name in sorted(owner.queues):
            place = owner.queues.get(name)
            if place is None or home not in (None, name):
                continue
            for message_id, life in histories_in(place, messages):
                events[message_id] += life
            await self._next_slice(tenant)
        for life in events.values():
            life.sort(key=lambda event: event.at)
        await self._committer.settled()
        found = (
            HistoryEntry(MessageId(message_id), event)
            for message_id, life in events.items()
            for event in life
            if queue in (None, event.queue)
        )
        return HistoryPage(tuple(found), columns.next_offset)

    @reading
    async def stats(self, tenant: str, queue: str) -> QueueStats:
        now = self._begin()
        owner = self._core.tenant(tenant)
        state = owner.queue(queue)
        reply = queue_stats(state, owner, self._core.log, now)
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

    def _find(self, tenant: str, message_id: MessageId) -> Logged:
        found = self._core.log.find(tenant, message_id)
        if found is None:
            raise UnknownMessage(f"There is no message {message_id}.", field="id")
        return found


def next_due(queue: Queue) -> int | None:
    """When time alone next makes a claim of the queue give more; early at times, never late.

    Early because the next due and the next expiring delivery are looked up again only when
    their time has come: one that was purged meanwhile is still waited for, once.
    """
    if queue.paused:
        return None
    times = [queue.next_due, queue.deadlines.next]
    if queue.partitions is not None:
        # Order holds deliveries back, and time lets them go in two more ways: the one at the
        # head expires while it is delayed, or a consumer falls silent and its share is free.
        times.append(queue.next_expiry)
        if queue.partitions.by_name:
            times.extend(queue.partitions.consumers.values())
    return min((time for time in times if time is not None), default=None)
