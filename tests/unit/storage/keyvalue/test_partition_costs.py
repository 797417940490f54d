"""What ordered queues with many partitions cost: counted in partitions, never in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.model.delivery import Ack
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.model.message import NewMessage
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue import partitions as module
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.partition import Partition
from penstock.storage.keyvalue.partitions import Partitions
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

T, Q = "t", "q"
SLICE = 50


class Looked:
    """How many partitions were looked at, or changed hands."""

    count = 0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def engine(clock: FakeClock) -> AsyncIterator[KeyValueEngine]:
    options = EngineOptions(clock=clock)
    engine = await KeyValueEngine.open(MemoryAdapter(), options, slice_size=SLICE)
    await engine.put_queue(T, Q, QueuePolicy(ordering=Ordering.PARTITION), Start())
    yield engine
    await engine.close()


async def publish(engine: KeyValueEngine, count: int, messages: int = 1) -> None:
    """So many messages to each of so many partitions."""
    names = [f"p{number:06}" for number in range(count)]
    for _ in range(messages):
        await engine.publish(T, Q, [NewMessage(b"", partition_key=name) for name in names])


def state(engine: KeyValueEngine) -> Partitions:
    partitions = engine._core.tenant(T).queue(Q).partitions
    assert partitions is not None
    return partitions


def owned_by(engine: KeyValueEngine, consumer: str) -> list[str]:
    return [item.name for item in state(engine).owned_by(consumer, None, 10_000)]


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looked]:
    looked = Looked()
    next_of, free, give = Partitions.next_of, Partitions._free_from, Partitions._give

    def counted_next(self: Partitions, partition: Partition) -> int | None:
        looked.count += 1
        return next_of(self, partition)

    def counted_free(self: Partitions, *args: Any) -> tuple[int, bool]:
        looked.count += 1
        return free(self, *args)

    def counted_give(self: Partitions, *args: Any) -> None:
        looked.count += 1
        give(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Partitions, "next_of", counted_next)
        patch.setattr(Partitions, "_free_from", counted_free)
        patch.setattr(Partitions, "_give", counted_give)
        yield looked


async def most_a_turn(verb: Coroutine[Any, Any, object], looked: Looked) -> int:
    """Run a verb; returns the most that it looked at between two awaits."""
    most = 0

    class Turns:
        def __await__(self) -> Generator[Any, Any, None]:
            nonlocal most
            while True:
                before = looked.count
                try:
                    waits_for = verb.send(None)
                except StopIteration:
                    return
                finally:
                    most = max(most, looked.count - before)
                yield waits_for

    await Turns()
    return most


@pytest.mark.parametrize("partitions", [100, 3_000])
async def test_a_claim_looks_at_what_it_takes_however_many_partitions_there_are(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    await publish(engine, partitions, messages=2)
    await engine.join(T, Q, "c")
    with counting(monkeypatch) as looked:
        for _ in range(10):
            (taken,) = await engine.claim(T, Q, "c", 1, None)
            await engine.settle(T, Q, [Ack(taken.receipt)])
    assert looked.count <= 3 * 10


@pytest.mark.parametrize("partitions", [100, 3_000])
async def test_a_publish_looks_at_few_partitions_and_leaves_few_to_the_claim(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    await publish(engine, partitions)
    await engine.join(T, Q, "c")
    taken = await engine.claim(T, Q, "c", partitions, None)
    assert len(taken) == partitions
    with counting(monkeypatch) as looked:
        await publish(engine, partitions)
        assert looked.count <= 2 * partitions
        looked.count = 0
        assert await engine.claim(T, Q, "c", 1, None) == []
        assert looked.count <= 2 * SLICE


async def test_partitions_change_hands_in_slices(
    engine: KeyValueEngine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(engine, 1_000)
    with counting(monkeypatch) as looked:
        assert await most_a_turn(engine.join(T, Q, "a"), looked) <= 3 * SLICE
        assert len(owned_by(engine, "a")) == 1_000
        await engine.join(T, Q, "b")
        assert await most_a_turn(engine.join(T, Q, "a"), looked) <= 3 * SLICE
        assert len(owned_by(engine, "a")) == 500
        assert await most_a_turn(engine.claim(T, Q, "b", 1, None), looked) <= 3 * SLICE
        assert len(owned_by(engine, "b")) == 500
        assert await most_a_turn(engine.leave(T, Q, "b"), looked) <= SLICE
        assert len(state(engine)._free) == 500
        clock.advance(CONSUMER_LEASE_MS)
        assert await most_a_turn(engine.claim(T, Q, "b", 1, None), looked) <= 3 * SLICE
        assert len(owned_by(engine, "b")) == 1_000


async def test_a_consumer_that_leaves_takes_nothing_along_when_its_queue_is_replaced(
    engine: KeyValueEngine,
) -> None:
    await publish(engine, 10 * SLICE)
    await engine.join(T, Q, "a")
    leaving = asyncio.ensure_future(engine.leave(T, Q, "a"))
    await asyncio.sleep(0)  # The first slice.
    assert 0 < len(state(engine)._free) < 10 * SLICE
    await asyncio.gather(
        engine.delete_queue(T, Q),
        engine.put_queue(T, Q, QueuePolicy(ordering=Ordering.PARTITION), Start()),
        publish(engine, 1),
        engine.join(T, Q, "a"),
    )
    await leaving
    assert owned_by(engine, "a") == ["p000000"]


@law("O1")
async def test_a_consumer_comes_back_while_its_partitions_are_being_freed(
    engine: KeyValueEngine, clock: FakeClock
) -> None:
    count = 10 * SLICE
    await publish(engine, count)
    held = await engine.claim(T, Q, "a", count, 10 * CONSUMER_LEASE_MS)
    clock.advance(CONSUMER_LEASE_MS)
    joining = asyncio.ensure_future(engine.join(T, Q, "b"))
    await asyncio.sleep(0)  # Some of the partitions of the first a are free now, not all.
    assert 0 < len(state(engine)._free) < count
    again = await engine.claim(T, Q, "a", count, None)
    await joining
    for name in "ab":
        await engine.join(T, Q, name)
    assert [len(owned_by(engine, name)) for name in "ab"] == [count // 2, count // 2]
    reply = await engine.settle(T, Q, [Ack(item.receipt) for item in held])
    assert not any(outcome.ok for outcome in reply.outcomes)
    reply = await engine.settle(T, Q, [Ack(item.receipt) for item in again])
    assert sum(outcome.ok for outcome in reply.outcomes) == len(again)


async def test_an_idle_partition_costs_nothing(engine: KeyValueEngine) -> None:
    await publish(engine, 200)
    taken = await engine.claim(T, Q, "c", 200, None)
    await engine.settle(T, Q, [Ack(item.receipt) for item in taken])
    partitions = state(engine)
    (owner,) = partitions._owners.values()
    kept = (
        partitions.by_name,
        partitions._free,
        partitions._windows,
        owner.names,
        owner.busy,
        owner._ready,
        owner._changed,
    )
    assert [len(what) for what in kept] == [0] * len(kept)
    assert partitions._windowed == 0


async def test_what_is_out_of_date_in_the_heap_of_a_consumer_is_bounded(
    engine: KeyValueEngine,
) -> None:
    """Deliveries that leave from the middle, as when another consumer takes their partitions."""
    await publish(engine, 500)
    while len(owned_by(engine, "a")) < 500:
        await engine.join(T, Q, "a")
    assert len(await engine.claim(T, Q, "a", 1, None)) == 1
    while any(len(owned_by(engine, name)) != 125 for name in "abcd"):
        for name in "dcba":
            await engine.join(T, Q, name)
    assert len(await engine.claim(T, Q, "a", 1, None)) == 1
    owner = state(engine)._owners["a"]
    assert len(owner._heap) <= 2 * len(owner._ready) + 64 < 500
    rest = await engine.claim(T, Q, "a", 500, None)
    assert len(rest) == 123
    assert [item.message.id for item in rest] == sorted(item.message.id for item in rest)


@law("C4")
async def test_windows_of_many_partitions_are_dropped_and_read_again(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_WINDOWS", 20)
    await publish(engine, 30, messages=4)
    partitions = state(engine)
    assert partitions._windowed <= 20
    seen: dict[str | None, list[int]] = {}
    for _ in range(4):
        taken = await engine.claim(T, Q, "c", 100, None)
        assert len(taken) == 30
        for item in taken:
            seen.setdefault(item.message.partition_key, []).append(item.message.id)
        await engine.settle(T, Q, [Ack(item.receipt) for item in taken])
        assert partitions._windowed <= 20
    assert all(ids == sorted(ids) for ids in seen.values())
    assert sum(map(len, seen.values())) == 120


async def test_a_change_of_concurrency_looks_at_no_partition_by_itself(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next claim does, in slices, and hands out what the new policy allows."""
    count = 10 * SLICE
    await publish(engine, count, messages=2)
    await engine.claim(T, Q, "anna", count, None)
    policy = QueuePolicy(ordering=Ordering.PARTITION, partition_concurrency=2)
    with counting(monkeypatch) as looked:
        await engine.put_queue(T, Q, policy, Start())
        assert looked.count == 0
        most = await most_a_turn(engine.claim(T, Q, "anna", 1, None), looked)
        assert count <= looked.count
        assert most <= SLICE + 2
    taken = await engine.claim(T, Q, "anna", count, None)
    assert len(taken) == count - 1
    assert [item.message.id for item in taken] == sorted(item.message.id for item in taken)
