"""Penstock over HTTP: with plain calls, with ``consume()`` or ``consume_batches()``, on PostgreSQL.

Producers share one client, and so do consumers: the client combines their calls.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import penstock
from bench.peers.database import Database
from bench.peers.peer import LEASE_S, QUEUE, WAIT_S, Consumer, ProcessPeer, Producer
from bench.peers.probe import Phase, Probe
from bench.peers.workloads import Workload
from penstock import Ack, NewMessage
from penstock.storage.sql.migrations import migrate
from penstock.version import VERSION

__all__ = ["Penstock", "PenstockConsume", "PenstockPostgreSQL"]

#: Deliveries that ``consume()`` holds, as a multiple of what the program works on.
_IN_FLIGHT: Final = 4
#: Tasks that take batches: one works while the acks of another are under way.
_BATCH_TASKS: Final = 3
#: How often a consumption checks whether the run has ended.
_CHECK_S: Final = 0.05


class _Producer(Producer):
    def __init__(self, client: penstock.Client) -> None:
        self._client = client

    async def publish(self, body: bytes) -> None:
        await self._client.publish(QUEUE, body)

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        await self._client.publish_batch(QUEUE, [NewMessage(body) for body in bodies])

    async def close(self) -> None:
        await self._client.close()


class _Consumer(Consumer):
    """A claim and a settle call per batch, one after the other."""

    def __init__(self, client: penstock.Client) -> None:
        self._client = client

    async def receive(self, limit: int) -> list[tuple[bytes, Any]]:
        deliveries = await self._client.claim(QUEUE, limit=limit, wait_ms=round(WAIT_S * 1000))
        return [(delivery.payload, delivery) for delivery in deliveries]

    async def ack(self, tokens: Sequence[Any]) -> None:
        if len(tokens) == 1:
            await self._client.ack(tokens[0])
        else:
            await self._client.settle(QUEUE, [Ack(delivery.receipt) for delivery in tokens])

    async def close(self) -> None:
        await self._client.close()


class _Consumption(_Consumer):
    """``consume()`` with as many tasks as the workload has messages in work at a time."""

    def __init__(self, client: penstock.Client, tasks: int) -> None:
        super().__init__(client)
        self._tasks = tasks

    async def run(self, probe: Probe, limit: int) -> None:
        stop = asyncio.Event()
        works = [asyncio.ensure_future(work) for work in self._works(probe, limit, stop)]
        while probe.phase is not Phase.END and not any(one.done() for one in works):
            await asyncio.wait(works, timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.gather(*works)

    def _works(
        self, probe: Probe, limit: int, stop: asyncio.Event
    ) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks, which end when ``stop`` is set."""
        del limit
        leases = self._client.consume(QUEUE, max_in_flight=_IN_FLIGHT * self._tasks, stop=stop)

        async def work() -> None:
            async for lease in leases:
                number = probe.receive(lease.payload)
                await lease.ack()
                probe.settle([number])

        return [work() for _ in range(self._tasks)]


class _BatchConsumption(_Consumption):
    """``consume_batches()``, with some tasks that each wait for the acks of their batch."""

    def _works(
        self, probe: Probe, limit: int, stop: asyncio.Event
    ) -> Sequence[Coroutine[Any, Any, None]]:
        batches = self._client.consume_batches(
            QUEUE,
            size=limit,
            max_in_flight=_IN_FLIGHT * limit,
            stop=stop,
        )

        async def work() -> None:
            async for batch in batches:
                numbers = [probe.receive(delivery.payload) for delivery in batch.deliveries]
                await batch.ack()
                probe.settle(numbers)

        return [work() for _ in range(self._tasks)]


class Penstock(ProcessPeer):
    name = "penstock"
    durability = "fsync before the reply of every publish and settle"
    client = "penstock.connect, plain calls"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"penstock": VERSION}

    @property
    def store(self) -> str:
        """The URL of the server's store."""
        return f"rocksdb://{self.folder}/store"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "penstock", "serve"),
            *("--store", self.store, "--port", str(self.port)),
        ]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def declare(self) -> None:
        async with penstock.connect(self.address) as client:
            await client.ensure_queue(QUEUE, f"topic = '{QUEUE}'", lease_ms=LEASE_S * 1000)

    @classmethod
    async def producers(cls, address: str, workload: Workload) -> Sequence[Producer]:
        client = penstock.connect(address)
        return [_Producer(client) for _ in range(workload.producers)]

    @classmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        client = penstock.connect(address)
        return [_Consumer(client) for _ in range(workload.consumers)]


class PenstockConsume(Penstock):
    name = "penstock-consume"
    client = "penstock.connect, consume() and consume_batches()"
    #: Those with a consumer; the others are the same as with plain calls.
    workloads: ClassVar = ("W4", "W5", "W6", "W7", "W8")

    @classmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        client = penstock.connect(address)
        if workload.limit > 1 and not workload.is_paced:
            return [_BatchConsumption(client, _BATCH_TASKS)]
        return [_Consumption(client, workload.consumers * workload.limit)]


class PenstockPostgreSQL(Penstock):
    name = "penstock-postgresql"
    durability = "`synchronous_commit`: fdatasync of PostgreSQL's log before a commit returns"
    client = "penstock.connect, plain calls"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._database = Database()

    @classmethod
    def versions(cls) -> dict[str, str]:
        return super().versions() | {"postgresql": Database.version()}

    @property
    def store(self) -> str:
        return self._database.url

    def start(self) -> None:
        if self._database.start():
            asyncio.run(migrate(self.store))
        super().start()

    def stop(self) -> None:
        super().stop()
        self._database.stop()

    def kill(self) -> None:
        super().kill()
        self._database.kill()

    def server_roots(self) -> list[int]:
        return super().server_roots() + self._database.roots()
