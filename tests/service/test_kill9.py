"""kill -9 of a server under load, thirty times, on one store (P1-P4, C1, C2, S1-S3, C5, Q2).

Eight producers and eight consumers work against one address while the server behind it is
killed at random moments, some of them while it still opens its store, and started again. What
they saw is one history; in the end everything is drained, scanned and checked, and so is the
store.

PENSTOCK_TEST_SERVER_KILLS sets how often, PENSTOCK_TEST_SERVER_SEED what happens; the seed is
printed. The same seed means the same programs, not the same moments.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from penstock.client import Client, ClientOptions, connect
from penstock.model.queue import Backoff
from tests.judging import judge, scan, summary
from tests.recording import QUEUE, Consumer, Doors, History, Producer
from tests.service.nursery import Nursery
from tests.service.serving import Serve, unused_port

KILLS = int(os.environ.get("PENSTOCK_TEST_SERVER_KILLS", "30"))
CLIENTS = 8
MAX_ATTEMPTS = 6
#: Impatient, so that a server that is back is found soon.
PATIENT = ClientOptions(backoff=Backoff(base_ms=20, max_ms=200), retry_ms=120_000, retries=10_000)
ONCE = ClientOptions(retry_ms=0)


@pytest.mark.slow
@pytest.mark.timeout(120 + 6 * KILLS)
async def test_nothing_that_was_acknowledged_is_lost_or_repeated(
    serve: Serve, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SERVER_SEED", int.from_bytes(os.urandom(4))))
    print(f"PENSTOCK_TEST_SERVER_SEED={seed} PENSTOCK_TEST_SERVER_KILLS={KILLS}")
    path = tmp_path / "history.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        async with await Nursery.open(tmp_path) as nursery:
            await _run(nursery, History(descriptor), serve.store, seed)
    finally:
        os.close(descriptor)
    events = judge(path, {QUEUE: MAX_ATTEMPTS})
    if KILLS >= 30:
        # A history in which nothing went wrong would prove nothing.
        assert min(summary(events).values()) > 0
    report = serve.run("verify", "--store", serve.store)
    assert report.returncode == 0, report.stdout + report.stderr


async def _run(nursery: Nursery, history: History, store: str, seed: int) -> None:
    port = unused_port()
    url = f"http://127.0.0.1:{port}"
    flags = ("--store", store, "--port", str(port))
    random = Random(seed)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        producers = [await enter(connect(url, options=PATIENT)) for _ in range(CLIENTS)]
        consumers = [await enter(connect(url, options=ONCE)) for _ in range(CLIENTS)]
        await nursery.start(*flags)
        await nursery.ready()
        await _create_queue(producers[0])
        finished = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            publishing = [
                group.create_task(Producer(Doors([client]), history, f"p{n}", seed).run(finished))
                for n, client in enumerate(producers)
            ]
            consuming = [
                group.create_task(Consumer(Doors([client]), history, f"c{n}", seed).run())
                for n, client in enumerate(consumers)
            ]
            for kill in range(KILLS):
                history.next_run()
                await asyncio.sleep(_lifetime_s(random))
                await nursery.kill()
                await history.end_run()
                await nursery.start(*flags)
                # Some are killed again while they open the store, or a moment later.
                if random.random() < 0.8 or kill == KILLS - 1:
                    await nursery.ready()
            history.next_run()
            finished.set()
            await asyncio.wait(publishing)
            for task in consuming:
                task.cancel()
            await asyncio.wait(consuming)
            # What they had asked for a moment ago may have been granted to nobody.
            await history.end_run()
            history.next_run()
        last = Consumer(Doors([consumers[0]]), history, "last", seed)
        await last.drain()
        await scan(producers[0], history, drained=True)
    assert await nursery.stop() == 0


def _lifetime_s(random: Random) -> float:
    return random.uniform(0, random.choice((0.1, 1.0, 2.0)))


async def _create_queue(client: Client) -> None:
    await client.create_queue(
        QUEUE,
        max_attempts=MAX_ATTEMPTS,
        min_lease_ms=10,
        backoff=Backoff(base_ms=5, max_ms=100),
        # Nothing leaves: the history is checked against everything that ever happened.
        done_retention_s=0,
        failed_retention_s=0,
        # Small buckets, so that a few messages are many records.
        bucket_size=1,
    )
