"""Servers of one database: a wait on one of them ends by what happens on another (C5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

import penstock
from penstock import Broker
from penstock.errors import UnknownDelivery
from penstock.model.delivery import Result, ResultStatus
from penstock.model.message import MessageId
from penstock.storage.sql.core import Core
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.notifications import Watch
from penstock.testing.laws import law
from tests.databases import server, store_url

#: Only a test that would hang for ever waits this long.
HANG_S = 60.0


@pytest.fixture(params=["postgresql", "mysql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def pair(dialect: str) -> AsyncIterator[tuple[Broker, Broker]]:
    url = store_url(dialect)
    async with penstock.open(url) as a, penstock.open(url) as b:
        await a.create_queue("q")
        yield a, b


async def resting(q: Broker, count: int) -> None:
    """Wait until so many stand in line and none of them looks."""
    async with asyncio.timeout(HANG_S):
        lines = q._waiting._queues.values()
        while sum(len(line._resting) for line in lines) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@law("C5")
async def test_a_wait_ends_when_another_server_publishes(pair: tuple[Broker, Broker]) -> None:
    a, b = pair
    waiting = asyncio.create_task(a.claim("q", wait_ms=30_000))
    await resting(a, 1)
    await b.publish("q", b"x")
    (delivery,) = await asyncio.wait_for(waiting, HANG_S)
    assert delivery.payload == b"x"


@law("C5")
async def test_a_wait_ends_when_another_server_nacks_and_when_it_resumes(
    pair: tuple[Broker, Broker],
) -> None:
    a, b = pair
    await b.publish("q", b"x")
    (held,) = await b.claim("q")
    waiting = asyncio.create_task(a.claim("q", wait_ms=30_000))
    await resting(a, 1)
    await b.nack(held, delay_ms=0)
    (again,) = await asyncio.wait_for(waiting, HANG_S)
    await b.pause("q")
    await a.release(again)
    waiting = asyncio.create_task(a.claim("q", wait_ms=30_000))
    await resting(a, 1)
    await b.resume("q")
    assert await asyncio.wait_for(waiting, HANG_S)


class Looks:
    """Counts how often a server reads a result, and says when it did so in vain."""

    def __init__(self, q: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.vain = asyncio.Event()
        self._result = q.engine.result
        monkeypatch.setattr(q.engine, "result", self._look)

    async def _look(self, tenant: str, queue: str, message_id: MessageId) -> Result | None:
        self.count += 1
        found = await self._result(tenant, queue, message_id)
        if found is None:
            self.vain.set()
        return found


@law("C5")
@pytest.mark.parametrize("queue", ["q", "q.dlq"])
async def test_a_result_is_told_and_not_polled_for(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = store_url("postgresql")
    async with penstock.open(url) as a, penstock.open(url) as b:
        await a.create_queue("q")
        # Without polls, only a notification can end the wait.
        poller = watch_of(a)._poller
        assert poller is not None
        poller.cancel()
        message = await b.publish("q", b"x")
        (held,) = await b.claim("q")
        if queue == "q.dlq":
            await b.reject(held, "no")
            (held,) = await b.claim(queue)
        looks = Looks(a, monkeypatch)
        waiting = asyncio.create_task(a.result(queue, message.id, wait_ms=30_000))
        await asyncio.wait_for(looks.vain.wait(), HANG_S)
        # Nobody looks again without being told.
        assert [line.rest_ms for line in a._waiting._results.values()] == [None]
        await heard_of(b)
        await b.ack(held, b"done")
        found = await asyncio.wait_for(waiting, HANG_S)
        assert found is not None
        assert (found.result, looks.count) == (b"done", 2)


@law("C5")
@pytest.mark.parametrize("end", ["nack", "reject", "purge"])
async def test_another_servers_failure_is_told(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store_url("postgresql")
    async with penstock.open(url) as a, penstock.open(url) as b:
        await a.create_queue("q", max_attempts=1)
        poller = watch_of(a)._poller
        assert poller is not None
        poller.cancel()
        message = await b.publish("q", b"x")
        looks = Looks(a, monkeypatch)
        waiting = asyncio.create_task(a.result("q", message.id, wait_ms=30_000))
        await asyncio.wait_for(looks.vain.wait(), HANG_S)
        await heard_of(b)
        if end == "purge":
            await b.purge("q", "available")
            with pytest.raises(UnknownDelivery):
                await asyncio.wait_for(waiting, HANG_S)
            return
        (held,) = await b.claim("q")
        await (b.nack(held, "bad") if end == "nack" else b.reject(held, "bad"))
        found = await asyncio.wait_for(waiting, HANG_S)
        assert found is not None
        assert (found.status, found.error, found.attempts) == (ResultStatus.FAILED, "bad", 1)


@law("C5")
async def test_a_result_is_found_by_a_poll(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where servers are not told, the queue is watched as one that somebody claims from."""
    a, b = pair
    monkeypatch.setattr(type(core_of(a).database), "hears", False)
    monkeypatch.setattr(core_of(b), "broadcast", lambda _: None)
    message = await b.publish("q", b"x")
    (held,) = await b.claim("q")
    looks = Looks(a, monkeypatch)
    waiting = asyncio.create_task(a.result("q", message.id, wait_ms=30_000))
    await asyncio.wait_for(looks.vain.wait(), HANG_S)
    watched = [core_of(a).catalog.name_of(queue) for queue in watch_of(a)._watched]
    assert watched == [("default", "q")]
    await b.ack(held, b"done")
    found = await asyncio.wait_for(waiting, HANG_S)
    assert found is not None
    assert found.result == b"done"
    # In vain, for the first answer of a queue that was not watched before, and for the ack.
    assert looks.count <= 3


async def heard_of(q: Broker) -> None:
    """Wait until the server knows that it is not alone."""
    async with asyncio.timeout(HANG_S):
        while not core_of(q).database.has_company:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def watch_of(q: Broker) -> Watch:
    engine = q.engine
    assert isinstance(engine, SqlEngine)
    return engine._watch


@law("C5")
async def test_dead_letters_are_heard_of(pair: tuple[Broker, Broker]) -> None:
    a, b = pair
    await b.publish("q", b"x")
    (held,) = await b.claim("q")
    waiting = asyncio.create_task(a.claim("q.dlq", wait_ms=30_000))
    await resting(a, 1)
    await b.reject(held, "no")
    assert await asyncio.wait_for(waiting, HANG_S)


@law("C5")
async def test_dead_letter_copies_are_heard_of(pair: tuple[Broker, Broker]) -> None:
    a, b = pair
    await b.create_queue("triage", "topic = 'dead'")
    await b.update_queue("q", dead_letter_topic="dead")
    await b.publish("q", b"x")
    (held,) = await b.claim("q")
    waiting = asyncio.create_task(a.claim("triage", wait_ms=30_000))
    await resting(a, 1)
    await b.reject(held, "no")
    assert await asyncio.wait_for(waiting, HANG_S)


@law("C5")
async def test_what_is_not_told_is_found(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    monkeypatch.setattr(core_of(b), "broadcast", lambda _: None)
    waiting = asyncio.create_task(a.claim("q", wait_ms=30_000))
    await resting(a, 1)
    await b.publish("q", b"x")
    assert await asyncio.wait_for(waiting, HANG_S)


@law("C5")
async def test_without_a_word_from_the_database_it_is_polled(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    monkeypatch.setattr(type(core_of(a).database), "hears", False)
    monkeypatch.setattr(core_of(b), "broadcast", lambda _: None)
    for _ in range(5):
        waiting = asyncio.create_task(a.claim("q", wait_ms=30_000))
        await resting(a, 1)
        await b.publish("q", b"x")
        assert await asyncio.wait_for(waiting, HANG_S)


@law("C5")
async def test_a_partition_that_is_let_go_of_is_found(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    monkeypatch.setattr(core_of(b), "broadcast", lambda _: None)
    await b.create_queue("o", ordering="partition")
    for partition in ("x", "y"):
        await b.publish("o", b"1", partition_key=partition)
    assert len((await b.join("o", "b")).partitions) == 2
    waiting = asyncio.create_task(a.claim("o", consumer="a", wait_ms=30_000))
    await resting(a, 1)
    # A consumer's next heartbeat brings what it owns to its share; no delivery moves.
    assert len((await b.join("o", "b")).partitions) == 1
    # Sooner than its own next heartbeat.
    assert await asyncio.wait_for(waiting, 9)


@law("C5")
async def test_waits_survive_that_every_connection_is_cut(
    pair: tuple[Broker, Broker], dialect: str
) -> None:
    a, _ = pair
    waiting = asyncio.create_task(a.claim("q", wait_ms=30_000))
    await resting(a, 1)
    server(dialect).kill_backends("store")
    # A server that starts now is not concerned.
    async with penstock.open(server(dialect).url("store"), keepers=False) as c:
        await c.publish("q", b"x")
    assert await asyncio.wait_for(waiting, HANG_S)


async def test_waiting_costs_the_database_little(
    pair: tuple[Broker, Broker], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    await b.close()
    # One alone has to bear what a server costs by itself.
    wait = asyncio.create_task(a.claim("q", wait_ms=30_000))
    await resting(a, 1)
    # The first poll is a change, after which it looks once more; then polls become rare.
    loop = asyncio.get_running_loop()
    await asyncio.sleep(3)
    count = statements_of(dialect, monkeypatch)
    before, began = count(), loop.time()
    await asyncio.sleep(4)
    a_second = (count() - before) / (loop.time() - began)
    wait.cancel()
    await asyncio.wait([wait])
    # Two polls for the waiter, and per second one look for due deliveries, for queues to catch up
    # with and for webhooks.
    assert 0 < a_second < 6


def statements_of(dialect: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """What tells how many statements the database was asked so far."""
    if dialect == "mysql":
        status = "SHOW GLOBAL STATUS LIKE 'Questions'"
        # Each look at it costs a few itself: the client's, when it comes and goes.
        return lambda: int(server(dialect).sql(status)[0][1])
    count = 0

    def counted(name: str) -> None:
        plain = getattr(asyncpg.Connection, name)

        async def call(*args: object, **options: object) -> object:
            nonlocal count
            count += 1
            return await plain(*args, **options)

        monkeypatch.setattr(asyncpg.Connection, name, call)

    for name in ("execute", "fetch", "fetchval", "fetchrow", "executemany"):
        counted(name)
    return lambda: count


def core_of(q: Broker) -> Core:
    engine = q.engine
    assert isinstance(engine, SqlEngine)
    return engine._core
