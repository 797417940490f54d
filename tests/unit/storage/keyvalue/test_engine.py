"""What only the key-value engine does; what every engine does is the conformance suite's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.errors import CommitFailed, StoreClosed, StoreCorrupt, StoreTooNew
from penstock.model.delivery import Ack, ReplaySource
from penstock.model.limits import Limits
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters import KeyRange, Writes
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import FORMAT_KEY, QueueKeys
from penstock.storage.keyvalue.records import encode_spec
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

HOUR = 3600 * 1000


class Store(MemoryAdapter):
    """A memory adapter that counts its closes and can refuse to write."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0
        self.refuses = False

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        if self.refuses:
            raise OSError("no space left on device")
        super().write(writes, removed, sync)

    def close(self) -> None:
        self.closed += 1


async def _open(
    adapter: MemoryAdapter, clock: FakeClock | None = None, log_retention_ms: int = HOUR
) -> KeyValueEngine:
    options = EngineOptions(
        clock=clock or FakeClock(), limits=Limits(log_retention_ms=log_retention_ms)
    )
    return await KeyValueEngine.open(adapter, options)


async def test_closing_releases_the_store_once() -> None:
    store = Store()
    engine = await _open(store)
    await engine.close()
    await engine.close()
    assert store.closed == 1
    with pytest.raises(StoreClosed):
        await engine.publish("t", "orders", [NewMessage(b"x")])


async def test_a_store_that_cannot_be_opened_is_released() -> None:
    store = Store()
    store.write({FORMAT_KEY: seal(b"\xff\x00\x00\x00")}, [], sync=True)
    with pytest.raises(StoreTooNew):
        await _open(store)
    assert store.closed == 1


@law("P2")
async def test_after_a_refused_commit_nothing_is_answered_from_memory() -> None:
    store = Store()
    engine = await _open(store)
    store.refuses = True
    with pytest.raises(CommitFailed):
        await engine.publish("t", "orders", [NewMessage(b"x")])
    store.refuses = False
    with pytest.raises(CommitFailed):
        await engine.claim("t", "orders", "w", 1, None)
    with pytest.raises(CommitFailed):
        await engine.stats("t", "orders")
    await engine.close()
    assert store.closed == 1
    reopened = await _open(store)
    assert await reopened.list_queues("t") == ()


async def test_a_close_that_cannot_commit_still_releases_the_store() -> None:
    store = Store()
    engine = await _open(store)
    engine._core.stage.put(b"\x01\x01" + bytes(8), b"staged")
    store.refuses = True
    with pytest.raises(CommitFailed):
        await engine.close()
    assert store.closed == 1


async def test_the_backlog_stays_on_disk() -> None:
    """Memory is bounded whatever the depth; claims are exact all the same."""
    store = Store()
    engine = await _open(store)
    await engine.put_queue("t", "orders", QueuePolicy(bucket_size=1), Start())
    for _ in range(10):
        await engine.publish("t", "orders", [NewMessage(b"")] * 10_000)
    (queue,) = engine._core.queues()
    assert len(queue.shelf._buckets) <= 5_000
    claimed = await engine.claim("t", "orders", "w", 1000, None)
    assert [delivery.message.id for delivery in claimed] == list(range(1000))
    await engine.close()


async def test_peek_after_a_lapse_misses_nothing() -> None:
    """0 came back behind 1 and 2, and its bucket was written like that; one page an entry."""
    store, clock = Store(), FakeClock()
    engine = await _open(store, clock)
    await engine.publish("t", "orders", [NewMessage(b"") for _ in range(3)])
    (first,) = await engine.claim("t", "orders", "w", 1, 100)
    clock.advance(first.lease_deadline)
    await engine.sweep()
    await engine.close()
    reopened = await _open(store, clock)
    seen: list[int] = []
    cursor = None
    while True:
        page = await reopened.peek("t", "orders", State.AVAILABLE, None, 1, cursor)
        seen += [item.message.id for item in page.items]
        if page.cursor is None:
            break
        cursor = page.cursor
    await reopened.close()
    assert seen == [0, 1, 2]


async def test_replay_from_a_log_whose_replacement_is_gone() -> None:
    """0 was replaced in a later segment, which retention removed; 1 keeps the first one."""
    clock = FakeClock()
    engine = await _open(MemoryAdapter(), clock, log_retention_ms=1000)
    await engine.put_queue("t", "orders", QueuePolicy(done_retention_s=1), Start())
    await engine.publish("t", "orders", [NewMessage(b"0", key="k"), NewMessage(b"1")])
    clock.advance(HOUR + 1)
    await engine.publish("t", "orders", [NewMessage(b"2", key="k")])
    first, _ = await engine.claim("t", "orders", "w", 2, 12 * HOUR)
    await engine.settle("t", "orders", [Ack(first.receipt)])
    clock.advance(120_000)
    assert (await engine.sweep()).entries_removed == 1
    reply = await engine.replay("t", "orders", ReplaySource.LOG, None, 10)
    assert reply.count == 0


@law("X1")
async def test_a_specification_without_its_facts() -> None:
    store = Store()
    store.write({QueueKeys("t", "q").spec: encode_spec(QueuePolicy(), {})}, [], sync=True)
    with pytest.raises(StoreCorrupt):
        await _open(store)


@pytest.mark.parametrize("count", [1, 100])
async def test_a_settle_and_the_claim_after_it_are_one_commit(count: int) -> None:
    engine = await _open(MemoryAdapter())
    await engine.put_queue("t", "q", QueuePolicy(), Start())
    await engine.publish("t", "topic", [NewMessage(b"x")] * 2 * count)
    first = await engine.claim("t", "q", "c", count, None)
    before = engine._committer.completed
    acks = [Ack(delivery.receipt) for delivery in first]
    settled, claimed = await engine.settle_and_claim("t", "q", acks, "c", count, None)
    assert engine._committer.completed == before + 1
    assert all(outcome.ok for outcome in settled.outcomes)
    assert len(claimed) == count
    await engine.close()
