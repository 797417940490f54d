"""The steps of a client that change many deliveries at once, or a message in every queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.broker import Broker
from penstock.filters import parse
from penstock.model.message import Message
from penstock.model.queue_events import EVENTS_TOPIC
from penstock.testing.simulation.policies import FIXED, TENANTS
from penstock.testing.simulation.reading_steps import ReadingSteps

__all__ = ["BulkSteps"]

#: Entries, from the beginning of the log, whose messages a step may name.
_NAMED: Final = 100


class BulkSteps(ReadingSteps):
    """Bulk verbs, cancel, and the duties of keepers and external routers."""

    async def route(self, tenant: str, queue: str, limit: int) -> None:
        await self._broker(tenant).route(queue, limit)

    async def assign(self, tenant: str, queue: str, skipped: int, count: int) -> None:
        """Act as an external router: read a range of the log and name the entries that match."""
        broker = self._broker(tenant)
        info = await broker.queue(queue)
        if info.cursor is None:
            return
        page = await broker.read_log(max(0, info.cursor + skipped), limit=count)
        takes = parse(info.policy.filter).matches
        found = [e.message for e in page.entries if e.message.key is not None or takes(e.message)]
        await broker.assign(
            queue,
            filter=info.policy.filter,
            start=max(0, info.cursor + skipped),
            end=page.next_offset,
            offsets=[message.offset for message in found],
        )

    async def replay(self, tenant: str, queue: str, **arguments: Any) -> None:
        await self._broker(tenant).replay(queue, **arguments)

    async def purge(
        self, tenant: str, queue: str, numbers: Sequence[int] | None = None, **arguments: Any
    ) -> None:
        """Purge a state, or only some of the messages."""
        broker = self._broker(tenant)
        ids: list[int] | None = None
        if numbers is not None and (messages := await self._first_messages(broker)):
            ids = [messages[number % len(messages)].id for number in numbers]
        reply = await broker.purge(queue, ids=ids, **arguments)
        if ids is not None and reply.count > len(set(ids)):
            self._world.violations.append(f"a purge of {ids} removed {reply.count} deliveries")

    async def cancel(self, tenant: str, queue: str | None, number: int) -> None:
        """Cancel one of the messages, except in the queues that are never changed."""
        broker = self._broker(tenant)
        messages = await self._first_messages(broker)
        if not messages:
            return
        message = messages[number % len(messages)]
        if queue is None and (message.topic in FIXED or message.topic == EVENTS_TOPIC):
            return
        await broker.cancel(message.id, queue=queue)

    @staticmethod
    async def _first_messages(broker: Broker) -> list[Message]:
        return [entry.message for entry in (await broker.read_log(limit=_NAMED)).entries]

    async def sweep(self, limit: int) -> None:
        await self._broker(TENANTS[0]).sweep(limit)

    async def archived(self, tenant: str, back: int) -> None:
        broker = self._broker(tenant)
        if end := await broker.log_end():
            await broker.archived(max(0, end - 1 - back), await broker.identity())
