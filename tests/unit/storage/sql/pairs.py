"""Two servers on one store, which go by a clock that only tests move, and short forms of verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.model.delivery import Ack, Delivery, Nack, Reject, Release
from penstock.model.limits import Limits
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from tests.databases import server, store_url

__all__ = [
    "LATEST",
    "NAME",
    "ROUNDS",
    "TENANT",
    "Pair",
    "claim",
    "opened",
    "opened_again",
    "opened_pair",
    "payloads",
    "publish",
    "settled",
]

TENANT = "t"
#: Of the database.
NAME = "servers"
LATEST = Start()
#: How often what may or may not collide is tried.
ROUNDS = 10


class Pair:
    """The servers, and their clock."""

    def __init__(self, a: Engine, b: Engine, clock: FakeClock) -> None:
        self.a = a
        self.b = b
        self.clock = clock


@asynccontextmanager
async def opened(
    dialect: str, *clocks: FakeClock, limits: Limits | None = None
) -> AsyncIterator[list[Engine]]:
    """A server for each of the clocks, on one empty store."""
    url = store_url(dialect, NAME)
    async with AsyncExitStack() as stack:
        servers = []
        for clock in clocks:
            options = EngineOptions(clock=clock, limits=limits or Limits())
            servers.append(await open_engine(url, options))
            stack.push_async_callback(servers[-1].close)
        yield servers


@asynccontextmanager
async def opened_again(dialect: str, clock: FakeClock) -> AsyncIterator[Engine]:
    """One more server on the same store."""
    engine = await open_engine(server(dialect).url(NAME), EngineOptions(clock=clock))
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def opened_pair(dialect: str) -> AsyncIterator[Pair]:
    """Two servers, a queue ``old`` for the topic of that name, and a message ``0`` in it."""
    clock = FakeClock()
    async with opened(dialect, clock, clock) as (a, b):
        # Both have seen the tenant, so what they know of it can be out of date.
        await a.put_queue(TENANT, "old", QueuePolicy(filter="topic = 'old'"), LATEST)
        await b.publish(TENANT, "old", [NewMessage(b"0")])
        yield Pair(a, b, clock)


async def publish(engine: Engine, topic: str, *payloads: bytes) -> list[int]:
    reply = await engine.publish(TENANT, topic, [NewMessage(payload) for payload in payloads])
    return [int(item.id) for item in reply.messages]


async def claim(
    engine: Engine, queue: str, limit: int = 100, *, lease_ms: int = 60_000, consumer: str = "c"
) -> list[Delivery]:
    return await engine.claim(TENANT, queue, consumer, limit, lease_ms)


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.payload for delivery in deliveries]


async def settled(engine: Engine, queue: str, *items: Ack | Nack | Reject | Release) -> list[str]:
    reply = await engine.settle(TENANT, queue, items)
    return [str(outcome.verdict) for outcome in reply.outcomes]
