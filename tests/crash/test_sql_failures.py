"""The database fails under the SQL engine: P1-P4, C1, C2, C4, C5, S1-S3, Q2.

Two brokers share one store, and an operator is at work, while every connection to the database is
ended twenty times, and the database is restarted twenty times, by turns cleanly and by kill -9.
Producers repeat what failed under the same ids. Nothing but typed errors that say "try again" may
come out. In the end everything is drained, scanned and checked, and so is the store.

PENSTOCK_TEST_DATABASE_KILLS sets how often each, PENSTOCK_TEST_DATABASE_SEED what happens; the
seed is printed. The same seed means the same programs, not the same moments.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock import Broker
from penstock.errors import CommitFailed, QueueExists, StoreBusy, UnknownQueue
from penstock.model.queue import Backoff, Ordering, TopicPolicy
from penstock.model.states import State
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.migrations import migrate
from penstock.verify import verify
from tests.databases import MariaDB, PostgreSQL, Server
from tests.judging import check_order, judge, scan
from tests.recording import QUEUE, Consumer, Doors, History, Producer

KILLS = int(os.environ.get("PENSTOCK_TEST_DATABASE_KILLS", "12"))
MAX_ATTEMPTS = 6
#: The queue that is ordered by partition.
LINES = "lines"
#: One that comes and goes, and gets nothing.
SIDE = "side"
#: Two brokers on one machine and one database differ by much less.
SKEW_MS = 50
#: Longer than the engine tries by itself.
OUTAGE_S = 1.6

#: What an operator does meanwhile.
VERBS: tuple[Callable[[Broker], Awaitable[object]], ...] = (
    lambda q: q.create_queue(SIDE, f"topic = '{SIDE}'", start="earliest"),
    lambda q: q.put_queue(SIDE, f"topic = '{SIDE}'", start="earliest"),
    lambda q: q.update_queue(SIDE, max_attempts=3),
    lambda q: q.delete_queue(SIDE),
    lambda q: q.pause(SIDE),
    lambda q: q.resume(SIDE),
    lambda q: q.route(SIDE),
    lambda q: q.purge(SIDE, State.DONE),
    lambda q: q.replay(SIDE, dry_run=True),
    lambda q: q.queues(),
    lambda q: q.put_topic(SIDE, TopicPolicy(dedup_window_ms=1_000)),
    lambda q: q.topics(),
    lambda q: q.stats(LINES),
    lambda q: q.peek(QUEUE, State.DONE, limit=3),
    lambda q: q.read_log(0, limit=3),
    lambda q: q.sweep(),
    lambda q: q.engine.tenants(),
    lambda q: q.engine.put_document("kind", "name", b"value"),
    lambda q: q.engine.list_documents("kind"),
)


@pytest.fixture(params=[PostgreSQL, MariaDB], ids=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that nobody else uses, and that writes through to the disk."""
    private: Server = request.param(fsync=True)
    try:
        private.start()
        private.create_database("store")
        yield private
    finally:
        private.close()


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * KILLS)
async def test_nothing_that_was_acknowledged_is_lost_or_repeated(
    server: Server, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_DATABASE_SEED", int.from_bytes(os.urandom(4))))
    print(f"PENSTOCK_TEST_DATABASE_SEED={seed} PENSTOCK_TEST_DATABASE_KILLS={KILLS}")
    url = server.url("store")
    await migrate(url)
    path = tmp_path / "history.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        async with penstock.open(url) as a, penstock.open(url) as b:
            history = History(
                descriptor,
                clock=a.engine.clock,
                skew_ms=SKEW_MS,
                expected=(StoreBusy, CommitFailed),
            )
            await _run(server, [a, b], history, seed)
            partitions = await scan(b, history, drained=True, queues=(QUEUE, LINES))
            repeated = _repeated(a) + _repeated(b)
            report = await verify(a)
    finally:
        os.close(descriptor)
    print(dict(history.failures), dict(repeated))
    attempts = dict.fromkeys((QUEUE, LINES), MAX_ATTEMPTS)
    events = judge(path, attempts, ordered=(LINES,), skew_ms=SKEW_MS)
    check_order(events, LINES, {f"p{n}": partitions[f"p{n}"] for n in range(3)})
    assert report.ok, "\n".join(map(str, report.violations))
    if KILLS >= 20:
        # A history in which nothing went wrong would prove nothing: calls whose outcome nobody
        # knows, calls that gave up, and calls that went through in the end.
        assert history.failures["CommitFailed"]
        assert history.failures["StoreBusy"]
        assert repeated["connection"]


async def _run(server: Server, brokers: list[Broker], history: History, seed: int) -> None:
    await _create_queues(brokers[0])
    names = [(QUEUE, f"c{n}") for n in range(3)] + [(LINES, f"l{n}") for n in range(2)]
    history.next_run()
    finished = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        publishing = [
            group.create_task(
                Producer(Doors(brokers, n), history, f"p{n}", seed, own_ids=True, pause_s=0.4).run(
                    finished
                )
            )
            for n in range(3)
        ]
        consuming = [
            group.create_task(
                Consumer(Doors(brokers, n), history, name, seed, queue=queue).run(finished)
            )
            for n, (queue, name) in enumerate(names)
        ]
        operating = group.create_task(_operate(brokers, history, Random(seed + 1)))
        await _disturb(server, Random(seed))
        # Nobody is cancelled: a claim that is still under way would be a heartbeat after leaving.
        finished.set()
        await asyncio.wait((*publishing, *consuming))
        operating.cancel()
    for queue, name in names:
        if queue == LINES:
            await brokers[1].leave(LINES, name)
    for queue in (QUEUE, LINES):
        await Consumer(Doors(brokers), history, "last", seed, queue=queue).drain()


async def _operate(brokers: list[Broker], history: History, random: Random) -> None:
    """Every other verb, over and over: they too fail in no other way."""
    while True:
        verb = random.choice(VERBS)
        try:
            await verb(random.choice(brokers))
        except (UnknownQueue, QueueExists):
            # It may be there or not, and with another policy.
            pass
        except history.expected as error:
            history.failed(error)
        await asyncio.sleep(random.uniform(0, 0.1))


async def _disturb(server: Server, random: Random) -> None:
    """End the connections, and the server itself, at random moments."""
    kinds = ["connections", "server"] * KILLS
    random.shuffle(kinds)
    restarts = 0
    for kind in kinds:
        await asyncio.sleep(random.uniform(0, random.choice((0.05, 0.3, 1.0))))
        if kind == "connections":
            await asyncio.to_thread(server.kill_backends, "store")
            continue
        restarts += 1
        await asyncio.to_thread(server.kill if restarts % 2 else server.stop)
        if random.random() < 0.15 or restarts == 1:
            await asyncio.sleep(OUTAGE_S)
        await asyncio.to_thread(server.start)


async def _create_queues(broker: Broker) -> None:
    for queue, ordering in ((QUEUE, Ordering.NONE), (LINES, Ordering.PARTITION)):
        await broker.create_queue(
            queue,
            max_attempts=MAX_ATTEMPTS,
            min_lease_ms=10,
            backoff=Backoff(base_ms=5, max_ms=100),
            # Nothing leaves: the history is checked against everything that ever happened.
            done_retention_s=0,
            failed_retention_s=0,
            ordering=ordering,
        )


def _repeated(broker: Broker) -> Counter[str]:
    """The transactions that its engine made again, by reason."""
    engine = broker.engine
    assert isinstance(engine, SqlEngine)
    return Counter(engine._core.repeated)
