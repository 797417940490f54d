"""Servers that stand by for each other, killed and paused (P1-P4, C1, C2, S1-S3).

They share a SlateDB store, on S3 or in a directory.

Producers and consumers know all servers. The one that writes is killed by kill -9, or paused by
SIGSTOP until another has taken over, and resumed. What they saw is one history; in the end
everything is drained, scanned and checked, and so is the store.

PENSTOCK_TEST_FAILOVERS sets how often, PENSTOCK_TEST_FAILOVER_SEED what happens; the seed and the
times of taking over are printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from penstock.client import Client, ClientOptions, connect
from penstock.errors import (
    Busy,
    CommitFailed,
    NotWriter,
    StoreClosed,
    StoreUnavailable,
    Unreachable,
)
from penstock.model.queue import Backoff
from penstock.verify import verify
from tests.judging import judge, scan
from tests.object_stores import s3_endpoint, s3_url
from tests.recording import QUEUE, Consumer, Doors, History, Producer
from tests.service.nursery import Nursery
from tests.service.serving import PENSTOCK, surroundings, unused_port

FAILOVERS = int(os.environ.get("PENSTOCK_TEST_FAILOVERS", "6"))
SERVERS = 3
MAX_ATTEMPTS = 1000
LEASE_MS = 1000
#: On S3 only if a server is given: one in this process is too slow for three watching servers.
STORES = ["file", "s3"] if "PENSTOCK_TEST_S3" in os.environ else ["file"]
#: A paused server accepts connections and does not answer.
ONCE = ClientOptions(retry_ms=0, timeout_ms=1500, connect_timeout_ms=1500)
SOON_S = 60
EXPECTED = (Unreachable, Busy, CommitFailed, NotWriter, StoreClosed, StoreUnavailable)


class Servers:
    """The servers, and which of them writes."""

    def __init__(self, store: str, nurseries: list[Nursery], stack: AsyncExitStack) -> None:
        self.store = store
        self._nurseries = nurseries
        self._stack = stack
        self._ports = [unused_port() for _ in nurseries]
        self.pids = [0] * len(nurseries)

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self._ports[number]}"

    async def start(self, number: int) -> None:
        flags = ("--store", self.store, "--port", str(self._ports[number]))
        self.pids[number] = await self._nurseries[number].start(*flags)
        await self._nurseries[number].ready()

    async def kill(self, number: int) -> None:
        await self._nurseries[number].kill()

    def signal(self, number: int, signal_: signal.Signals) -> None:
        os.kill(self.pids[number], signal_)

    async def stop(self) -> list[int]:
        return [await nursery.stop() for nursery in self._nurseries]

    async def client(self, *numbers: int, options: ClientOptions = ONCE) -> Client:
        urls = [self.url(number) for number in numbers or range(SERVERS)]
        return await self._stack.enter_async_context(connect(urls, options=options))

    async def clients(self) -> list[Client]:
        return [await self.client(number) for number in range(SERVERS)]

    async def writer(self, *, but: int | None = None) -> int:
        """The server that writes, once there is one; ``but`` does not count."""
        async with asyncio.timeout(SOON_S):
            while True:
                for number in range(SERVERS):
                    if number != but and await self._role(number) == "writer":
                        return number
                await asyncio.sleep(0.02)

    async def standing_by(self, number: int) -> None:
        """Returns when the server stands by."""
        async with asyncio.timeout(SOON_S):
            while await self._role(number) != "standby":  # noqa: ASYNC110  (another process)
                await asyncio.sleep(0.02)

    async def _role(self, number: int) -> str | None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[number])
        except OSError:
            return None
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(1):
                text = await reader.read()
        except (OSError, TimeoutError):
            return None
        finally:
            writer.close()
        return "writer" if b'"role":"writer"' in text else "standby"


@pytest.fixture(params=["file"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Servers]:
    """Servers on one empty store, of which the first writes."""
    store = f"slatedb+file://{tmp_path}/store?lease_ms={LEASE_MS}"
    if request.param == "s3":
        store = s3_url(s3_endpoint(), lease_ms=LEASE_MS, commit_interval_ms=100)
    async with AsyncExitStack() as stack:
        folders = [tmp_path / str(number) for number in range(SERVERS)]
        for folder in folders:
            folder.mkdir()
        nurseries = [
            await stack.enter_async_context(await Nursery.open(folder)) for folder in folders
        ]
        opened = Servers(store, nurseries, stack)
        for number in range(SERVERS):
            await opened.start(number)
        yield opened


async def test_a_standby_reads_and_names_the_writer(servers: Servers) -> None:
    first, second, _ = await servers.clients()
    await first.create_queue("q", "topic = 'q'")
    await first.publish("q", b"1")
    async with asyncio.timeout(SOON_S):
        # What a server that stands by answers may lag.
        while not [queue.name for queue in await second.queues()]:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.02)
    async with asyncio.timeout(SOON_S):
        while (await second.stats("q")).available != 1:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.02)
    assert len((await second.peek("q")).items) == 1
    for refused in (second.publish("q", b"2"), second.claim("q"), second.pause("q")):
        with pytest.raises(NotWriter) as error:
            await refused
        assert error.value.writer == servers.url(0)
    await _check_commands(servers)
    # A client that knows all servers finds the writer.
    everywhere = await servers.client(1, 2, 0, options=ClientOptions())
    assert [item.payload for item in await everywhere.claim("q")] == [b"1"]
    assert await servers.stop() == [0, 0, 0]


async def _check_commands(servers: Servers) -> None:
    """``penstock status`` names the writer; a reader needs no server at all."""
    urls = ",".join(servers.url(number) for number in range(SERVERS))
    shown = json.loads(await _penstock("status", "--url", urls, "--json"))
    assert [one["role"] for one in shown] == ["writer", "standby", "standby"]
    assert {one["writer"] for one in shown} == {servers.url(0)}
    reader = f"{servers.store}&reader=true"
    entry = json.loads(await _penstock("tail", "--store", reader, "--payloads", "--json"))
    assert entry["message"]["topic"] == "q"
    assert '"id":0' in await _penstock("peek", "q", "--store", reader, "--json")


async def _penstock(*args: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *PENSTOCK, *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=surroundings()
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_a_paused_writer_does_not_answer_when_it_resumes(servers: Servers) -> None:
    first = await servers.client(0)
    await first.create_queue("q", "topic = 'q'")
    await first.publish("q", b"1")
    await servers.kill(2)  # Two that take over at once may fence each other.
    servers.signal(0, signal.SIGSTOP)
    successor = await servers.client(await servers.writer(but=0))
    (claimed,) = await successor.claim("q")
    await successor.ack(claimed)
    servers.signal(0, signal.SIGCONT)
    for call in (first.claim("q"), first.publish("q", b"2")):
        with pytest.raises(EXPECTED):
            await call
    await servers.standing_by(0)
    assert (await successor.stats("q")).available == 0
    await servers.start(2)
    assert await servers.stop() == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.timeout(120 + 20 * FAILOVERS)
@pytest.mark.parametrize("servers", STORES, indirect=True)
async def test_nothing_that_was_acknowledged_is_lost_or_repeated(
    servers: Servers, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_FAILOVER_SEED", int.from_bytes(os.urandom(4))))
    print(f"PENSTOCK_TEST_FAILOVER_SEED={seed} PENSTOCK_TEST_FAILOVERS={FAILOVERS}")
    path = tmp_path / "history.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        history = History(descriptor, expected=EXPECTED)
        await _run(servers, history, seed)
        client = await servers.client(await servers.writer(), options=ClientOptions())
        await scan(client, history, drained=True)
        report = await verify(client)
    finally:
        os.close(descriptor)
    print(dict(history.failures))
    judge(path, {QUEUE: MAX_ATTEMPTS})
    assert report.ok, "\n".join(map(str, report.violations))
    assert await servers.stop() == [0, 0, 0]


async def _run(servers: Servers, history: History, seed: int) -> None:
    first = await servers.client(0)
    await first.create_queue(
        QUEUE,
        max_attempts=MAX_ATTEMPTS,
        min_lease_ms=10,
        backoff=Backoff(base_ms=5, max_ms=100),
        done_retention_s=0,
        failed_retention_s=0,
    )
    history.next_run()
    finished = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for n in range(3):
            doors = Doors(await servers.clients(), n)
            producer = Producer(doors, history, f"p{n}", seed, own_ids=True, pause_s=0.15)
            group.create_task(producer.run(finished))
            consumer = Consumer(Doors(await servers.clients(), n), history, f"c{n}", seed)
            group.create_task(consumer.run(finished))
        times = await _disturb(servers, Random(seed))
        finished.set()
    print(f"taking over: median {statistics.median(times):.2f} s, worst {max(times):.2f} s")
    last = await servers.client(await servers.writer(), options=ClientOptions())
    await Consumer(Doors([last]), history, "last", seed).drain()


async def _disturb(servers: Servers, random: Random) -> list[float]:
    """Kill or pause the writer again and again; returns how long each take-over took."""
    times = []
    for _ in range(FAILOVERS):
        await asyncio.sleep(random.uniform(0, 1))
        number = await servers.writer()
        paused = random.random() < 0.5
        began = time.monotonic()
        if paused:
            servers.signal(number, signal.SIGSTOP)
        else:
            await servers.kill(number)
        await servers.writer(but=number)
        times.append(time.monotonic() - began)
        if paused:
            servers.signal(number, signal.SIGCONT)
            await servers.standing_by(number)
        else:
            await servers.start(number)
    return times
