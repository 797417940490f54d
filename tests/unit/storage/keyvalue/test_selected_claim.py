"""Claims with a selector: bounded, in slices, and deep backlogs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.filters import parse
from penstock.filters.filter import Selection
from penstock.model.delivery import Nack
from penstock.model.limits import MAX_CLAIM_SCAN
from penstock.model.message import Message, NewMessage
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.storage import claim_selector
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.listener import Listener
from penstock.testing.clock import FakeClock

T, Q = "t", "q"
RED = parse("colour = 'red'")


@pytest.fixture
async def engine() -> AsyncIterator[KeyValueEngine]:
    opened = await KeyValueEngine.open(MemoryAdapter(), EngineOptions(clock=FakeClock()))
    yield opened
    await opened.close()


async def fill(engine: KeyValueEngine, count: int, **policy: Any) -> list[int]:
    """Publish that many blue messages, each to its own partition, and a red one."""
    await engine.put_queue(T, Q, QueuePolicy(filter="TRUE", **policy), Start())
    colours = ["blue"] * count + ["red"]
    batch = [
        NewMessage(b"", headers={"colour": colour}, partition_key=f"p{number:05}")
        for number, colour in enumerate(colours)
    ]
    return [item.id for item in (await engine.publish(T, "orders", batch)).messages]


class Counting(Selection):
    """A filter that counts its evaluations."""

    def __init__(self) -> None:
        self.count = 0

    def matches(self, message: Message) -> bool:
        self.count += 1
        return RED.matches(message)


class Heard(Listener):
    """Remembers which queues were reported as ready."""

    def __init__(self) -> None:
        self.queues: list[str] = []

    def ready(self, tenant: str, queue: str) -> None:
        del tenant
        self.queues.append(queue)


async def ids(engine: KeyValueEngine, limit: int, where: Any = RED) -> list[int]:
    return [item.message.id for item in await engine.claim(T, Q, "c", limit, None, where)]


@pytest.mark.parametrize("others", [MAX_CLAIM_SCAN - 1, MAX_CLAIM_SCAN])
async def test_a_scan_of_partitions_ends_at_its_bound(engine: KeyValueEngine, others: int) -> None:
    numbers = await fill(engine, others, ordering=Ordering.PARTITION)
    found = await ids(engine, 2)
    assert found == (numbers[-1:] if others < MAX_CLAIM_SCAN else [])


@pytest.mark.parametrize("ordering", Ordering)
async def test_no_delivery_is_evaluated_twice_however_many_slices_it_takes(
    engine: KeyValueEngine, ordering: Ordering, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = await fill(engine, 300, ordering=ordering)
    granted = engine.turns.granted
    engine.turns.slice_s = 0.0
    where = Counting()
    assert await ids(engine, 1, where) == numbers[-1:]
    assert where.count == 301
    assert engine.turns.granted - granted >= 300
    # The bound holds for all slices together.
    monkeypatch.setattr(claim_selector, "MAX_CLAIM_SCAN", 100)
    where = Counting()
    assert await ids(engine, 1, where) == []
    assert where.count == 100


async def test_a_claim_does_not_hand_out_copies_of_what_it_failed(engine: KeyValueEngine) -> None:
    await fill(engine, 3, max_attempts=5, dead_letter_topic="dead")
    (first,) = await engine.claim(T, Q, "c", 1, None)
    await engine.settle(T, Q, [Nack(first.receipt, delay_ms=0)])
    lowered = QueuePolicy(filter="TRUE", max_attempts=1, dead_letter_topic="dead")
    await engine.put_queue(T, Q, lowered, Start())
    engine.turns.slice_s = 0.0
    # The queue takes the copy, which is there before the claim comes to its last slice.
    where = parse("partition_key = 'p00000' OR topic = 'dead'")
    assert await ids(engine, 9, where) == []
    (copy,) = await engine.claim(T, Q, "c", 9, None, where)
    assert copy.message.topic == "dead"


async def test_a_match_far_behind_is_found_when_the_buckets_are_on_disk(
    engine: KeyValueEngine,
) -> None:
    """Buckets that were evicted are loaded in order, and entries can be taken out of each."""
    numbers = await fill(engine, 900, bucket_size=1)
    shelf = engine._core.tenant(T).queue(Q).shelf
    shelf.evict(4, engine._core.stage.completed)
    loaded = len(shelf._buckets)
    assert loaded < 20
    assert await ids(engine, 1) == numbers[-1:]
    assert (
        await ids(engine, 3, parse("colour = 'blue' AND partition_key >= 'p00500'"))
        == (numbers[500:503])
    )
    assert await ids(engine, 1000, parse("TRUE")) == numbers[:500] + numbers[503:-1]


async def test_a_claim_that_finds_nothing_changes_and_notifies_nothing(
    engine: KeyValueEngine,
) -> None:
    await fill(engine, 50)
    commits = engine._core.stage.number
    engine.listener = listener = Heard()
    assert await ids(engine, 5, parse("colour = 'green'")) == []
    assert (listener.queues, engine._core.stage.number) == ([], commits)
