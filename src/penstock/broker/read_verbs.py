"""The verbs that read: the log, messages, results, history, numbers, explanations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Final

from penstock.broker.bulk import READ_BATCH, Bulk
from penstock.broker.explain import explain_delivery
from penstock.broker.scope import check_count, check_find, check_offset, to_message_id
from penstock.broker.waiting import Waiting, check_wait
from penstock.errors import BadInput
from penstock.filters import Completions, Diagnosis, complete, parse, validate
from penstock.model.delivery import (
    Event,
    FoundMessages,
    LogEntry,
    LogPage,
    MessageDeliveries,
    QueueStats,
    Result,
    Snapshot,
)
from penstock.model.duration import Duration, to_ms
from penstock.model.identity import StoreIdentity
from penstock.model.limits import MAX_OFFSET, MAX_PAGE, check_queue_name
from penstock.model.message import Message, MessageId, Offset
from penstock.model.queue import Ordering, QueueInfo
from penstock.model.reports import HistoryEntry, HistoryPage, Preview, Why
from penstock.model.server_settings import ServerSettings
from penstock.model.states import State
from penstock.storage.turns import SLICE_S

__all__ = ["FIND_SCAN", "Reading"]

#: Messages per page of history, so that a page of a queue with few of them still takes
#: milliseconds.
HISTORY_BATCH: Final = 1_000
_SAMPLE: Final = 10
#: Log entries that a preview scans per turn: about three milliseconds.
_SLICE: Final = 500
_SMALLEST_SLICE: Final = 30
#: Log entries that one search for a key reads: some 60 ms, in slices.
FIND_SCAN: Final = 10_000


class Reading(Bulk):
    """The verbs that change nothing."""

    _waiting: Waiting

    async def read_log(
        self, start: int = 0, *, limit: int = MAX_PAGE, payloads: bool = False
    ) -> LogPage:
        """Committed log entries from an offset on."""
        offset = check_offset("start", start)
        check_count("limit", limit, READ_BATCH)
        return await self._engine.read_log(self.tenant, offset, limit, payloads=payloads)

    async def log_end(self) -> Offset:
        """The offset after the last committed entry."""
        return await self._engine.log_end(self.tenant)

    async def identity(self) -> StoreIdentity:
        """The identity of the store."""
        return await self._engine.identity(self.tenant)

    async def server_settings(self) -> ServerSettings:
        """The settings that clients and jobs depend on."""
        return ServerSettings(
            routing=self._options.routing,
            log_retention_ms=self._limits.log_retention_ms,
            archive=self._options.engine.archive,
        )

    async def log_trimmed(self) -> Offset:
        """The offset after the last entry that retention has removed; 0 if none."""
        return await self._engine.log_trimmed(self.tenant)

    async def log_start(self) -> Offset:
        """The first offset that is still there; the end of the log if it is empty."""
        return await self._engine.log_start(self.tenant)

    async def log_splits(self, start: int, end: int, entries: int) -> tuple[Offset, ...]:
        """Offsets that split a part of the log into pieces of about ``entries`` entries each.

        The first is ``start``, the last the lower of ``end`` and the end of the log.
        """
        first, last = check_offset("start", start), check_offset("end", end)
        if first > last:
            raise BadInput("end is below start.", field="end")
        check_count("entries", entries, MAX_OFFSET)
        return await self._engine.log_splits(self.tenant, first, last, entries)

    async def validate_filter(self, text: str) -> Diagnosis:
        """Whether the text is a filter; if not, the reason and the position. Does not raise."""
        return validate(text)

    async def complete_filter(
        self, text: str, cursor: int, *, headers: Sequence[str] = ()
    ) -> Completions:
        """What may stand at the offset ``cursor`` of a filter, for these known header names."""
        return complete(text, cursor, headers)

    async def preview(self, filter: str, *, start: int = 0) -> Preview:
        """What a queue with this filter would take from the log: a count and a sample."""
        wanted = parse(filter)
        position = check_offset("start", start)
        count = scanned = 0
        sample: dict[MessageId, LogEntry] = {}
        #: A keyed message counts once, by its newest values.
        keyed: dict[MessageId, bool] = {}
        end = await self._engine.log_end(self.tenant)
        time = asyncio.get_running_loop().time
        size = _SLICE
        while position < end:
            await self._engine.turns.take(self.tenant)
            began = time()
            page = await self._engine.read_log(self.tenant, position, size)
            for entry in page.entries:
                scanned += 1
                matches = wanted.matches(entry.message)
                if entry.message.key is not None:
                    keyed[entry.message.id] = matches
                else:
                    count += matches
                if matches and (entry.message.id in sample or len(sample) < _SAMPLE):
                    sample[entry.message.id] = entry
                elif not matches:
                    sample.pop(entry.message.id, None)
            position = page.next_offset
            # Messages with many headers take ten times as long.
            size = size // 2 if time() - began > SLICE_S else 2 * size
            size = max(_SMALLEST_SLICE, min(_SLICE, size))
        return Preview(count + sum(keyed.values()), scanned, tuple(sample.values()))

    async def find(
        self,
        topic: str,
        *,
        id: str | None = None,
        key: str | None = None,
        partition_key: str | None = None,
        start: int = 0,
    ) -> FoundMessages:
        """The messages of a topic with this idempotency id or key."""
        check_find(topic, id, key, partition_key)
        position = check_offset("start", start)
        if id is not None:
            message = await self._engine.find(self.tenant, topic, id, partition_key)
            return FoundMessages(() if message is None else (message,))
        found: dict[MessageId, Message] = {}
        end = await self._engine.log_end(self.tenant)
        left = FIND_SCAN
        while position < end and left:
            if left < FIND_SCAN:
                await self._engine.turns.take(self.tenant)
            page = await self._engine.read_log(self.tenant, position, min(left, _SLICE))
            if not page.entries:
                position = end
                break
            for entry in page.entries:
                if entry.message.key == key and entry.message.topic == topic:
                    found[entry.message.id] = entry.message
            position, left = page.next_offset, left - len(page.entries)
        return FoundMessages(tuple(found.values()), position if position < end else None)

    async def message(self, message_id: int) -> MessageDeliveries:
        """A message, its payload, and its state in every queue."""
        return await self._engine.message(self.tenant, to_message_id(message_id))

    async def result(self, queue: str, message_id: int, *, wait_ms: Duration = 0) -> Result | None:
        """How a delivery ended, waiting up to ``wait_ms`` for it; None if it has not ended."""
        check_queue_name(queue)
        wanted = to_message_id(message_id)
        wait_ms = to_ms(wait_ms)
        check_wait(wait_ms)
        if not wait_ms:
            return await self._engine.result(self.tenant, queue, wanted)
        with self._waiting.for_result(self.tenant, queue) as place:
            return await place.first(
                lambda: self._engine.result(self.tenant, queue, wanted),
                self._clock.now() + wait_ms,
            )

    async def history(self, message_id: int) -> tuple[Event, ...]:
        """Every transition of a message's deliveries that is still on record."""
        return await self._engine.history(self.tenant, to_message_id(message_id))

    async def queue_history(
        self, queue: str, start: int = 0, *, limit: int = MAX_PAGE
    ) -> HistoryPage:
        """The transitions in one queue of the messages at and above an offset.

        A page has up to ``limit`` transitions, more only if one message alone has more. A page
        may be short or empty without being the last: the last one has the end of the log as its
        ``next_offset``.
        """
        check_queue_name(queue)
        position = check_offset("start", start)
        check_count("limit", limit, MAX_PAGE)
        page = await self._engine.read_history(self.tenant, position, HISTORY_BATCH, queue)
        found: list[HistoryEntry] = []
        for message_id, events in groupby(page.entries, key=lambda entry: entry.message_id):
            own = list(events)
            if found and len(found) + len(own) > limit:
                return HistoryPage(tuple(found), Offset(message_id))
            found += own
        return HistoryPage(tuple(found), page.next_offset)

    async def stats(self, queue: str) -> QueueStats:
        """The statistics of a queue."""
        return await self._engine.stats(self.tenant, check_queue_name(queue))

    async def explain(self, queue: str, message_id: int) -> Why:
        """Why a queue does or does not hand out a message."""
        return await self.explain_to(queue, message_id, lambda _: True)

    async def explain_to(
        self, queue: str, message_id: int, may_read: Callable[[Collection[str]], bool]
    ) -> Why:
        """Explain to a caller that may not be allowed to read every message.

        ``may_read`` gets the queues that have the message. If it returns False, the answer
        names the conditions of the filter that are not TRUE without the message's values.
        """
        check_queue_name(queue)
        info = await self._engine.get_queue(self.tenant, queue)
        found = await self._engine.message(self.tenant, to_message_id(message_id))
        ahead = await self._ahead(info, found.message)
        values = may_read({item.queue for item in found.deliveries})
        return explain_delivery(info, found, ahead, self._clock.now(), values=values)

    async def _ahead(self, info: QueueInfo, message: Message) -> list[Snapshot]:
        """The other unsettled deliveries in the message's partition of an ordered queue.

        All that are in flight, and those before it in the other states: the first page of each.
        """
        if info.policy.ordering is not Ordering.PARTITION:
            return []
        partition = message.partition_key or ""
        out: list[Snapshot] = []
        for state in (State.IN_FLIGHT, State.DELAYED, State.AVAILABLE):
            page = await self._engine.peek(self.tenant, info.name, state, None, READ_BATCH)
            out += (
                item
                for item in page.items
                if (item.message.partition_key or "") == partition
                and item.message.id != message.id
                and (state is State.IN_FLIGHT or item.message.id < message.id)
            )
        return out
