"""The log as readers see it while publishes are open: L2, P2, R1, on both dialects.

Publishes on two servers, some of them inside transactions of callers, commit in another order
than the one in which their places in the log were given out, or never. Readers of both servers
follow the log meanwhile and look at nothing twice, so whatever appeared behind them would be
missing from what they saw. Queues that take history join while all of this goes on.

PENSTOCK_TEST_LOG_SEED sets what happens; the seed is printed.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random

import pytest

from penstock.model.delivery import Ack, Reject
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.databases import server, store_url
from tests.unit.storage.sql.callers import DIALECTS, Caller, caller

TENANT, TOPIC, QUEUE = "t", "orders", "all"
NAME = "prefix"
EARLIEST = Start(at=Start.EARLIEST)
#: Transactions of callers under way at a time, and how many each of them makes.
CALLERS, TRANSACTIONS = 4, 8
#: Publishers of each server, and how often each publishes.
PUBLISHERS, PUBLISHES = 2, 25
#: What is wrong if it takes longer.
PATIENCE_S = 60


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def servers(dialect: str) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two servers on one store that has one queue."""
    url = store_url(dialect, NAME)
    async with AsyncExitStack() as stack:
        opened = [await open_engine(url, EngineOptions()) for _ in range(2)]
        for one in opened:
            stack.push_async_callback(one.close)
        await opened[0].put_queue(TENANT, QUEUE, QueuePolicy(), Start())
        yield opened[0], opened[1]


@pytest.fixture
async def callers(dialect: str, servers: object) -> AsyncIterator[list[Caller]]:
    """Connections of callers to the database of the store."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(CALLERS):
            opened.append(await caller(dialect, NAME))
            stack.push_async_callback(opened[-1].close)
        yield opened


@pytest.fixture
def random() -> Random:
    seed = int(os.environ.get("PENSTOCK_TEST_LOG_SEED", int.from_bytes(os.urandom(4))))
    print(f"PENSTOCK_TEST_LOG_SEED={seed}")
    return Random(seed)


class Reader:
    """Follows the log of one server, and never goes back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._at = Offset(0)
        self.seen: list[bytes] = []

    async def read(self, limit: int = 1_000) -> list[bytes]:
        """What is new, or as much of it as was asked for."""
        page = await self._engine.read_log(TENANT, self._at, limit, payloads=True)
        self._at = page.next_offset
        new = [entry.payload or b"" for entry in page.entries]
        self.seen += new
        return new

    async def follow(self, random: Random, finished: asyncio.Event) -> None:
        """Read on and on, and to the end when everything is over."""
        while not finished.is_set():
            await self.read(random.choice((1, 3, 100)))
            await asyncio.sleep(random.choice((0, 0, 0.005)))
        while await self.read():
            pass


async def publish(engine: Engine, *payloads: bytes, own: Caller | None = None) -> None:
    messages = [NewMessage(payload) for payload in payloads]
    if own is None:
        await engine.publish(TENANT, TOPIC, messages)
    else:
        await engine.publish_within(own.connection, TENANT, TOPIC, messages)


# -- one open publish after the other ------------------------------------------------------


@law("L2")
async def test_nothing_appears_behind_a_reader(
    servers: tuple[Engine, Engine], callers: list[Caller]
) -> None:
    a, b = servers
    own = callers[0]
    readers = [Reader(a), Reader(b)]
    await publish(a, b"1")
    await own.begin()
    await publish(b, b"2", own=own)
    await publish(a, b"3")
    await publish(b, b"4", b"5")
    for reader in readers:
        assert await reader.read() == [b"1"]
        assert await reader.read() == []
    assert await a.log_end(TENANT) == await b.log_end(TENANT) <= readers[0]._at
    await own.commit()
    for reader in readers:
        assert await reader.read() == [b"2", b"3", b"4", b"5"]


@law("L2")
async def test_a_publish_that_is_rolled_back_holds_nobody_up(
    servers: tuple[Engine, Engine], callers: list[Caller]
) -> None:
    a, b = servers
    own = callers[0]
    await own.begin()
    await publish(a, b"never", own=own)
    await publish(b, b"1")
    readers = [Reader(a), Reader(b)]
    for reader in readers:
        assert await reader.read() == []
    await own.roll_back()
    for reader in readers:
        assert await reader.read() == [b"1"]


@law("L2")
async def test_publishes_that_commit_in_reverse(
    servers: tuple[Engine, Engine], callers: list[Caller]
) -> None:
    readers = [Reader(one) for one in servers]
    for number, own in enumerate(callers):
        await own.begin()
        await publish(servers[number % 2], b"%d" % number, own=own)
    for own in callers[:0:-1]:
        await own.commit()
        for reader in readers:
            assert await reader.read() == []
    await callers[0].commit()
    for reader in readers:
        assert await reader.read() == [b"%d" % number for number in range(CALLERS)]


@law("L2")
async def test_a_transaction_that_was_open_before_it_published(
    servers: tuple[Engine, Engine], callers: list[Caller]
) -> None:
    """It is older than what readers have passed, and still appends above that."""
    a, b = servers
    own = callers[0]
    await own.begin()
    await own.run("SELECT 1")
    await publish(a, b"1")
    readers = [Reader(a), Reader(b)]
    for reader in readers:
        assert await reader.read() == [b"1"]
    await publish(b, b"2", own=own)
    await publish(a, b"3")
    await publish(b, b"4", own=own)
    for reader in readers:
        assert await reader.read() == []
    await own.commit()
    for reader in readers:
        assert await reader.read() == [b"2", b"3", b"4"]


# -- queues that join ----------------------------------------------------------------------


@law("S2")
async def test_a_queue_that_joins_forgets_nothing_that_would_come_again(
    dialect: str, servers: tuple[Engine, Engine], callers: list[Caller]
) -> None:
    """An open publish keeps it joining for longer than it keeps what is done."""
    clock = FakeClock()
    own, queue = callers[0], "new"
    engine = await open_engine(server(dialect).url(NAME), EngineOptions(clock=clock))
    try:
        await own.begin()
        await publish(engine, b"held", own=own)
        policy = QueuePolicy(done_retention_s=1, failed_retention_s=1)
        await engine.put_queue(TENANT, queue, policy, EARLIEST)
        await publish(engine, b"1", b"2", b"3", b"4")
        first, second, third = await engine.claim(TENANT, queue, "c", 3, None)
        verbs = (Ack(first.receipt), Reject(second.receipt), Ack(third.receipt))
        await engine.settle(TENANT, queue, verbs)
        clock.advance(60_000)
        await engine.sweep()
        for state in (State.DONE, State.FAILED, State.AVAILABLE):
            await engine.purge(TENANT, queue, state, None, 100)
        await own.commit()
        assert (await engine.route(TENANT, queue, 100)).cursor is None
        left = await engine.claim(TENANT, queue, "c", 100, None)
        assert [delivery.payload for delivery in left] == [b"held", b"4"]
        # From here on it forgets like any other.
        clock.advance(60_000)
        await engine.sweep()
        stats = await engine.stats(TENANT, queue)
        assert (stats.done, stats.failed) == (0, 0)
    finally:
        await engine.close()


# -- all at once ---------------------------------------------------------------------------


class Crowd:
    """Publishers of two servers, and callers who publish inside their own transactions."""

    def __init__(
        self, servers: tuple[Engine, Engine], callers: list[Caller], random: Random
    ) -> None:
        self._servers = servers
        self._callers = callers
        self._random = random
        self.committed: list[bytes] = []
        self.rolled_back: set[bytes] = set()

    async def run(self) -> None:
        """Publish all there is to publish."""
        async with asyncio.TaskGroup() as group:
            for number, own in enumerate(self._callers):
                group.create_task(self._call(own, f"c{number}", self._servers[number % 2]))
            for number in range(2 * PUBLISHERS):
                engine = self._servers[number % 2]
                group.create_task(self._publish(f"p{number}", engine))

    async def _publish(self, name: str, engine: Engine) -> None:
        random = Random(self._random.random())
        for number in range(PUBLISHES):
            payloads = self._payloads(name, number, random)
            await publish(engine, *payloads)
            self.committed += payloads
            await asyncio.sleep(random.choice((0, 0, 0.01)))

    async def _call(self, own: Caller, name: str, engine: Engine) -> None:
        random = Random(self._random.random())
        for number in range(TRANSACTIONS):
            await own.begin()
            payloads: list[bytes] = []
            for part in range(random.randint(1, 3)):
                await asyncio.sleep(random.choice((0, 0.01)))
                new = self._payloads(name, 10 * number + part, random)
                await publish(engine, *new, own=own)
                payloads += new
            await asyncio.sleep(random.choice((0, 0.01, 0.05)))
            if random.random() < 0.3:
                await own.roll_back()
                self.rolled_back |= set(payloads)
            else:
                await own.commit()
                self.committed += payloads

    def _payloads(self, name: str, number: int, random: Random) -> list[bytes]:
        return [f"{name}/{number}/{n}".encode() for n in range(random.randint(1, 4))]


@law("L2")
async def test_every_reader_sees_a_prefix_of_the_log(
    servers: tuple[Engine, Engine], callers: list[Caller], random: Random
) -> None:
    crowd = Crowd(servers, callers, random)
    readers = [Reader(one) for one in (*servers, *servers)]
    finished = asyncio.Event()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.follow(Random(random.random()), finished))
        await crowd.run()
        finished.set()
    whole = Reader(servers[0])
    while await whole.read():
        pass
    for reader in readers:
        assert reader.seen == whole.seen
    # P2: what was committed, once, and nothing else.
    assert Counter(whole.seen) == Counter(crowd.committed)
    assert crowd.rolled_back
    assert not crowd.rolled_back & set(whole.seen)


@law("R1")
async def test_queues_that_take_history_miss_nothing_and_get_nothing_twice(
    servers: tuple[Engine, Engine], callers: list[Caller], random: Random
) -> None:
    crowd = Crowd(servers, callers, random)
    queues: list[str] = []
    granted: dict[str, Counter[int]] = {}
    finished, created = asyncio.Event(), asyncio.Event()

    async def create() -> None:
        while len(queues) < 3 or not finished.is_set():
            queue = f"q{len(queues)}"
            await random.choice(servers).put_queue(TENANT, queue, QueuePolicy(), EARLIEST)
            queues.append(queue)
            await asyncio.sleep(random.uniform(0, 0.3))
        created.set()

    async def catch_up(engine: Engine) -> None:
        """As the keepers of both servers do, at the same time."""
        while not created.is_set() or await engine.behind():
            for tenant, queue in await engine.behind():
                await engine.route(tenant, queue, random.choice((1, 5, 500)))
            await asyncio.sleep(0.005)

    async def consume(engine: Engine) -> None:
        """Some of the queues are consumed meanwhile: what is done does not come again."""
        while not finished.is_set():
            for queue in queues[::2]:
                held = await engine.claim(TENANT, queue, "c", 20, None)
                granted.setdefault(queue, Counter()).update(int(d.message.id) for d in held)
                if held:
                    await engine.settle(TENANT, queue, [Ack(d.receipt) for d in held])
            await asyncio.sleep(0.01)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(create())
        for one in servers:
            group.create_task(catch_up(one))
            group.create_task(consume(one))
        await crowd.run()
        finished.set()
    page = await servers[0].read_log(TENANT, Offset(0), 10_000)
    assert len(page.entries) == len(crowd.committed) < 10_000
    everything = Counter(int(entry.message.id) for entry in page.entries)
    assert set(everything.values()) == {1}
    for queue in (QUEUE, *queues):
        assert (await servers[0].get_queue(TENANT, queue)).cursor is None
        assert await contents(servers[1], queue) == everything, queue
        assert set(granted.get(queue, Counter()).values()) <= {1}


async def contents(engine: Engine, queue: str) -> Counter[int]:
    """How often each message is in the queue, whatever its state."""
    found: Counter[int] = Counter()
    for state in State:
        cursor: str | None = None
        while True:
            page = await engine.peek(TENANT, queue, state, None, 500, cursor)
            found.update(int(item.message.id) for item in page.items)
            if (cursor := page.cursor) is None:
                break
    return found
