"""A large publish is routed in slices, and exactly as if it had been in one go (R1, P2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.model.delivery import Ack
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions, Outgoing
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

TENANT = "t"
#: Filters that are evaluated for every message, and messages: too many for one go.
FILTERS = 50
MESSAGES = 300


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    opened = await open_engine("memory://", EngineOptions(clock=FakeClock()))
    # A slice is one step, so that everything that can happen between two slices does.
    opened.turns.slice_s = 0.0
    for n in range(FILTERS):
        await put(opened, f"scan{n}", f"amount > {n * 10}")
    yield opened
    await opened.close()


async def put(engine: Engine, name: str, filter: str, start: Start | None = None) -> None:
    await engine.put_queue(TENANT, name, QueuePolicy(filter=filter), start or Start())


def batch() -> list[NewMessage]:
    return [NewMessage(b"%d" % n, {"amount": n}) for n in range(MESSAGES)]


async def depth(engine: Engine, queue: str) -> int:
    return (await engine.stats(TENANT, queue)).depth


async def test_other_calls_come_between_the_slices(engine: Engine) -> None:
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", batch()))
    await asyncio.sleep(0)
    for _ in range(10):
        await engine.log_end("other")
        await asyncio.sleep(0)
        assert not publishing.done()
    assert await engine.log_end(TENANT) == 0
    await publishing
    assert engine.turns.granted >= MESSAGES
    assert await depth(engine, "scan0") == MESSAGES - 1
    assert await depth(engine, "scan20") == MESSAGES - 201


async def test_a_small_publish_has_no_slices(engine: Engine) -> None:
    await engine.publish(TENANT, "t", batch()[:10])
    assert engine.turns.granted == 0


@law("R1")
async def test_queues_that_change_between_the_slices(engine: Engine) -> None:
    """The publish goes to the queues that are there when it is stored, by their filters then."""
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", batch()))
    for _ in range(MESSAGES // 2):
        await asyncio.sleep(0)
    assert not publishing.done()
    await put(engine, "new", "amount >= 0")
    await put(engine, "scan1", "amount < 5")
    await engine.delete_queue(TENANT, "scan2")
    await engine.delete_queue(TENANT, "scan3")
    await put(engine, "scan3", "amount = 7")
    assert not publishing.done()
    await publishing
    assert await depth(engine, "new") == MESSAGES
    assert await depth(engine, "scan1") == 5
    assert await depth(engine, "scan3") == 1
    assert await depth(engine, "scan0") == MESSAGES - 1


@law("P2")
async def test_a_cancelled_publish_stores_nothing(engine: Engine) -> None:
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", batch()))
    for _ in range(20):
        await asyncio.sleep(0)
    publishing.cancel()
    await asyncio.wait([publishing])
    granted = engine.turns.granted
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.turns.granted == granted
    assert await engine.log_end(TENANT) == 0
    await engine.publish(TENANT, "t", batch()[:1])
    assert await engine.log_end(TENANT) == 1


async def test_keyed_messages_are_claimed_between_the_slices(engine: Engine) -> None:
    """What a message replaces is decided when it is stored, and what it keeps is routed by."""
    first = NewMessage(b"first", {"amount": 499}, key="k", priority=9)
    await put(engine, "urgent", "priority > 8 AND amount > 0")
    await put(engine, "usual", "priority < 5 AND amount > 0")
    (published,) = (await engine.publish(TENANT, "t", [first])).messages
    again = [NewMessage(b"again", {"amount": 499}, key="k"), *batch()]
    reply = await engine.publish(TENANT, "t", again)
    assert reply.messages[0].replaced
    assert await depth(engine, "urgent") == 1
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", again))
    for _ in range(20):
        await asyncio.sleep(0)
    (delivery,) = await engine.claim(TENANT, "urgent", "c", 1, None)
    assert delivery.message.id == published.id
    reply = await publishing
    assert not reply.messages[0].replaced
    assert await depth(engine, "urgent") == 1
    assert reply.messages[0].id in [
        item.message.id
        for item in (await engine.peek(TENANT, "usual", State.AVAILABLE, None, 1000)).items
    ]


async def test_a_settle_that_publishes_much_is_routed_in_slices(engine: Engine) -> None:
    await engine.publish(TENANT, "t", batch()[:2])
    (delivery,) = await engine.claim(TENANT, "scan0", "c", 1, None)
    before = engine.turns.granted
    reply = await engine.settle(
        TENANT, "scan0", [Ack(delivery.receipt)], [Outgoing("t", batch()), Outgoing("u", batch())]
    )
    assert reply.outcomes[0].ok
    assert len(reply.published) == 2 * MESSAGES
    assert engine.turns.granted - before >= 2 * MESSAGES
    assert await depth(engine, "scan1") == 2 * (MESSAGES - 11)


async def test_a_queue_that_is_behind_takes_it_and_none_is_created(engine: Engine) -> None:
    await engine.publish(TENANT, "old", batch()[:1])
    for n in range(FILTERS):
        await put(engine, f"late{n}", f"amount > -{n + 1}", Start(Start.EARLIEST))
    await engine.publish(TENANT, "t", [NewMessage(b"", {"amount": 0})] * MESSAGES)
    names = [info.name for info in await engine.list_queues(TENANT)]
    assert "t" not in names


async def test_a_queue_that_starts_at_a_time_finds_what_was_published_meanwhile() -> None:
    """The publish that was routed ahead is older than the entries before its segment."""
    clock = FakeClock(1_000)
    engine = await KeyValueEngine.open(
        MemoryAdapter(),
        EngineOptions(clock=clock, auto_create=False),
        slice_s=0.0,
        inline_evaluations=0,
        segment_entries=1,
    )
    policy = QueuePolicy(filter="topic = 't' AND amount > 1")
    await engine.put_queue("a", "q", policy, Start())
    slow = asyncio.ensure_future(engine.publish("a", "t", [NewMessage(b"slow")]))
    await asyncio.sleep(0)
    clock.advance(100)
    quick = await engine.publish("a", "u", [NewMessage(b"quick")])
    assert (await slow).messages[0].offset > quick.messages[0].offset
    late = await engine.put_queue("a", "late", QueuePolicy(), Start(Start.TIME, 1_050))
    assert late.cursor == quick.messages[0].offset
    await engine.close()
