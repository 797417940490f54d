"""Dead-letter copies are in the commit that ends their deliveries, whatever that commit loses."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Delivery, Nack, Reject
from penstock.model.message import NewMessage
from penstock.model.queue import Backoff, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import payload_key
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from penstock.testing.laws import law

T, Q, D = "t", "q", "d"
POLICY = QueuePolicy(
    filter="topic = 'orders'",
    max_attempts=1,
    backoff=Backoff(0, 0),
    dead_letter_topic="dead",
    dead_letter_expired=True,
)
LEASE_MS = 1_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def opened(adapter: FaultyAdapter, clock: FakeClock) -> KeyValueEngine:
    """A store in which every verb of more than two steps takes several turns."""
    options = EngineOptions(clock=clock)
    return await KeyValueEngine.open(adapter, options, slice_size=2, step_size=2, slice_s=0.0)


@pytest.fixture
async def disk() -> FaultyAdapter:
    return FaultyAdapter()


@pytest.fixture
async def engine(disk: FaultyAdapter, clock: FakeClock) -> AsyncIterator[KeyValueEngine]:
    found = await opened(disk, clock)
    await found.put_queue(T, D, QueuePolicy(filter="topic = 'dead'"), Start())
    await found.put_queue(T, Q, POLICY, Start())
    yield found
    await found.close()


async def publish(engine: KeyValueEngine, count: int, expires_at: int | None = None) -> None:
    messages = [NewMessage(b"%d" % n, expires_at=expires_at) for n in range(count)]
    await engine.publish(T, "orders", messages)


async def claim(engine: KeyValueEngine, count: int) -> list[Delivery]:
    return await engine.claim(T, Q, "c", count, LEASE_MS)


async def counts(engine: KeyValueEngine) -> tuple[int, int]:
    """The deliveries that ended, and the copies."""
    ended, copied = await engine.stats(T, Q), await engine.stats(T, D)
    return ended.failed + ended.expired, copied.available


async def check_every_loss(disk: FaultyAdapter, clock: FakeClock, least: int) -> None:
    """After every commit that the disk may end with, each ended delivery has its copy."""
    seen = set()
    for writes in range(len(disk.journal) + 1):
        engine = await opened(disk.survivor(writes), clock)
        if {Q, D} <= {info.name for info in await engine.list_queues(T)}:
            ended, copied = await counts(engine)
            assert ended == copied
            seen.add(ended)
        await engine.close()
    assert len(seen) >= least


@law("S3")
async def test_a_long_settle(engine: KeyValueEngine, disk: FaultyAdapter, clock: FakeClock) -> None:
    await publish(engine, 9)
    claimed = await claim(engine, 9)
    await engine.settle(T, Q, [Reject(delivery.receipt) for delivery in claimed])
    assert await counts(engine) == (9, 9)
    await check_every_loss(disk, clock, 2)


@law("S3")
@pytest.mark.parametrize("verb", ["sweep", "claim"])
@pytest.mark.parametrize("way", ["lapse", "expire"])
async def test_slices(
    engine: KeyValueEngine, disk: FaultyAdapter, clock: FakeClock, verb: str, way: str
) -> None:
    await publish(engine, 90, clock.now() + LEASE_MS if way == "expire" else None)
    if way == "lapse":
        await claim(engine, 90)
    clock.advance(LEASE_MS)
    if verb == "sweep":
        await engine.sweep()
    else:
        assert await claim(engine, 1) == []
    assert await counts(engine) == (90, 90)
    # A sweep moves two at a time, a claim forty.
    await check_every_loss(disk, clock, 40 if verb == "sweep" else 3)


@law("X1")
@pytest.mark.parametrize("count", [3, 8])
async def test_a_payload_that_cannot_be_read(
    engine: KeyValueEngine, disk: FaultyAdapter, clock: FakeClock, count: int
) -> None:
    """Its delivery stays in flight. Those before it have ended, and have their copies."""
    await publish(engine, count)
    claimed = await claim(engine, count)
    bad = payload_key(claimed[1].message.offset)
    disk.damage(lambda key: key == bad)
    settlements = [Nack(delivery.receipt, "bad") for delivery in claimed]
    with pytest.raises(StoreCorrupt):
        await engine.settle(T, Q, settlements)
    assert await counts(engine) == (1, 1)
    await engine.publish(T, "orders", [NewMessage(b"more")])
    assert (await engine.stats(T, Q)).in_flight == count - 1
    clock.advance(LEASE_MS)
    with pytest.raises(StoreCorrupt):
        await engine.sweep()
    ended, copied = await counts(engine)
    assert ended == copied
    disk.damage(None)
    await engine.settle(T, Q, settlements)
    await engine.sweep()
    assert await counts(engine) == (count, count)
    page = await engine.peek(T, D, State.AVAILABLE, None, 100, None, payloads=True)
    assert sorted(item.payload or b"" for item in page.items) == [b"%d" % n for n in range(count)]
    await check_every_loss(disk, clock, 2)
