"""Claims with a selector: refused filters, several queues, and waiting without spinning."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Broker, NewMessage, Ordering
from penstock.errors import BadFilter, BadInput
from penstock.model.limits import MAX_WAIT_MS
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.broker.waits import calm, within

if TYPE_CHECKING:
    from penstock import Delivery

pytestmark = pytest.mark.timeout(60)

RED = "colour = 'red'"
BLUE = "colour = 'blue'"


async def paint(q: Broker, *colours: str, topic: str = "orders") -> None:
    batch = [NewMessage(colour.encode(), headers={"colour": colour}) for colour in colours]
    await q.publish_batch(topic, batch)


async def arrive(q: Broker, clock: FakeClock, *colours: str, topic: str = "orders") -> None:
    """Publish, and let enough time pass for lines with a selector to poll."""
    await paint(q, *colours, topic=topic)
    await calm()
    clock.advance(1_000)
    await calm()


async def waiting(q: Broker, **options: Any) -> asyncio.Task[list[Delivery]]:
    """A waiting claim that has polled and rests."""
    options = {"queue": "orders", "wait_ms": MAX_WAIT_MS, **options}
    task = asyncio.create_task(q.claim(options.pop("queue"), **options))
    await calm()
    assert not task.done()
    return task


def count_claims(q: Broker, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The selectors of the claims that reach the engine from now on."""
    seen: list[str | None] = []
    claim = q.engine.claim

    async def counted(*args: Any) -> list[Delivery]:
        seen.append(None if args[5] is None else args[5].text)
        return await claim(*args)

    monkeypatch.setattr(q.engine, "claim", counted)
    return seen


@law("E1")
async def test_a_bad_filter_is_refused_with_its_position(q: Broker) -> None:
    await paint(q, "red")
    for where in ("colour IN (1, x)", "colour IN (1, x)" + " " * 40_000, 7, ""):
        for queues in ("orders", ["orders"]):
            with pytest.raises(BadFilter) as refused:
                await q.claim(queues, where=where)  # type: ignore[arg-type]
            assert refused.value.field == "where"
    with pytest.raises(BadFilter) as refused:
        await q.claim("orders", where="colour IN (1, x)", wait_ms=5)
    assert (refused.value.position, refused.value.end) == (14, 15)
    assert (await q.stats("orders")).available == 1
    with pytest.raises(BadInput):
        await q.claim("orders", where=RED, limit=0)


async def test_several_queues_each_select(q: Broker, clock: FakeClock) -> None:
    for name in ("a", "b"):
        await q.create_queue(name, f"topic = '{name}'")
        await paint(q, "blue", "red", "red", topic=name)
    found = await q.claim(["a", "b"], limit=3, where=RED)
    assert [(item.queue, item.payload) for item in found] == [
        ("a", b"red"),
        ("a", b"red"),
        ("b", b"red"),
    ]
    task = await waiting(q, queue=["a", "b"], where="colour = 'green'")
    await arrive(q, clock, "green", topic="b")
    assert [item.queue for item in await within(task)] == ["b"]


@law("C5")
async def test_a_waiting_selector_is_woken_and_others_are_not_delayed(
    q: Broker, clock: FakeClock
) -> None:
    await q.create_queue("orders")
    red = await waiting(q, where=RED)
    blue = await waiting(q, where=BLUE)
    anything = await waiting(q)
    await paint(q, "blue")
    await calm()
    # The selectors rest after their first polls; they hold up no other waiter.
    assert [item.payload for item in await within(anything)] == [b"blue"]
    await arrive(q, clock, "blue")
    assert [item.payload for item in await within(blue)] == [b"blue"]
    assert not red.done()
    # A selector that has rested is woken at once.
    clock.advance(100)
    await paint(q, "red")
    assert [item.payload for item in await within(red)] == [b"red"]
    assert not q._waiting._selected


@law("C5")
async def test_waiters_with_one_selector_are_served_in_turn(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders")
    tasks = [await waiting(q, where=RED, consumer=f"c{n}") for n in range(3)]
    await arrive(q, clock, "blue", "red", "blue", "red", "red")
    for task in tasks:
        assert [item.payload for item in await within(task)] == [b"red"]


@law("C5")
async def test_what_becomes_due_wakes_a_selector(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders")
    await q.publish("orders", b"late", headers={"colour": "red"}, delay_ms=5_000)
    task = await waiting(q, where=RED)
    clock.advance(5_000)
    assert [item.payload for item in await within(task)] == [b"late"]


async def test_a_stream_of_others_makes_no_selector_spin(
    q: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.create_queue("orders")
    task = await waiting(q, where=RED)
    seen = count_claims(q, monkeypatch)
    for _ in range(50):
        await paint(q, "blue")
        await calm()
    # The clock stands still, so there is one poll at most.
    assert seen == []
    clock.advance(10)
    await calm()
    assert seen == [RED]
    for _ in range(20):
        await paint(q, "blue")
        clock.advance(1)
        await calm()
    assert len(seen) == 3
    await paint(q, "red")
    clock.advance(10)
    assert [item.payload for item in await within(task)] == [b"red"]


async def test_the_rate_is_shared_by_all_selectors(
    q: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.create_queue("orders")
    tasks = [await waiting(q, where=f"number = {number}") for number in range(20)]
    seen = count_claims(q, monkeypatch)
    for _ in range(1_000):
        clock.advance(1)
        await paint(q, "blue")
        await asyncio.sleep(0)
    await calm()
    # A second, at 100 polls per second.
    assert len(seen) <= 120
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not q._waiting._selected


@law("T1")
async def test_tenants_have_equal_shares_of_the_rate(q: Broker, clock: FakeClock) -> None:
    """Hundreds of selectors of one tenant delay those of another by one more rest."""
    other = q.for_tenant("other")
    for broker in (q, other):
        await broker.create_queue("orders")
    loud = [await waiting(other, where=f"number = {number}") for number in range(300)]
    task = await waiting(q, where=RED)
    await paint(q, "red")
    clock.advance(20)
    assert [item.payload for item in await within(task)] == [b"red"]
    for one in loud:
        one.cancel()
    await asyncio.gather(*loud, return_exceptions=True)
    assert not q._waiting._selected


async def test_nothing_polls_while_nothing_happens(
    q: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await paint(q, "blue")
    task = await waiting(q, where=RED)
    seen = count_claims(q, monkeypatch)
    clock.advance(MAX_WAIT_MS - 1)
    await calm()
    assert seen == []
    clock.advance(1)
    assert await within(task) == []


async def test_a_selector_waits_in_an_ordered_queue(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", ordering=Ordering.PARTITION)
    await q.publish("orders", b"blue", headers={"colour": "blue"}, partition_key="a")
    task = await waiting(q, where=RED, consumer="me")
    await q.publish("orders", b"hidden", headers={"colour": "red"}, partition_key="a")
    clock.advance(20)
    await calm()
    assert not task.done()
    await q.publish("orders", b"red", headers={"colour": "red"}, partition_key="b")
    clock.advance(20)
    assert [item.payload for item in await within(task)] == [b"red"]


async def test_closing_the_store_ends_the_wait(q: Broker) -> None:
    await q.create_queue("orders")
    task = await waiting(q, where=RED)
    await q.close()
    with pytest.raises(Exception, match="closed"):
        await within(task)
