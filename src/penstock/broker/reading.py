"""The verbs that read: the log, messages, results, history, numbers, explanations."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.broker.explain import Why, explain_delivery
from penstock.broker.scope import Scope, check_count, to_message_id
from penstock.errors import BadInput
from penstock.filters import parse
from penstock.model.delivery import (
    Event,
    LogEntry,
    LogPage,
    MessageDeliveries,
    QueueStats,
    Result,
    Snapshot,
)
from penstock.model.limits import MAX_PAGE, check_queue_name
from penstock.model.message import Offset
from penstock.model.queue import Ordering, QueueInfo
from penstock.model.states import State

__all__ = ["Preview", "Reading"]

#: Log entries that one read takes at the most.
READ_BATCH: Final = 10_000
_SAMPLE: Final = 10


class Preview(Struct, frozen=True):
    """What a filter would take from the log."""

    count: int
    scanned: int
    sample: tuple[LogEntry, ...]


class Reading(Scope):
    """The verbs that change nothing."""

    async def read_log(
        self, start: int = 0, *, limit: int = MAX_PAGE, payloads: bool = False
    ) -> LogPage:
        """Committed log entries from an offset on."""
        if type(start) is not int or start < 0:
            raise BadInput(f"start is {start!r}; it is an offset.", field="start")
        check_count("limit", limit, READ_BATCH)
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
            page = await self._engine.read_log(self.tenant, position, READ_BATCH)
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
        return await self._engine.message(self.tenant, to_message_id(message_id))

    async def result(self, queue: str, message_id: int) -> Result | None:
        """What the ack of a delivery left behind."""
        check_queue_name(queue)
        return await self._engine.result(self.tenant, queue, to_message_id(message_id))

    async def history(self, message_id: int) -> tuple[Event, ...]:
        """Every transition of a message's deliveries that is still on record."""
        return await self._engine.history(self.tenant, to_message_id(message_id))

    async def stats(self, queue: str) -> QueueStats:
        """A queue in numbers."""
        return await self._engine.stats(self.tenant, check_queue_name(queue))

    async def explain(self, queue: str, message_id: int) -> Why:
        """Why a message is, or is not, handed out by a queue."""
        check_queue_name(queue)
        info = await self._engine.get_queue(self.tenant, queue)
        found = await self._engine.message(self.tenant, to_message_id(message_id))
        snapshot = next((item for item in found.deliveries if item.queue == queue), None)
        stats = await self._engine.stats(self.tenant, queue)
        ahead = await self._ahead(info, snapshot)
        now = self._clock.now()
        return explain_delivery(info, found.message, snapshot, stats, ahead, now)

    async def _ahead(self, info: QueueInfo, snapshot: Snapshot | None) -> Snapshot | None:
        """What stands before a delivery in its partition of an ordered queue."""
        if snapshot is None or info.policy.ordering is not Ordering.PARTITION:
            return None
        message = snapshot.message
        candidates: list[Snapshot] = []
        for state in (State.IN_FLIGHT, State.DELAYED, State.AVAILABLE):
            candidates += await self._first_before(
                info.name, state, message.id, message.partition_key
            )
        return min(candidates, key=lambda item: item.message.id, default=None)

    async def _first_before(
        self, queue: str, state: State, message_id: int, partition: str | None
    ) -> list[Snapshot]:
        quoted = (partition or "").replace("'", "''")
        same = f"partition_key = '{quoted}'"
        where = parse(same if partition else f"({same}) OR partition_key IS NULL")
        page = await self._engine.peek(self.tenant, queue, state, where, MAX_PAGE)
        return [item for item in page.items if item.message.id < message_id]
