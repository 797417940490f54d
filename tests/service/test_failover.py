"""Servers that stand by for each other, killed and paused (P1-P4, C1, C2, S1-S3).

They share a SlateDB store, on S3 or in a directory.

Producers and consumers know all servers. The one that writes is killed by kill -9, paused by
SIGSTOP, or cut off from the object store, until another has taken over; then it comes back. What
callers saw is one history; in the end everything is drained, scanned and checked, and so is the
store.

PENSTOCK_TEST_FAILOVER_STORE sets where the store is, PENSTOCK_TEST_FAILOVERS how often the writer
is struck, PENSTOCK_TEST_FAILOVER_SEED what happens. The seed and the times are printed:

    PENSTOCK_TEST_FAILOVER_STORE=moto PENSTOCK_TEST_FAILOVERS=100 \
        python -m pytest tests/service/test_failover.py -k acknowledged -s
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from asyncio import Event, TaskGroup, create_subprocess_exec, sleep, timeout
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from penstock.client import Client, ClientOptions
from penstock.errors import (
    Busy,
    CommitFailed,
    NotWriter,
    StoreBusy,
    StoreClosed,
    StoreUnavailable,
    Unreachable,
)
from penstock.model.queue import Backoff
from penstock.verify import verify
from tests.judging import judge, scan
from tests.recording import QUEUE, Consumer, Doors, History, Producer
from tests.service.failover import (
    CUTS,
    SERVERS,
    SOON_S,
    Follower,
    Servers,
    TakeOver,
    summary,
)
from tests.service.serving import PENSTOCK, surroundings

#: Where the writer is struck again and again: "file", "moto" or "seaweedfs".
STORE = os.environ.get("PENSTOCK_TEST_FAILOVER_STORE", "seaweedfs")
KINDS = ("kill", "pause", *(() if STORE == "file" else CUTS))
FAILOVERS = int(os.environ.get("PENSTOCK_TEST_FAILOVERS", len(KINDS)))
MAX_ATTEMPTS = 1000
EXPECTED = (
    Unreachable,
    Busy,
    CommitFailed,
    NotWriter,
    StoreBusy,
    StoreClosed,
    StoreUnavailable,
)


@pytest.fixture(params=["file"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Servers]:
    async with Servers.open(request.param, tmp_path) as opened:
        yield opened


async def test_a_standby_reads_and_names_the_writer(servers: Servers) -> None:
    first, second, _ = await servers.clients()
    await first.create_queue("q", "topic = 'q'")
    await first.publish("q", b"1")
    async with timeout(SOON_S):
        # What a server that stands by answers may lag.
        while not [queue.name for queue in await second.queues()]:  # noqa: ASYNC110  (another process)
            await sleep(0.02)
    async with timeout(SOON_S):
        while (await second.stats("q")).available != 1:  # noqa: ASYNC110  (another process)
            await sleep(0.02)
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
    reader = f"{servers.stores[0]}&reader=true"
    entry = json.loads(await _penstock("tail", "--store", reader, "--payloads", "--json"))
    assert entry["message"]["topic"] == "q"
    assert '"id":0' in await _penstock("peek", "q", "--store", reader, "--json")


async def _penstock(*args: str) -> str:
    process = await create_subprocess_exec(
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
@pytest.mark.parametrize("servers", [STORE], indirect=True)
async def test_nothing_that_was_acknowledged_is_lost_or_repeated(
    servers: Servers, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_FAILOVER_SEED", int.from_bytes(os.urandom(4))))
    print(f"PENSTOCK_TEST_FAILOVER_SEED={seed} PENSTOCK_TEST_FAILOVERS={FAILOVERS}")
    path = tmp_path / "history.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        history = History(descriptor, expected=EXPECTED)
        client = await _run(servers, history, seed)
        await scan(client, history, drained=True)
        report = await verify(client)
    finally:
        os.close(descriptor)
    print(dict(history.failures))
    judge(path, {QUEUE: MAX_ATTEMPTS})
    assert report.ok, "\n".join(map(str, report.violations))
    assert await servers.stop() == [0] * SERVERS


async def _run(servers: Servers, history: History, seed: int) -> Client:
    """Returns a client that is at the writer: what others answer to reads may lag."""
    everywhere = [await servers.client(options=ClientOptions()) for _ in range(3)]
    await everywhere[0].create_queue(
        QUEUE,
        max_attempts=MAX_ATTEMPTS,
        min_lease_ms=10,
        backoff=Backoff(base_ms=5, max_ms=100),
        done_retention_s=0,
        failed_retention_s=0,
    )
    history.next_run()
    finished = Event()
    async with TaskGroup() as group:
        # One of each moves on by itself; the others leave that to a client of all servers. Such a
        # producer does not notice a thing. A consumer repeats no call, as its history tells.
        for n, client in enumerate([None, *everywhere[1:]]):
            doors = Doors([client] if client else await servers.clients())
            producer = Producer(doors, history, f"p{n}", seed, own_ids=not client, pause_s=0.15)
            group.create_task(producer.run(finished))
            if client:
                doors = Doors([await servers.client(options=ClientOptions(retry_ms=0))])
            group.create_task(Consumer(doors, history, f"c{n}", seed).run(finished))
        times = await _disturb(servers, Follower(everywhere[0], history), Random(seed))
        finished.set()
    print(summary(times))
    await Consumer(Doors([everywhere[0]]), history, "last", seed).drain()
    return everywhere[0]


async def _disturb(servers: Servers, follower: Follower, random: Random) -> list[TakeOver]:
    """Strike the writer again and again, in every way equally often."""
    kinds = [KINDS[number % len(KINDS)] for number in range(FAILOVERS)]
    random.shuffle(kinds)
    times = []
    for kind in kinds:
        await sleep(random.uniform(0, 1))
        times.append(await TakeOver.measure(servers, follower, kind))
    return times
