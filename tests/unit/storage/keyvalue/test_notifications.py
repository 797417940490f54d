"""How often the key-value engine tells its listener, and when; what it tells is conformance."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from penstock.model.delivery import Nack, ReplaySource
from penstock.model.message import NewMessage
from penstock.model.queue import Backoff, Ordering, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.claim import MAX_MOVES
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.listener import Listener
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from penstock.testing.laws import law

T, Q = "t", "q"


class Ear(Listener):
    """Counts how often each queue was said to be ready."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def ready(self, tenant: str, queue: str) -> None:
        assert tenant == T
        self.counts[queue] += 1

    def heard(self) -> dict[str, int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def engine(clock: FakeClock) -> AsyncIterator[KeyValueEngine]:
    engine = await KeyValueEngine.open(FaultyAdapter(), EngineOptions(clock=clock), slice_size=2)
    for name, ordering in ((Q, Ordering.NONE), ("ordered", Ordering.PARTITION)):
        policy = QueuePolicy(ordering=ordering, backoff=Backoff(0, 0))
        await engine.put_queue(T, name, policy, Start())
    yield engine
    await engine.close()


def listen(engine: KeyValueEngine) -> Ear:
    ear = engine.listener = Ear()
    return ear


def mixed(now: int) -> list[NewMessage]:
    """Messages that are routed one by one, in every way there is."""
    return [
        *(NewMessage(b"", deliver_at=now + 1000 - number) for number in range(10)),
        *(NewMessage(b"", expires_at=now + 1000 - number) for number in range(10)),
        *(NewMessage(b"", key=f"k{number % 2}") for number in range(10)),
        *(NewMessage(b"", partition_key=str(number)) for number in range(10)),
        NewMessage(b""),
    ]


async def test_a_publish_is_told_once_a_queue(engine: KeyValueEngine, clock: FakeClock) -> None:
    ear = listen(engine)
    await engine.publish(T, "topic", mixed(clock.now()))
    assert ear.heard() == {Q: 1, "ordered": 1}
    await engine.publish(T, "topic", [NewMessage(b"")] * 1000)
    assert ear.heard() == {Q: 1, "ordered": 1}


async def test_a_settle_is_told_once_a_queue(engine: KeyValueEngine) -> None:
    await engine.publish(T, "topic", [NewMessage(b"")] * 20)
    claimed = await engine.claim(T, Q, "c", 20, None)
    ear = listen(engine)
    await engine.settle(T, Q, [Nack(delivery.receipt) for delivery in claimed])
    assert ear.heard() == {Q: 1}


async def test_it_is_told_before_the_commit(engine: KeyValueEngine) -> None:
    """A claim's own reply waits for a commit that follows, so there is no reason to wait twice."""
    ear = listen(engine)
    publishing = asyncio.ensure_future(engine.publish(T, "topic", [NewMessage(b"")]))
    await asyncio.sleep(0)
    assert not publishing.done()
    assert ear.heard() == {Q: 1, "ordered": 1}
    await publishing


async def test_verbs_of_one_commit_are_told_apart(engine: KeyValueEngine) -> None:
    """Between the two somebody may have taken what the first one brought."""
    ear = listen(engine)
    await asyncio.gather(
        engine.publish(T, "topic", [NewMessage(b"")]),
        engine.publish(T, "topic", [NewMessage(b"")]),
    )
    assert ear.counts["ordered"] == 2


async def test_a_bulk_verb_tells_again_after_others_had_their_turn(
    engine: KeyValueEngine,
) -> None:
    await engine.publish(T, "topic", [NewMessage(b"")] * 6)
    await engine.purge(T, Q, State.AVAILABLE, None, 9)
    ear = listen(engine)
    replaying = asyncio.ensure_future(engine.replay(T, Q, ReplaySource.LOG, None, 9))
    claimed = []
    while not replaying.done():
        await asyncio.sleep(0)
        if ear.heard():
            claimed += await engine.claim(T, Q, "c", 9, None)
    assert (await replaying).count == 6
    assert len(claimed) == 6


@law("C5")
async def test_more_timers_than_a_claim_takes_are_still_due(
    engine: KeyValueEngine, clock: FakeClock
) -> None:
    due_at = clock.now() + 10
    batch = [NewMessage(b"", deliver_at=due_at)] * (MAX_MOVES + 1)
    await engine.publish(T, "topic", batch)
    clock.advance(10)
    assert len(await engine.claim(T, Q, "c", len(batch), None)) == MAX_MOVES
    assert await engine.next_due(T, Q) == due_at
    assert len(await engine.claim(T, Q, "c", len(batch), 50_000)) == 1
    assert await engine.next_due(T, Q) == due_at + 30_000


async def test_asking_for_the_next_due_time_waits_for_nothing(engine: KeyValueEngine) -> None:
    publishing = asyncio.ensure_future(engine.publish(T, "topic", [NewMessage(b"")]))
    await asyncio.sleep(0)
    with pytest.raises(StopIteration) as answer:
        engine.next_due(T, Q).send(None)
    assert answer.value.value is None
    await publishing


class Broken(Listener):
    """Raises whatever it hears."""

    def ready(self, tenant: str, queue: str) -> None:
        raise RuntimeError("ready")

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        raise RuntimeError("lapsed")


@law("S3")
async def test_a_listener_that_raises_breaks_no_verb(
    engine: KeyValueEngine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine.listener = Broken()
    await engine.publish(T, "topic", [NewMessage(b"")] * 2)
    assert len(await engine.claim(T, Q, "c", 2, None)) == 2
    clock.advance(30_000)
    assert (await engine.sweep()).lapsed == 2
    assert (await engine.stats(T, Q)).available == 2
    assert "RuntimeError: ready" in caplog.text
    assert "RuntimeError: lapsed" in caplog.text
