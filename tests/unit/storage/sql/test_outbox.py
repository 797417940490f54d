"""Publishing inside the caller's own transaction, on both dialects (P2, L2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import penstock
from penstock.broker import Broker, BrokerOptions
from penstock.errors import BadInput, QueueFull, UnknownDelivery
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import TopicPolicy
from penstock.model.states import State
from penstock.testing.laws import law
from tests.databases import server, store_url
from tests.unit.storage.sql.callers import DIALECTS, Caller, caller

NAME = "outbox"
#: Longer than any transaction here that nobody should have to wait for takes.
PATIENCE_S = 30


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def q(dialect: str) -> AsyncIterator[Broker]:
    server(dialect)
    options = BrokerOptions()
    async with penstock.open(store_url(dialect, NAME), options=options, keepers=False) as broker:
        yield broker


@pytest.fixture
async def own(dialect: str, q: Broker) -> AsyncIterator[Caller]:
    connection = await caller(dialect, NAME)
    await connection.run("DROP TABLE IF EXISTS bill")
    await connection.run("CREATE TABLE bill (id integer PRIMARY KEY)")
    yield connection
    await connection.close()


async def payloads(q: Broker, queue: str = "orders") -> list[bytes]:
    return [d.payload for d in await q.claim(queue, limit=100)]


async def log(q: Broker) -> list[bytes | None]:
    page = await q.read_log(Offset(0), limit=1000, payloads=True)
    return [entry.payload for entry in page.entries]


@law("P2")
async def test_the_commit_makes_it_visible(q: Broker, own: Caller) -> None:
    await own.begin()
    await own.run("INSERT INTO bill VALUES (1)")
    published = await q.publish("orders", b"paid", connection=own.connection)
    assert await log(q) == []
    await own.commit()
    (delivery,) = await q.claim("orders")
    assert (delivery.payload, delivery.message.id) == (b"paid", published.id)
    assert await own.run("SELECT id FROM bill") == [(1,)]
    assert await log(q) == [b"paid"]


@law("P2")
async def test_a_rollback_leaves_nothing(q: Broker, own: Caller) -> None:
    await q.publish("orders", b"before")
    await own.begin()
    await own.run("INSERT INTO bill VALUES (1)")
    reply = await q.publish_batch(
        "orders",
        [NewMessage(b"never", id="once", key="k"), NewMessage(b"nor this")],
        batch_id="b",
        connection=own.connection,
    )
    assert reply.durability == "transaction"
    await own.roll_back()
    assert await log(q) == [b"before"]
    assert await payloads(q) == [b"before"]
    assert await own.run("SELECT id FROM bill") == []
    # Neither the ids nor the key were used.
    again = await q.publish_batch("orders", [NewMessage(b"now", id="once", key="k")], batch_id="b")
    assert not again.repeated
    assert not again.messages[0].duplicate
    assert not again.messages[0].replaced
    assert await payloads(q) == [b"now"]
    assert (await q.stats("orders")).depth == 2


@law("P4")
async def test_a_batch_is_remembered_for_as_long_as_it_says(q: Broker, own: Caller) -> None:
    await q.put_topic("orders", TopicPolicy(dedup_window_ms=0))
    for repeated in (False, True):
        await own.begin()
        reply = await q.publish_batch(
            "orders",
            [NewMessage(b"once")],
            batch_id="b",
            batch_ms=3_600_000,
            connection=own.connection,
        )
        await own.commit()
        assert reply.repeated is repeated
    assert await log(q) == [b"once"]


async def test_nobody_waits_for_a_transaction_that_stays_open(q: Broker, own: Caller) -> None:
    await q.publish("orders", b"first")
    await own.begin()
    await q.publish("orders", b"late", connection=own.connection)
    async with asyncio.timeout(PATIENCE_S):
        await q.publish("orders", b"second")
        assert await payloads(q) == [b"first", b"second"]
        await q.create_queue("other", "topic = 'other'")
        await q.publish("other", b"third")
    await own.commit()
    assert await payloads(q) == [b"late"]


@law("L2")
async def test_the_log_is_read_up_to_an_open_publish(q: Broker, own: Caller) -> None:
    await q.publish("orders", b"first")
    await own.begin()
    await q.publish("orders", b"late", connection=own.connection)
    await q.publish("orders", b"second")
    seen = await q.read_log(Offset(0), limit=10, payloads=True)
    assert [entry.payload for entry in seen.entries] == [b"first"]
    await own.commit()
    rest = await q.read_log(seen.next_offset, limit=10, payloads=True)
    assert [entry.payload for entry in rest.entries] == [b"late", b"second"]


@law("P2")
async def test_what_is_refused_leaves_the_transaction_as_it_was(q: Broker, own: Caller) -> None:
    await q.create_queue("orders", "topic = 'orders'", max_depth=1)
    await own.begin()
    await own.run("INSERT INTO bill VALUES (1)")
    await q.publish("orders", b"fits", connection=own.connection)
    with pytest.raises(QueueFull):
        await q.publish("orders", b"does not", connection=own.connection)
    await own.run("INSERT INTO bill VALUES (2)")
    await own.commit()
    assert await payloads(q) == [b"fits"]
    assert await own.run("SELECT id FROM bill ORDER BY id") == [(1,), (2,)]


@law("R1")
async def test_queues_made_after_the_transaction_began_get_their_share(
    q: Broker, own: Caller, dialect: str
) -> None:
    """In REPEATABLE READ the caller does not see them; the publish does."""
    if dialect == "mysql":
        pytest.skip("a connection in REPEATABLE READ is refused there")
    await own.begin("REPEATABLE READ")
    await own.run("SELECT id FROM bill")
    await q.create_queue("new", "topic = 'orders'")
    await q.publish("orders", b"x", connection=own.connection)
    await own.commit()
    assert await payloads(q, "new") == [b"x"]


@law("P4")
async def test_ids_and_keys_hold_across_both_ways(q: Broker, own: Caller) -> None:
    first = await q.publish("orders", b"1", id="a", key="k")
    await own.begin()
    again = await q.publish("orders", b"2", id="a", connection=own.connection)
    assert (again.id, again.duplicate) == (first.id, True)
    newer = await q.publish("orders", b"3", key="k", connection=own.connection)
    assert (newer.id, newer.replaced) == (first.id, True)
    await own.commit()
    assert await payloads(q) == [b"3"]


async def test_a_replacement_that_no_queue_takes_creates_one(q: Broker, own: Caller) -> None:
    await q.create_queue("red", "color = 'red'")
    first = await q.publish("orders", b"1", key="k", headers={"color": "red"})
    await own.begin()
    newer = await q.publish("orders", b"2", key="k", connection=own.connection)
    assert (newer.id, newer.replaced) == (first.id, True)
    await own.commit()
    assert await payloads(q, "red") == []
    assert await payloads(q) == [b"2"]


async def test_who_waits_is_woken_by_the_commit(q: Broker, own: Caller) -> None:
    await q.create_queue("orders", "topic = 'orders'")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(q.claim("orders", wait_ms=20_000))
        await asyncio.sleep(0.05)
        await own.begin()
        await q.publish("orders", b"x", connection=own.connection)
        await own.commit()
    assert [d.payload for d in waiting.result()] == [b"x"]


async def test_who_waits_for_a_result_learns_that_the_delivery_is_gone(
    q: Broker, own: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keyed replacement takes the delivery out of a queue; no poll is needed to notice."""
    monkeypatch.setattr("penstock.storage.sql.notifications._NET_S", 3600)
    monkeypatch.setattr("penstock.storage.sql.notifications._LATE_S", 3600)
    await q.create_queue("red", "color = 'red'")
    first = await q.publish("orders", b"1", key="k", headers={"color": "red"})
    waiting = asyncio.ensure_future(q.result("red", first.id, wait_ms=20_000))
    await asyncio.sleep(0.05)
    await own.begin()
    await q.publish("orders", b"2", key="k", connection=own.connection)
    await own.commit()
    with pytest.raises(UnknownDelivery):
        await asyncio.wait_for(waiting, 10)


@law("E1")
async def test_what_is_no_connection_is_refused(q: Broker, own: Caller) -> None:
    for wrong in ("connection", object()):
        with pytest.raises(BadInput, match="connection"):
            await q.publish("orders", b"x", connection=wrong)
    with pytest.raises(BadInput, match="no transaction"):
        await q.publish("orders", b"x", connection=own.connection)
    assert await log(q) == []


@law("E1")
async def test_mysql_refuses_a_transaction_that_sees_the_past(q: Broker, own: Caller) -> None:
    """Its locks would have others wait until it ends."""
    if q.engine.capabilities.engine != "mysql":
        pytest.skip("PostgreSQL has no locks on what is not there")
    await own.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    await own.begin()
    with pytest.raises(BadInput, match="READ COMMITTED"):
        await q.publish("orders", b"x", connection=own.connection)


@law("E1")
async def test_a_store_without_a_database_says_so() -> None:
    async with penstock.open("memory://") as q:
        with pytest.raises(BadInput, match="memory"):
            await q.publish("orders", b"x", connection=object())
        assert (await q.queues()) == ()


async def test_a_delayed_message_is_delayed(q: Broker, own: Caller) -> None:
    await own.begin()
    await q.publish("orders", b"x", delay_ms=3_600_000, connection=own.connection)
    await own.commit()
    assert [s.message.size for s in (await q.peek("orders", State.DELAYED)).items] == [1]
