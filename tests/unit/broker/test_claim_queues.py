"""A claim of several queues: order, shares, limits, waiting, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Broker
from penstock.broker.claim_queues import FairTurns
from penstock.errors import BadInput, BadName, UnknownQueue
from penstock.model.delivery import Delivery, Release
from penstock.model.states import State
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.broker.conftest import Refuses


async def fill(q: Broker, **counts: int) -> None:
    """Create queues and publish so many messages to each."""
    for name, count in counts.items():
        await q.create_queue(name, f"topic = '{name}'")
        for _ in range(count):
            await q.publish(name, b"x")


def names(deliveries: list[Any]) -> list[str]:
    return [delivery.queue for delivery in deliveries]


async def test_the_given_order_uses_later_queues_only_for_the_rest(q: Broker) -> None:
    await fill(q, a=2, b=3)
    assert names(await q.claim(["a", "b"], limit=1)) == ["a"]
    assert names(await q.claim(["a", "b"], limit=3)) == ["a", "b", "b"]
    assert names(await q.claim(("a", "b"), limit=3)) == ["b"]
    assert await q.claim(["a", "b"], limit=3) == []


async def test_a_fair_claim_of_one_gives_every_queue_its_turn(q: Broker) -> None:
    await fill(q, a=9, b=9, c=9)
    claimed = [names(await q.claim(["a", "b", "c"], order="fair")) for _ in range(6)]
    assert claimed == [["a"], ["b"], ["c"]] * 2


async def test_another_list_of_queues_does_not_disturb_the_turns(q: Broker) -> None:
    await fill(q, a=9, b=9, c=9, d=9)
    found: list[str] = []
    for _ in range(4):
        found += names(await q.claim(["a", "b"], order="fair"))
        found += names(await q.claim(["c", "d"], order="fair"))
    assert sorted(found) == ["a", "a", "b", "b", "c", "c", "d", "d"]


async def test_a_fair_claim_shares_its_limit(q: Broker) -> None:
    await fill(q, a=9, b=9, c=1)
    found = names(await q.claim(["a", "b", "c"], limit=9, order="fair"))
    assert (found.count("c"), len(found)) == (1, 9)
    assert min(found.count("a"), found.count("b")) >= 3


@pytest.mark.parametrize("order", ["given", "fair"])
@pytest.mark.parametrize("limit", [1, 2, 5, 7, 100])
async def test_the_limit_counts_all_queues(q: Broker, order: Any, limit: int) -> None:
    await fill(q, a=3, b=0, c=4)
    found = await q.claim(["a", "b", "c"], limit=limit, order=order)
    assert len(found) == min(limit, 7)
    assert len({delivery.receipt for delivery in found}) == len(found)


def test_turns_are_remembered_for_a_limited_number_of_lists() -> None:
    turns = FairTurns()
    for number in range(5_000):
        assert turns.rotated((f"a{number}", "b"))[1] == "b"
    assert turns.rotated(("a4999", "b")) == ("b", "a4999")
    assert turns.rotated(("a0", "b")) == ("a0", "b")


@law("E1")
@pytest.mark.parametrize(
    "queues, kind, limit",
    [
        ([], BadInput, 1),
        (["a"] * 2, BadInput, None),
        ([f"a{n}" for n in range(101)], BadInput, 100),
        (["a", "no good"], BadName, 128),
        (["a", 7], BadName, 128),
        ({"a"}, BadName, 128),
        (7, BadName, 128),
    ],
)
async def test_bad_queues(
    q: Broker, refuses: Refuses, queues: Any, kind: type[BadInput], limit: int | None
) -> None:
    field = "queues" if isinstance(queues, list) else "queue"
    await refuses(q.claim(queues), kind, field, limit)


@law("E1")
@pytest.mark.parametrize("queues", ["a", ["a", "b"]])
@pytest.mark.parametrize("order", ["random", None, 7])
async def test_a_bad_order(q: Broker, refuses: Refuses, queues: Any, order: Any) -> None:
    await refuses(q.claim(queues, order=order), BadInput, "order", None)


async def test_an_unknown_queue_refuses_the_claim_before_anything_is_granted(q: Broker) -> None:
    await fill(q, a=1)
    with pytest.raises(UnknownQueue):
        await q.claim(["a", "missing"], limit=2)
    assert len((await q.peek("a", State.AVAILABLE)).items) == 1


async def test_a_paused_queue_hands_out_nothing(q: Broker) -> None:
    await fill(q, a=1, b=1)
    await q.pause("a")
    assert names(await q.claim(["a", "b"], limit=2)) == ["b"]


async def test_dead_letters_may_be_claimed_with_others(q: Broker) -> None:
    await fill(q, a=2)
    (first,) = await q.claim("a")
    await q.reject(first, "broken")
    assert names(await q.claim(["a.dlq", "a"], limit=2)) == ["a.dlq", "a"]


@law("C5")
@pytest.mark.parametrize("woken_by", ["a", "b", "c"])
async def test_a_wait_is_ended_by_any_queue(q: Broker, woken_by: str) -> None:
    await fill(q, a=0, b=0, c=0)
    waiting = asyncio.ensure_future(q.claim(["a", "b", "c"], limit=5, wait_ms=30_000))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    await q.publish(woken_by, b"x")
    assert names(await waiting) == [woken_by]


async def test_a_wait_that_several_queues_end_is_granted_no_more_than_the_limit(q: Broker) -> None:
    await fill(q, a=0, b=0)
    waiting = asyncio.ensure_future(q.claim(["a", "b"], limit=1, wait_ms=30_000))
    for _ in range(50):
        await asyncio.sleep(0)
    await asyncio.gather(*[q.publish(topic, b"x") for topic in ("a", "b", "b", "a")])
    assert len(await waiting) == 1
    assert len(await q.claim(["a", "b"], limit=9)) == 3


@law("C1")
async def test_a_cancelled_wait_is_granted_nothing(q: Broker) -> None:
    await fill(q, a=0, b=0)
    for turns in range(40):
        waiting = asyncio.ensure_future(q.claim(["a", "b"], limit=2, wait_ms=30_000))
        for _ in range(30):
            await asyncio.sleep(0)
        await asyncio.gather(q.publish("a", b"x"), q.publish("b", b"x"))
        for _ in range(turns):
            await asyncio.sleep(0)
        granted = waiting.done() and names(waiting.result())
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for _ in range(60):
            await asyncio.sleep(0)
        left = await q.claim(["a", "b"], limit=9)
        assert len(left) + len(granted or []) == 2, f"after {turns} turns"


@law("C2")
async def test_a_wait_that_ends_during_a_claim_returns_what_it_was_granted(
    q: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(q, a=0, b=0)
    waiting = asyncio.ensure_future(q.claim(["a", "b"], wait_ms=1_000))
    for _ in range(50):
        await asyncio.sleep(0)
    claim, may_end = q.engine.claim, asyncio.Event()

    async def slow_claim(*args: Any) -> list[Delivery]:
        granted = await claim(*args)
        try:
            await may_end.wait()  # As for a commit.
        except asyncio.CancelledError:
            await q.engine.settle(args[0], args[1], [Release(one.receipt) for one in granted])
            raise
        return granted

    monkeypatch.setattr(q.engine, "claim", slow_claim)
    await q.publish("b", b"x")
    for _ in range(50):
        await asyncio.sleep(0)
    clock.advance(1_000)  # The wait in the line of ``a`` is over.
    for _ in range(50):
        await asyncio.sleep(0)
    may_end.set()
    assert names(await waiting) == ["b"]


async def test_a_queue_that_is_deleted_ends_the_wait_with_its_error(q: Broker) -> None:
    await fill(q, a=0, b=0)
    waiting = asyncio.ensure_future(q.claim(["a", "b"], wait_ms=30_000))
    for _ in range(50):
        await asyncio.sleep(0)
    await q.delete_queue("b")
    with pytest.raises(UnknownQueue):
        await waiting


async def test_a_caller_that_stops_waiting_is_granted_nothing(tmp_path: Path) -> None:
    async with penstock.open(f"rocksdb://{tmp_path}/store") as q:
        for name in ("a", "b"):
            await q.create_queue(name, f"topic = '{name}'")
        for turns in range(12):
            await q.publish("a", b"x")
            waiting = asyncio.ensure_future(q.claim(["a", "b"], wait_ms=5_000))
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            if waiting.cancelled():
                (delivery,) = await q.claim("a", wait_ms=5_000)
            else:
                (delivery,) = waiting.result()
            await q.ack(delivery)
