"""A crowd at the server: a thousand consumers that wait, and a thousand connections."""

from __future__ import annotations

import asyncio
import re
import resource
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import penstock
from bench.measuring import Figure, memory_figure, middle, scratch
from bench.peers.cost import memory_bytes
from bench.processes import Server, penstock_server
from bench.service import CONNECTIONS, publish_rate
from penstock import Client, ClientOptions

__all__ = ["connections", "waiting_consumers"]

CROWD = 1_000
#: Messages that are timed, on each side.
MESSAGES = 200
MEMORY_MB = 300
_WAIT_MS = 30_000
#: Files beyond the connections: the store, logs, the event loop.
_OTHER_FILES = 256
_POLL_S = 0.05


async def waiting_consumers(rounds: int) -> list[Figure]:
    """From the publish call to one of many consumers that wait in one queue, of a single one."""
    crowd = CROWD
    pairs: list[tuple[float, float]] = []
    memory = 0
    with scratch() as folder, _files(crowd), penstock_server(folder) as server:
        async with penstock.connect(server.url) as q:
            for name in ("alone", "crowded"):
                await q.create_queue(name, f"topic = '{name}'")
            for _ in range(rounds):
                async with _waiting(server, "crowded", crowd) as woken:
                    many = await _wake_ms(q, "crowded", woken)
                    memory = max(memory, memory_bytes([server.process.pid]))
                async with _waiting(server, "alone", 1) as woken:
                    pairs.append((many, await _wake_ms(q, "alone", woken)))
    many, alone = (middle([pair[side] for pair in pairs]) for side in (0, 1))
    return [
        Figure(
            f"publish to consumer, {crowd:,} waiting over HTTP, of one",
            middle([a / b for a, b in pairs]),
            1.5,
            f"{many:.2f} ms",
            f"{alone:.2f} ms",
            at_most=True,
        ),
        memory_figure(f"memory of a server with {crowd:,} waiting consumers", memory, MEMORY_MB),
    ]


@asynccontextmanager
async def _waiting(server: Server, queue: str, count: int) -> AsyncIterator[asyncio.Queue[float]]:
    """Consumers that claim one message at a time; when each came."""
    woken: asyncio.Queue[float] = asyncio.Queue()

    async def consume(q: Client, name: str) -> None:
        while True:
            # With a name of its own: tasks with the same one share their requests.
            for delivery in await q.claim(queue, consumer=name, wait_ms=_WAIT_MS):
                woken.put_nowait(time.perf_counter())
                await q.ack(delivery)

    options = ClientOptions(max_connections=count)
    async with penstock.connect(server.url, options=options) as q:
        consumers = [asyncio.ensure_future(consume(q, f"bench-{n}")) for n in range(count)]
        # The server does not say when.
        while await asyncio.to_thread(_waits, server) < count:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        try:
            yield woken
        finally:
            for consumer in consumers:
                consumer.cancel()
            await asyncio.wait(consumers)


def _waits(server: Server) -> int:
    """Calls that the server lets wait."""
    with urllib.request.urlopen(f"{server.url}/metrics") as reply:
        text = reply.read().decode()
    found = re.search(r"^penstock_waits_active (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


async def _wake_ms(q: Client, queue: str, woken: asyncio.Queue[float]) -> float:
    """The median time from the publish call to the reply of a claim."""
    times = []
    for _ in range(MESSAGES):
        begin = time.perf_counter()
        await q.publish(queue, b"x")
        times.append((await woken.get() - begin) * 1000)
    return middle(times)


async def connections(seconds: float, rounds: int) -> list[Figure]:
    """Single publishes over very many connections, of the number that the server is tuned for."""
    return await asyncio.to_thread(_connections, seconds, rounds, CROWD)


def _connections(seconds: float, rounds: int, crowd: int) -> list[Figure]:
    pairs: list[tuple[float, float]] = []
    memory = 0
    with scratch() as folder, _files(crowd), penstock_server(folder) as server:
        for _ in range(rounds):
            many = publish_rate(server.url, folder, seconds, crowd)
            memory = max(memory, memory_bytes([server.process.pid]))
            pairs.append((many, publish_rate(server.url, folder, seconds, CONNECTIONS)))
    many, few = (middle([pair[side] for pair in pairs]) for side in (0, 1))
    return [
        Figure(
            f"durable publish over {crowd:,} connections, of {CONNECTIONS}",
            middle([a / b for a, b in pairs]),
            0.8,
            f"{many:,.0f} a second",
            f"{few:,.0f}",
        ),
        memory_figure(f"memory of a server after {crowd:,} connections", memory, MEMORY_MB),
    ]


@contextmanager
def _files(crowd: int) -> Iterator[None]:
    """Let this process and its children have as many open files as the crowd needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = crowd + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise RuntimeError(f"{crowd:,} connections need `ulimit -n {wanted}`; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
