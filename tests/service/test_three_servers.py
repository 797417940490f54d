"""Three servers on one database, killed in turn: P1-P4, C1, C2, C4, C5, S1-S3, Q2, R1.

Producers and consumers each stay with one of the servers until it fails them, and go on with the
next. One server at a time is killed by kill -9 and started again. What they saw is one history; in
the end everything is drained, scanned and checked, and so is the store.

PENSTOCK_TEST_SERVERS_KILLS sets how often, PENSTOCK_TEST_SERVERS_SEED what happens; the seed is
printed. The same seed means the same programs, not the same moments.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from penstock.client import Client, ClientOptions, connect
from penstock.errors import Busy, CommitFailed, StoreBusy, UnknownQueue, Unreachable
from penstock.model.queue import Backoff, Ordering
from penstock.verify import verify
from tests.databases import store_url
from tests.judging import check_order, judge, scan, summary
from tests.recording import QUEUE, Consumer, Doors, History, Producer
from tests.service.nursery import Nursery
from tests.service.serving import unused_port

KILLS = int(os.environ.get("PENSTOCK_TEST_SERVERS_KILLS", "12"))
SERVERS = 3
PRODUCERS = tuple(f"p{n}" for n in range(3))
#: The queue that is ordered by partition.
LINES = "lines"
CONSUMERS = (*((QUEUE, f"c{n}") for n in range(4)), *((LINES, f"l{n}") for n in range(2)))
MAX_ATTEMPTS = 6
#: Servers on one machine and one database differ by much less.
SKEW_MS = 50
#: Nothing is repeated by the client: whoever is failed goes to another server.
ONCE = ClientOptions(retry_ms=0)
#: A wait that ends long before was woken.
LONG_MS = 20_000


class Servers:
    """The servers, and how to come by clients of them."""

    def __init__(self, store: str, nurseries: Sequence[Nursery], stack: AsyncExitStack) -> None:
        self._nurseries = nurseries
        self._stack = stack
        self._ports = [unused_port() for _ in nurseries]
        self._flags = [("--store", store, "--port", str(port)) for port in self._ports]

    async def start(self, number: int) -> None:
        """Returns when it answers."""
        await self._nurseries[number].start(*self._flags[number])
        await self._nurseries[number].ready()

    async def kill(self, number: int) -> None:
        await self._nurseries[number].kill()

    async def stop(self) -> list[int]:
        """Stop all of them; their exit codes."""
        return [await nursery.stop() for nursery in self._nurseries]

    async def clients(self) -> list[Client]:
        """One of each server."""
        urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        enter = self._stack.enter_async_context
        return [await enter(connect(url, options=ONCE)) for url in urls]


@pytest.fixture(params=["postgresql", "mysql"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Servers]:
    """Three servers that answer, on one empty store."""
    store = store_url(request.param, "three")
    async with AsyncExitStack() as stack:
        folders = [tmp_path / str(number) for number in range(SERVERS)]
        for folder in folders:
            folder.mkdir()
        nurseries = [
            await stack.enter_async_context(await Nursery.open(folder)) for folder in folders
        ]
        opened = Servers(store, nurseries, stack)
        await asyncio.gather(*(opened.start(number) for number in range(SERVERS)))
        yield opened


async def test_three_servers_are_one_service(servers: Servers) -> None:
    a, b, c = await servers.clients()
    # R1: what one is told the others know at once.
    await a.create_queue("q", "topic = 'q'", max_attempts=2)
    for one in (b, c):
        assert (await one.queue("q")).policy.max_attempts == 2
    first = await b.publish("q", b"1", id="once")
    assert (await c.publish("q", b"1", id="once")).id == first.id
    (held,) = await a.claim("q", limit=10)
    # C5: what happens on one of them wakes who waits at another.
    async with asyncio.timeout(LONG_MS / 2 / 1000), asyncio.TaskGroup() as group:
        waiting = group.create_task(b.claim("q", wait_ms=LONG_MS))
        await c.publish("q", b"2")
    assert [delivery.payload for delivery in waiting.result()] == [b"2"]
    async with asyncio.timeout(LONG_MS / 2 / 1000), asyncio.TaskGroup() as group:
        waiting = group.create_task(c.claim("q", wait_ms=LONG_MS))
        await b.nack(held, delay_ms=0)
    (again,) = waiting.result()
    assert (again.message.id, again.attempts) == (first.id, 2)
    await a.ack(again)
    await b.pause("q")
    await a.publish("q", b"3")
    assert await c.claim("q") == []
    await c.resume("q")
    assert [delivery.payload for delivery in await b.claim("q")] == [b"3"]
    await c.delete_queue("q")
    for one in (a, b):
        with pytest.raises(UnknownQueue):
            await one.claim("q")
    assert await servers.stop() == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * KILLS)
async def test_nothing_that_was_acknowledged_is_lost_or_repeated(
    servers: Servers, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SERVERS_SEED", int.from_bytes(os.urandom(4))))
    print(f"PENSTOCK_TEST_SERVERS_SEED={seed} PENSTOCK_TEST_SERVERS_KILLS={KILLS}")
    path = tmp_path / "history.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        expected = (Unreachable, Busy, StoreBusy, CommitFailed)
        history = History(descriptor, skew_ms=SKEW_MS, expected=expected)
        await _run(servers, history, seed)
        client = (await servers.clients())[1]
        partitions = await scan(client, history, drained=True, queues=(QUEUE, LINES))
        report = await verify(client)
    finally:
        os.close(descriptor)
    print(dict(history.failures))
    attempts = dict.fromkeys((QUEUE, LINES), MAX_ATTEMPTS)
    events = judge(path, attempts, ordered=(LINES,), skew_ms=SKEW_MS)
    check_order(events, LINES, {name: partitions[name] for name in PRODUCERS})
    assert report.ok, "\n".join(map(str, report.violations))
    assert await servers.stop() == [0, 0, 0]
    if KILLS >= 12:
        # A history in which nothing went wrong would prove nothing.
        assert history.failures["Unreachable"]
        lost = summary(events)
        assert lost["claims lost"] + lost["publishes lost"] + lost["settlements lost"]


async def _run(servers: Servers, history: History, seed: int) -> None:
    clients = await servers.clients()
    await _create_queues(clients)
    history.next_run()
    finished = asyncio.Event()
    producers = [
        Producer(Doors(await servers.clients(), n), history, name, seed, own_ids=True, pause_s=0.15)
        for n, name in enumerate(PRODUCERS)
    ]
    consumers = [
        Consumer(Doors(await servers.clients(), n), history, name, seed, queue=queue)
        for n, (queue, name) in enumerate(CONSUMERS)
    ]
    async with asyncio.TaskGroup() as group:
        for producer in producers:
            group.create_task(producer.run(finished))
        for consumer in consumers:
            group.create_task(consumer.run(finished))
        await _disturb(servers, Random(seed))
        # Nobody is cancelled: a claim that is still under way would be a heartbeat after leaving.
        finished.set()
    for queue, name in CONSUMERS:
        if queue == LINES:
            await clients[0].leave(LINES, name)
    for queue in (QUEUE, LINES):
        await Consumer(Doors(clients), history, "last", seed, queue=queue).drain()


async def _disturb(servers: Servers, random: Random) -> None:
    """Kill one after the other; two of the three are always there."""
    for _ in range(KILLS):
        await asyncio.sleep(random.uniform(0, random.choice((0.1, 0.5, 1.0))))
        number = random.randrange(SERVERS)
        await servers.kill(number)
        await asyncio.sleep(random.choice((0, 0.2)))
        await servers.start(number)


async def _create_queues(clients: list[Client]) -> None:
    queues = ((QUEUE, Ordering.NONE), (LINES, Ordering.PARTITION))
    for client, (queue, ordering) in zip(clients, queues, strict=False):
        await client.create_queue(
            queue,
            max_attempts=MAX_ATTEMPTS,
            min_lease_ms=10,
            backoff=Backoff(base_ms=5, max_ms=100),
            # Nothing leaves: the history is checked against everything that ever happened.
            done_retention_s=0,
            failed_retention_s=0,
            ordering=ordering,
        )
