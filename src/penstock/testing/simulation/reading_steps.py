"""The steps of a client that let time pass or only read."""

from __future__ import annotations

import asyncio

from penstock.broker import Broker
from penstock.testing.simulation.world import World

__all__ = ["ReadingSteps"]


class ReadingSteps:
    """A client of one of the servers of a simulated world."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number

    def _broker(self, tenant: str) -> Broker:
        return self._world.broker_of(self._number).for_tenant(tenant)

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def sleep_until(self, ms: int) -> None:
        """Sleep until this many milliseconds after the beginning of the run."""
        left_ms = self._world.began_at + ms - self._world.clock.now()
        await asyncio.sleep(max(0, left_ms) / 1000)

    async def peek(self, tenant: str, queue: str, state: str, number: int) -> None:
        """Read a queue page by page, with other verbs between the pages."""
        cursor: str | None = None
        while True:
            page = await self._broker(tenant).peek(
                queue, state, limit=1 + number % 3, cursor=cursor, payloads=True
            )
            if (cursor := page.cursor) is None:
                return

    async def find_by_id(self, tenant: str, topic: str, id: str, partition_key: str | None) -> None:
        broker = self._broker(tenant)
        names = self._world.names
        self._world.violations += await names.find_id(broker, topic, partition_key, id)

    async def find_by_key(self, tenant: str, topic: str, key: str) -> None:
        broker = self._broker(tenant)
        self._world.violations += await self._world.names.find_key(broker, topic, key)

    async def list_by_labels(self, tenant: str, labels: dict[str, str]) -> None:
        listing = self._world.declared.list_by_labels(self._broker(tenant), labels)
        self._world.violations += await listing

    async def stats(self, tenant: str, queue: str, state: str, number: int) -> None:
        await self._broker(tenant).stats(queue)

    async def read(self, tenant: str, queue: str, state: str, number: int) -> None:
        broker = self._broker(tenant)
        message = number % (await broker.log_end() + 1)
        await broker.message(message)
        await broker.history(message)
        await broker.result(queue, message)
