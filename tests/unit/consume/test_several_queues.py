"""consume of several queues: one room for all, and each claim settled in its own queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import BadFilter, BadInput, UnknownQueue
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.consume.conftest import pass_time, publish, turns

if TYPE_CHECKING:
    from penstock.consume import Consumption, Lease
    from tests.unit.consume.conftest import Consume, Spy

LEASE_MS = 30_000


@pytest.fixture(autouse=True)
async def queues(q: Spy) -> None:
    await q.delete_queue("q")
    await q.create_queue("a", "topic = 'a'")
    await q.create_queue("b", "topic = 'b'")


async def take(leases: Consumption, count: int) -> list[Lease]:
    return [await asyncio.wait_for(anext(leases), 60) for _ in range(count)]


async def test_given_takes_the_first_queue_first(q: Spy, consume: Consume) -> None:
    await publish(q, 3, "b")
    await publish(q, 3, "a")
    leases = await take(consume(["a", "b"], max_in_flight=6), 6)
    assert [lease.queue for lease in leases] == ["a"] * 3 + ["b"] * 3
    for lease in leases:
        await lease.ack()
    assert [(await q.stats(name)).done for name in "ab"] == [3, 3]


async def test_fair_takes_from_each(q: Spy, consume: Consume) -> None:
    await publish(q, 10, "a")
    await publish(q, 10, "b")
    leases = await take(consume(["a", "b"], max_in_flight=4, order="fair"), 4)
    assert sorted(lease.queue for lease in leases) == ["a", "a", "b", "b"]


async def test_what_is_in_flight_counts_over_all_queues(q: Spy, consume: Consume) -> None:
    await publish(q, 10, "a")
    await publish(q, 10, "b")
    leases = consume(["a", "b"], max_in_flight=12)
    await take(leases, 1)
    await turns()
    assert [(await q.stats(name)).in_flight for name in "ab"] == [10, 2]
    leases.stop()
    await turns()
    # The buffered ones went back, each to its own queue.
    assert [(await q.stats(name)).in_flight for name in "ab"] == [1, 0]


async def test_a_waiting_consumer_gets_what_arrives_in_any_queue(q: Spy, consume: Consume) -> None:
    leases = consume(["a", "b"])
    waiting = asyncio.ensure_future(anext(leases))
    await turns()
    await publish(q, 1, "b")
    assert (await asyncio.wait_for(waiting, 60)).queue == "b"


@law("C5")
async def test_the_leases_of_every_queue_stay_alive(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await publish(q, 1, "a")
    await publish(q, 1, "b")
    leases = await take(consume(["a", "b"]), 2)
    await pass_time(clock, 3 * LEASE_MS)
    for name in "ab":
        assert await q.claim(name) == []
    for lease in leases:
        assert (await lease.ack()).ok


@law("O1")
async def test_each_ordered_queue_is_joined_and_left(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    for name in ("x", "y"):
        await q.create_queue(name, f"topic = '{name}'", ordering="partition")
        await q.publish(name, b"", partition_key="p")
    leases = consume(["x", "a", "y"], consumer="me")
    held = await take(leases, 2)
    assert sorted(lease.queue for lease in held) == ["x", "y"]
    await pass_time(clock, 2 * CONSUMER_LEASE_MS)
    for name in ("x", "y"):
        assert [item.owner for item in (await q.stats(name)).partitions] == ["me"]
    for lease in held:
        assert (await lease.ack()).ok
    await leases.aclose()
    for name in ("x", "y"):
        await q.join(name, "other")
        await q.publish(name, b"next", partition_key="p")
        assert len(await q.claim(name, consumer="other")) == 1


async def test_a_selector_consumes_what_matches(q: Spy, consume: Consume) -> None:
    for number in range(6):
        await q.publish("a", b"%d" % number, headers={"number": number})
    leases = await take(consume(["a", "b"], where="number % 2 = 1"), 3)
    assert [lease.payload for lease in leases] == [b"1", b"3", b"5"]
    assert (await q.stats("a")).available == 3
    with pytest.raises(BadFilter):
        await take(consume("a", where="number %"), 1)


async def test_a_missing_queue_ends_it(q: Spy, consume: Consume) -> None:
    with pytest.raises(UnknownQueue):
        await take(consume(["a", "nowhere"]), 1)


@pytest.mark.parametrize("bad", [[], ["a", "a"], ["a"] * 101, [7]])
def test_bad_lists_are_refused(q: Spy, bad: list[str]) -> None:
    with pytest.raises(penstock.PenstockError) as refused:
        q.consume(bad)
    assert refused.value.field == "queues"
    with pytest.raises(BadInput) as other:
        q.consume(["a"], order="random")  # type: ignore[arg-type]
    assert other.value.field == "order"


@law("C1")
async def test_a_long_lease_does_not_delay_the_extension_of_a_short_one(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await q.update_queue("a", lease_ms=100 * LEASE_MS)
    leases = consume(["a", "b"])
    await publish(q, 1, "a")
    (slow,) = await take(leases, 1)
    await pass_time(clock, 1_000)
    await publish(q, 1, "b")
    (quick,) = await take(leases, 1)
    for _ in range(100):
        await pass_time(clock, LEASE_MS // 10)
        assert await q.claim("b", consumer="thief") == []
    assert (await quick.ack()).ok
    assert (await slow.ack()).ok
