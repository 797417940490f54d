"""Limits hold for all servers of a database together, on both dialects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from penstock.broker import Broker
from penstock.broker.scope import BrokerOptions
from penstock.errors import QueueFull, SchemaViolation
from penstock.model.delivery import Ack, Delivery
from penstock.model.limits import MAX_WAIT_MS
from penstock.model.message import NewMessage, Outgoing
from penstock.model.queue import TopicPolicy
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql.claim_numbers import steady_s
from penstock.testing.laws import law
from tests.databases import store_url
from tests.unit.storage.sql.gates import Gate
from tests.unit.storage.sql.pairs import NAME, ROUNDS, TENANT, Pair

RATE = 5
#: Only a test that would hang for ever waits this long.
HANG_S = 60.0


def brokers(pair: Pair) -> tuple[Broker, Broker]:
    """A broker on each of the two servers."""
    a, b = (Broker(engine, BrokerOptions(), TENANT) for engine in (pair.a, pair.b))
    return a, b


async def fill(q: Broker, topic: str, count: int) -> None:
    await q.publish_batch(topic, [NewMessage(b"x")] * count)


# -- throughput_limit --------------------------------------------------------------------


async def test_two_servers_hand_out_no_more_than_one(pair: Pair) -> None:
    a, b = brokers(pair)
    await a.create_queue("q", filter="topic = 'q'", throughput_limit=RATE)
    await fill(b, "q", 200)
    for _ in range(ROUNDS):
        claims = [q.claim("q", limit=3) for q in (a, b, a, b)]
        granted = [delivery for claimed in await asyncio.gather(*claims) for delivery in claimed]
        assert len(granted) == RATE
        assert await a.claim("q", limit=3) == await b.claim("q", limit=3) == []
        pair.clock.advance(1_000)


async def test_a_server_that_was_suspended_does_not_refill_the_bucket(dialect: str) -> None:
    url = store_url(dialect, NAME)
    async with AsyncExitStack() as stack:
        servers = [await open_engine(url, EngineOptions()) for _ in range(2)]
        for engine in servers:
            stack.push_async_callback(engine.close)
        a, b = (Broker(engine, BrokerOptions(), TENANT) for engine in servers)
        await a.create_queue("q", filter="topic = 'q'", throughput_limit=RATE)
        await fill(a, "q", 200)
        clock = servers[1]._core.clock  # type: ignore[attr-defined]
        began, granted = steady_s(), 0
        for _ in range(20):
            clock._ahead -= 5_000
            for q in (a, b):
                granted += len(await q.claim("q", limit=1))
        assert granted <= 2 * RATE + RATE * (steady_s() - began)


async def test_a_limit_that_another_server_set_counts_for_the_next_claim(pair: Pair) -> None:
    a, b = brokers(pair)
    await a.create_queue("q", filter="topic = 'q'")
    await fill(a, "q", 30)
    assert len(await b.claim("q", limit=10)) == 10
    await a.update_queue("q", throughput_limit=RATE)
    assert len(await b.claim("q", limit=10)) == RATE
    assert await a.claim("q", limit=10) == []


@law("C5")
async def test_waiting_claims_of_two_servers_share_the_tokens(pair: Pair) -> None:
    a, b = brokers(pair)
    await a.create_queue("q", filter="topic = 'q'", throughput_limit=RATE)
    await fill(a, "q", 20)
    assert len(await a.claim("q", limit=RATE)) == RATE
    waits = [asyncio.create_task(q.claim("q", wait_ms=MAX_WAIT_MS)) for q in (a, b)]
    begin = pair.clock.now()
    # Whoever finds no token rests until there is one, so time moves only when both rest.
    while not all(wait.done() for wait in waits):
        await resting(waits, a, b)
        pair.clock.advance(1_000 // RATE)
        assert pair.clock.now() < begin + MAX_WAIT_MS
    assert [len(await wait) for wait in waits] == [1, 1]


async def resting(waits: Sequence[asyncio.Task[object]], *servers: Broker) -> None:
    """Wait until everyone who has nothing yet rests."""

    def looking() -> int:
        lines = [line for q in servers for line in q._waiting._queues.values()]
        return sum(not wait.done() for wait in waits) - sum(len(line._resting) for line in lines)

    async with asyncio.timeout(HANG_S):
        while looking() > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# -- max_depth ---------------------------------------------------------------------------


async def try_to_publish(q: Broker, count: int) -> int:
    """How many of the messages were taken."""
    try:
        await fill(q, "q", count)
    except QueueFull:
        return 0
    return count


async def test_two_servers_fill_a_queue_to_its_depth_and_no_further(pair: Pair) -> None:
    a, b = brokers(pair)
    await a.create_queue("q", filter="topic = 'q'", max_depth=10)
    for _ in range(ROUNDS):
        taken = await asyncio.gather(*(try_to_publish(q, 3) for q in (a, b) * 4))
        assert sum(taken) == 9
        stats = await a.stats("q")
        assert stats.depth == 9
        assert len(await b.claim("q", limit=9)) == 9
        await a.delete_queue("q")
        await a.create_queue("q", filter="topic = 'q'", max_depth=10)


async def test_a_publish_counts_what_another_server_is_about_to_commit(
    pair: Pair, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = brokers(pair)
    await a.create_queue("q", filter="topic = 'q'", max_depth=10)
    # Whoever publishes first makes the row that the others lock.
    await fill(a, "q", 1)
    gate = Gate(dialect, monkeypatch)
    first = asyncio.ensure_future(try_to_publish(a, 9))
    await gate.written.wait()
    second = asyncio.ensure_future(try_to_publish(b, 1))
    await gate.open_for(second)
    assert (await first, await second) == (9, 0)


async def test_settling_with_a_publish_counts_what_another_server_brings(pair: Pair) -> None:
    a, b = brokers(pair)
    await a.create_queue("q", filter="topic = 'q'", max_depth=4)
    await a.create_queue("work", filter="topic = 'work'")
    await fill(a, "work", 8)
    held = await a.claim("work", limit=8)

    async def transform(q: Broker, delivery: Delivery) -> int:
        outgoing = [Outgoing("q", [NewMessage(b"x")])]
        try:
            reply = await q.settle("work", [Ack(delivery.receipt)], publish=outgoing)
        except QueueFull:
            return 0
        return len(reply.published)

    taken = await asyncio.gather(
        *(transform(q, delivery) for q, delivery in zip((a, b) * 4, held, strict=True))
    )
    assert sum(taken) == 4
    assert (await b.stats("q")).depth == 4


# -- schemas -----------------------------------------------------------------------------

SCHEMA = '{"type": "object", "required": ["order"]}'


@law("E1")
async def test_a_schema_that_another_server_registered_counts_for_the_next_publish(
    pair: Pair,
) -> None:
    a, b = brokers(pair)
    await a.create_queue("q", filter="topic = 'q'")
    await a.create_queue("work", filter="topic = 'work'")
    # Both remember that the topic demands nothing.
    for q in (a, b):
        await q.publish("q", {"no": 1})
    await a.publish("work", b"x")
    (held,) = await b.claim("work")
    await a.put_topic("q", TopicPolicy(schema_type="json-schema", schema=SCHEMA))
    outgoing = [Outgoing("q", [NewMessage(b"{}")])]
    with pytest.raises(SchemaViolation):
        await b.publish("q", {"no": 2})
    with pytest.raises(SchemaViolation):
        await b.publish_batch("q", [NewMessage(b"{}")])
    with pytest.raises(SchemaViolation):
        await b.settle("work", [Ack(held.receipt)], publish=outgoing)
    assert (await b.stats("q")).available == 2
    for q in (a, b):
        await q.publish("q", {"order": 1})
    await b.delete_topic("q")
    await a.publish("q", {"no": 3})
    reply = await a.settle("work", [Ack(held.receipt)], publish=outgoing)
    assert reply.outcomes[0].ok
