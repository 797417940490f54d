"""Numbers of a queue: over runs that were split, behind a cursor, and while others work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.listener import Listener
from penstock.testing.conformance.harness import TENANT, Store, msg
from penstock.testing.laws import law
from tests.unit.storage.sql.ordered import Pair, opened_pair


@pytest.fixture(params=["postgresql", "mysql"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with opened_pair(request.param) as pair:
        yield pair


@law("Q2")
async def test_runs_that_were_split_count_their_members(pair: Pair) -> None:
    await pair.first.queue(max_attempts=9)
    ids = await pair.first.publish(*(msg(priority=4 + n % 2) for n in range(20)))
    held = await pair.first.claim(limit=12, consumer="a")
    held += await pair.second.claim(limit=5, consumer="b")
    for delivery in held[1:12:3]:
        await pair.second.nack(delivery, delay_ms=1000)
    for delivery in held[2:12:3]:
        await pair.first.ack(delivery)
    for stats in [await one.engine.stats(TENANT, "q") for one in (pair.first, pair.second)]:
        assert (stats.available, stats.in_flight, stats.delayed, stats.done) == (3, 9, 4, 4)
        assert stats.in_flight_by_consumer == {"a": 4, "b": 5}
        assert stats.lag == 16
        assert stats.watermark == ids[0] - 1


async def test_lag_counts_what_is_not_routed_from_inside_a_segment(pair: Pair) -> None:
    for _ in range(3):
        await pair.first.publish(*[b"x"] * 5)
    await pair.first.queue(start=Start(Start.EARLIEST))
    engine = pair.second.engine
    for routed, more in ((2, 2), (5, 3), (6, 1), (14, 8)):
        await engine.route(TENANT, "q", more)
        stats = await engine.stats(TENANT, "q")
        assert (stats.available, stats.lag) == (routed, 15)
    cursor = (await engine.get_queue(TENANT, "q")).cursor
    assert cursor is not None
    await engine.purge(TENANT, "q", State.AVAILABLE, None, 99)
    stats = await engine.stats(TENANT, "q")
    assert (stats.lag, stats.watermark) == (1, cursor - 1)
    await engine.route(TENANT, "q", 9)
    await engine.purge(TENANT, "q", State.AVAILABLE, None, 99)
    stats = await engine.stats(TENANT, "q")
    assert (stats.lag, stats.watermark) == (0, await engine.log_end(TENANT) - 1)


async def test_the_age_of_a_replaced_message_is_that_of_the_first(pair: Pair) -> None:
    await pair.first.queue()
    await pair.first.publish(msg(b"old", key="k"))
    pair.clock.advance(100)
    await pair.first.publish(msg(b"new", key="k"), msg(b"other"))
    assert (await pair.second.engine.stats(TENANT, "q")).oldest_available_ms == 100


async def test_a_watermark_never_passes_what_waits(pair: Pair) -> None:
    """Two servers hand one delivery on and on while others come and go."""
    await pair.first.queue(max_attempts=999)
    (stays,) = await pair.first.publish(msg(b"stays", priority=9))
    ended = asyncio.Event()

    async def hand_on(one: Store) -> None:
        while not ended.is_set():
            for delivery in await one.claim():
                if delivery.payload == b"stays":
                    await one.nack(delivery, delay_ms=0)
                else:
                    await one.ack(delivery)

    async def publish() -> None:
        while not ended.is_set():
            await pair.first.publish(b"goes")

    async def look(one: Store) -> None:
        for _ in range(30):
            assert (await one.engine.stats(TENANT, "q")).watermark == stays - 1
        ended.set()

    try:
        async with asyncio.TaskGroup() as group:
            for one in (pair.first, pair.second):
                group.create_task(hand_on(one))
                group.create_task(look(one))
            group.create_task(publish())
    finally:
        ended.set()


@law("C5")
async def test_next_due_of_dead_letters_and_of_silent_consumers(pair: Pair) -> None:
    await pair.first.queue(ordering=Ordering.PARTITION, max_attempts=1)
    now = pair.clock.now()
    first, second = pair.first.engine, pair.second.engine
    joined = await first.join(TENANT, "q", "c")
    assert await second.next_due(TENANT, "q") is None
    await pair.first.publish(msg(partition_key="a"))
    assert await second.next_due(TENANT, "q") == joined.deadline
    await pair.first.publish(msg(partition_key="b", deliver_at=now + 9000, expires_at=now + 400))
    assert await second.next_due(TENANT, "q") == now + 400
    (delivery,) = await pair.first.claim(consumer="c", lease_ms=300)
    assert await second.next_due(TENANT, "q") == now + 300
    await pair.first.reject(delivery)
    assert await second.next_due(TENANT, "q") == now + 400
    assert await second.next_due(TENANT, "q.dlq") is None
    (dead,) = await pair.first.claim("q.dlq", consumer="c", lease_ms=200)
    assert await second.next_due(TENANT, "q.dlq") == dead.lease_deadline


@law("C5")
async def test_a_claim_at_the_time_that_was_told_looks_for_what_another_server_delayed(
    pair: Pair,
) -> None:
    await pair.first.queue()
    second = pair.second.engine
    assert await second.claim(TENANT, "q", "c", 1, None) == []
    due = pair.clock.now() + 20
    await pair.first.publish(msg(deliver_at=due))
    assert await second.next_due(TENANT, "q") == due
    pair.clock.advance(20)
    assert len(await second.claim(TENANT, "q", "c", 1, None)) == 1


@law("Q2")
async def test_a_watermark_is_not_above_the_end_of_the_log(pair: Pair) -> None:
    """Tenants share offsets: routing passes those of others, and the own log may end before."""
    await pair.first.publish(b"x", b"y")
    engine = pair.first.engine
    await engine.put_queue("other", "late", QueuePolicy(filter="TRUE"), Start(Start.EARLIEST))
    cursor = "cursor" if engine.capabilities.engine == "postgresql" else "`cursor`"
    pair.sql(f"UPDATE penstock_queue SET {cursor} = 1000000 WHERE name = 'late'")
    stats = await pair.second.engine.stats("other", "late")
    assert stats.watermark == await engine.log_end("other") - 1


class _Counted(Listener):
    def __init__(self) -> None:
        self.queues: set[str] = set()

    def counted(self, tenant: str, queue: str) -> None:
        self.queues.add(queue)

    def since(self) -> set[str]:
        found, self.queues = self.queues, set()
        return found


async def test_every_verb_that_changes_counts_says_so(pair: Pair) -> None:
    store = pair.first
    await store.queue()
    await store.queue("other", "FALSE")
    store.engine.listener = counted = _Counted()
    await store.publish(*[b"x"] * 3)
    assert counted.since() == {"q"}
    await store.publish(*[b"x"] * 3_000)
    assert counted.since() == {"q"}
    first, second, *_ = await store.claim(limit=5, consumer="a")
    assert counted.since() == {"q"}
    await store.ack(first)
    assert counted.since() == {"q"}
    await store.reject(second)
    assert counted.since() == {"q"}
    await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 10)
    assert counted.since() == {"q"}
