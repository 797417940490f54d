"""The catch-up keeper: queues that start in the past, in turn, without gap or duplicate (R1)."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Broker, NewMessage, Start
from penstock.errors import StoreClosed, StoreCorrupt, UnknownQueue
from penstock.keepers import CatchUp, Keepers, Pass, catch_up
from penstock.model.delivery import RouteReply
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law


async def payloads(q: Broker, queue: str) -> list[bytes]:
    out: list[bytes] = []
    while deliveries := await q.claim(queue, limit=1000):
        out += [delivery.payload for delivery in deliveries]
    return out


async def test_a_pass_with_nothing_to_do(q: Broker) -> None:
    await q.publish("orders", b"")
    assert await CatchUp(q.engine).run() == Pass(0, more=False)


async def test_queues_that_are_behind_are_caught_up_in_turn(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "CATCH_UP_BATCH", 10)
    other = q.for_tenant("other")
    for broker in (q, other):
        await broker.publish_batch("orders", [NewMessage(b"")] * 25)
        await broker.create_queue("late", start="earliest")
        last = Start(Start.OFFSET, await broker.log_end() - 5)
        await broker.create_queue("later", start=last)
    keeper = CatchUp(q.engine)
    assert await keeper.run() == Pass(2 * 10 + 2 * 5, more=True)
    # Nobody had to wait for another's last batch.
    for broker in (q, other):
        assert (await broker.stats("late")).available == 10
        assert (await broker.stats("later")).available == 5
    assert await keeper.run() == Pass(20, more=True)
    assert await keeper.run() == Pass(10, more=False)
    assert await keeper.run() == Pass(0, more=False)
    assert (await other.stats("late")).available == 25


@law("R1")
async def test_catching_up_while_publishes_go_on_leaves_no_gap_and_no_duplicate(
    q: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "CATCH_UP_BATCH", 7)
    await q.create_queue("all")
    total = 300

    async def publish(numbers: range) -> None:
        for number in numbers:
            await q.publish("orders", b"%d" % number)

    await publish(range(100))
    keepers = Keepers(q.engine, clock)
    publishing = [asyncio.create_task(publish(range(start, total, 4))) for start in range(100, 104)]
    keepers.start()
    await q.create_queue("late", start="earliest")
    keepers.behind()
    async with asyncio.timeout(30):
        await asyncio.gather(*publishing)
        while await q.engine.behind():  # noqa: ASYNC110  (no event tells what keepers do)
            await asyncio.sleep(0)
    await q.publish("orders", b"%d" % total)
    await keepers.stop()
    expected = await payloads(q, "all")
    assert sorted(map(int, expected)) == list(range(total + 1))
    # In publish order too.
    assert await payloads(q, "late") == expected


@law("C5")
async def test_whoever_waits_for_a_queue_gets_it_as_it_catches_up(
    q: Broker, clock: FakeClock
) -> None:
    await q.publish("orders", b"old")
    await q.create_queue("late", start="earliest")
    waiting = asyncio.create_task(q.claim("late", wait_ms=30_000))
    keepers = Keepers(q.engine, clock)
    keepers.start()
    async with asyncio.timeout(60):
        assert [item.payload for item in await waiting] == [b"old"]
    await keepers.stop()


async def test_a_queue_that_is_deleted_meanwhile_is_left_out(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.publish("orders", b"")
    for name in ("one", "two"):
        await q.create_queue(name, start="earliest")
    route = q.engine.route

    async def first_is_gone(tenant: str, queue: str, limit: int) -> RouteReply:
        if queue == "one":
            raise UnknownQueue("gone", field="queue")
        return await route(tenant, queue, limit)

    monkeypatch.setattr(q.engine, "route", first_is_gone)
    assert await CatchUp(q.engine).run() == Pass(1, more=False)
    assert (await q.stats("two")).available == 1


async def test_a_queue_that_cannot_be_routed_does_not_hold_up_the_others(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.publish("orders", b"")
    for name in ("one", "two"):
        await q.create_queue(name, start="earliest")
    route = q.engine.route

    async def first_fails(tenant: str, queue: str, limit: int) -> RouteReply:
        if queue == "one":
            raise StoreCorrupt("a bad record")
        return await route(tenant, queue, limit)

    monkeypatch.setattr(q.engine, "route", first_fails)
    with pytest.raises(StoreCorrupt):
        await CatchUp(q.engine).run()
    assert (await q.stats("two")).available == 1


async def test_a_closed_store(q: Broker) -> None:
    await q.close()
    with pytest.raises(StoreClosed):
        await CatchUp(q.engine).run()


async def test_queues_that_are_far_behind_are_left_to_the_pipeline(q: Broker) -> None:
    await q.publish_batch("orders", [NewMessage(b"")] * 50)
    await q.create_queue("far", start="earliest")
    await q.create_queue("near", start=Start(Start.OFFSET, await q.log_end() - 5))
    keeper = CatchUp(q.engine, near=20)
    assert await keeper.run() == Pass(5, more=False)
    assert (await q.queue("near")).cursor is None
    assert (await q.queue("far")).cursor == 0
    # Spark brings it near, and the last stretch is the keeper's.
    start = (await q.queue("far")).cursor or 0
    end = await q.log_end() - 10
    await q.assign("far", filter="TRUE", start=start, end=end, offsets=list(range(start, end)))
    assert await keeper.run() == Pass(10, more=False)
    assert (await q.queue("far")).cursor is None
    assert (await q.stats("far")).available == 50
