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
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from penstock.client import Client, ClientOptions, connect
from penstock.model.queue import Backoff
from penstock.model.states import State
from penstock.testing.checker import check
from penstock.testing.history import (
    Claim,
    Claimed,
    Found,
    Granted,
    HistoryEvent,
    Logged,
    Publish,
    Published,
    Refused,
    Scanned,
    Settled,
    digest,
    read_history,
)
from tests.service.nursery import Nursery
from tests.service.recording import PAGE, QUEUE, Consumer, History, Producer
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
    events = list(read_history(path.read_bytes().splitlines()))
    violations = check(
        events,
        max_attempts={QUEUE: MAX_ATTEMPTS},
        grant_number=lambda receipt: int(receipt.split("-")[2], 16),
    )
    for violation in violations[:20]:
        print(violation)
    print(summary(events))
    assert not violations
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
                group.create_task(Producer(client, history, f"p{n}", seed).run(finished))
                for n, client in enumerate(producers)
            ]
            consuming = [
                group.create_task(Consumer(client, history, f"c{n}", seed).run())
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
        last = Consumer(consumers[0], history, "last", seed)
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


async def scan(client: Client, history: History, *, drained: bool) -> None:
    """Record the whole log and the whole queue; counts equal what is found (Q2)."""
    offset, end = 0, await client.log_end()
    while offset < end:
        page = await client.read_log(offset, limit=PAGE, payloads=True)
        offset = page.next_offset
        for entry in page.entries:
            assert entry.payload is not None
            payload = digest(entry.payload)
            history.record(Logged(scan=1, message=entry.message.id, payload=payload))
    counts: Counter[State] = Counter()
    for state in State:
        cursor: str | None = None
        while True:
            found = await client.peek(QUEUE, state, limit=PAGE, cursor=cursor)
            for item in found.items:
                counts[state] += 1
                history.record(
                    Found(
                        scan=1,
                        queue=QUEUE,
                        message=item.message.id,
                        state=item.state,
                        attempts=item.attempts,
                    )
                )
            if (cursor := found.cursor) is None:
                break
    stats = await client.stats(QUEUE)
    assert {state: getattr(stats, state) for state in State} == {s: counts[s] for s in State}
    history.record(Scanned(scan=1, queue=QUEUE, drained=drained))


def summary(events: list[HistoryEvent]) -> dict[str, int]:
    """How much happened, and how much of what can go wrong did."""
    kinds = Counter(type(event).__name__ for event in events)
    begun = [event for event in events if isinstance(event, Publish)]
    over = [event for event in events if isinstance(event, Published)]
    run_of = {event.call: event.run for event in begun}
    ended = {event.call for event in events if isinstance(event, Published | Refused)}
    verdicts = Counter(event.verdict for event in events if isinstance(event, Settled))
    states = Counter(event.state for event in events if isinstance(event, Settled))
    grants = Counter(event.message for event in events if isinstance(event, Granted))
    return {
        "publishes": len(begun),
        "publishes over a kill": sum(event.run != run_of[event.call] for event in over),
        "publishes lost": sum(event.call not in ended for event in begun),
        "messages": sum(isinstance(event, Logged) for event in events),
        "grants": kinds["Granted"],
        "messages granted again": sum(count > 1 for count in grants.values()),
        "claims lost": kinds[Claim.__name__] - kinds[Claimed.__name__],
        "settlements": verdicts["ok"],
        "settlements stale": verdicts["stale"],
        "settlements lost": kinds["Settle"] - kinds["Settled"],
        "failed": states["failed"],
    }
