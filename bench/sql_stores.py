"""SQL stores to be measured: private servers with durable commits, and clients.

The servers are those of the tests, with fsync on and PostgreSQL's synchronous_commit at its
default, on. Their folders are in the directory for temporary files (TMPDIR).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import cycle
from typing import Final

from bench.measuring import Figure, Work, middle, per_second
from bench.messages import body, check
from penstock import Ack, NewMessage
from penstock.model.delivery import Delivery
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import Engine
from penstock.storage.engines import open_engine
from penstock.storage.sql.migrations import migrate
from tests.databases import MariaDB, PostgreSQL, Server

__all__ = [
    "BATCH",
    "DIALECTS",
    "QUEUE",
    "TENANT",
    "Client",
    "ack",
    "database_server",
    "figure",
    "make_queue",
    "store",
    "supply",
    "together",
]

BATCH: Final = 100
TENANT: Final = "bench"
#: The name of the queue and of its topic.
QUEUE: Final = "work"
#: The measured databases, by the scheme of their URL.
DIALECTS: Final = {"postgresql": "PostgreSQL", "mysql": "MariaDB"}


@contextmanager
def database_server(dialect: str) -> Iterator[Server]:
    """A server that makes every commit durable."""
    server: Server = (PostgreSQL if dialect == "postgresql" else MariaDB)(fsync=True)
    try:
        server.start()
        yield server
    finally:
        server.close()


@asynccontextmanager
async def store(server: Server, name: str) -> AsyncIterator[str]:
    """The URL of a new store, which is dropped at the end."""
    await asyncio.to_thread(server.create_database, name)
    try:
        url = server.url(name)
        await migrate(url)
        async with _opened(url) as engine:
            await make_queue(engine, QUEUE, f"topic = '{QUEUE}'")
        yield url
    finally:
        await asyncio.to_thread(server.drop_database, name)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Engine]:
    engine = await open_engine(url)
    try:
        yield engine
    finally:
        await engine.close()


async def make_queue(engine: Engine, name: str, condition: str) -> None:
    await engine.put_queue(TENANT, name, QueuePolicy(filter=condition), Start())


def supply() -> cycle[bytes]:
    """Payloads of 1 KiB that can be checked."""
    return cycle(body(number) for number in range(1000))


def together(callers: Sequence[Work], times: int) -> Work:
    """Run all callers concurrently, each ``times`` times."""

    async def some(caller: Work) -> int:
        return sum([await caller() for _ in range(times)])

    async def run() -> int:
        return sum(await asyncio.gather(*map(some, callers)))

    return run


def figure(name: str, target: float, pairs: Sequence[tuple[float, float]]) -> Figure:
    """A figure from rates measured in turns: ours and the reference."""
    ours, reference = (middle(list(rates)) for rates in zip(*pairs, strict=True))
    ratio = middle([a / b for a, b in pairs])
    return Figure(name, ratio, target, per_second(ours), per_second(reference))


async def ack(engine: Engine, queue: str, deliveries: Sequence[Delivery]) -> int:
    """Ack all of them; returns how many."""
    if deliveries:
        reply = await engine.settle(TENANT, queue, [Ack(one.receipt) for one in deliveries])
        if not all(outcome.ok for outcome in reply.outcomes):
            raise AssertionError("an ack was refused")
    return len(deliveries)


class Client:
    """Publishes a batch, claims one, checks all its messages, and acks it."""

    def __init__(self, engine: Engine, number: int, batch: int = BATCH) -> None:
        self._engine = engine
        self._name = f"client-{number}"
        self._batch = batch
        self._supply = supply()

    async def publish(self) -> int:
        messages = [NewMessage(next(self._supply)) for _ in range(self._batch)]
        await self._engine.publish(TENANT, QUEUE, messages)
        return self._batch

    async def consume(self) -> int:
        """Claim, check and ack; returns how many."""
        deliveries = await self._engine.claim(TENANT, QUEUE, self._name, self._batch, None)
        for delivery in deliveries:
            check(delivery.payload)
        return await ack(self._engine, QUEUE, deliveries)

    async def cycle(self) -> int:
        """Publish and consume; returns how many were acked."""
        await self.publish()
        return await self.consume()
