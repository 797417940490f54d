"""Read ahead: what a claim of a deep queue finds in memory, and what it must not trust."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Ack
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import payload_key

TENANT = "default"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[KeyValueEngine]:
    """A store that keeps no payload in memory, with 300 waiting messages."""
    adapter = RocksDBAdapter(tmp_path / "store")
    store = await KeyValueEngine.open(adapter, EngineOptions(), recent_payload_bytes=0)
    await store.put_queue(TENANT, "q", QueuePolicy(), Start())
    await store.publish(TENANT, "q", [NewMessage(b"%d" % number) for number in range(300)])
    yield store
    await store.close()


async def claimed(engine: KeyValueEngine, limit: int) -> list[bytes]:
    deliveries = await engine.claim(TENANT, "q", "c", limit, None)
    await asyncio.sleep(0)  # The turn in which the next ones are read.
    return [delivery.payload for delivery in deliveries]


def ahead(engine: KeyValueEngine) -> dict[int, bytes]:
    return engine._core.stage.recent_payloads.ahead


async def test_what_follows_a_full_claim_is_read_and_claimed_next(engine):
    assert await claimed(engine, 50) == [b"%d" % number for number in range(50)]
    assert list(ahead(engine)) == list(range(50, 150))
    # Claims of fewer messages use them up before more are read.
    assert await claimed(engine, 60) == [b"%d" % number for number in range(50, 110)]
    assert list(ahead(engine)) == list(range(50, 150))
    assert await claimed(engine, 60) == [b"%d" % number for number in range(110, 170)]
    assert list(ahead(engine)) == list(range(170, 270))


async def test_nothing_is_read_after_a_claim_that_got_less_than_it_asked_for(engine):
    assert len(await claimed(engine, 500)) == 300
    assert not ahead(engine)


async def test_it_changes_nothing(engine):
    await claimed(engine, 50)
    stats = await engine.stats(TENANT, "q")
    assert (stats.available, stats.in_flight) == (250, 50)


async def test_a_damaged_payload_is_left_to_the_claim(engine):
    first = await engine.claim(TENANT, "q", "c", 50, None)
    engine._core.adapter.write({payload_key(60): b"damaged"}, (), True)
    await asyncio.sleep(0)
    assert not ahead(engine)
    await engine.settle(TENANT, "q", [Ack(delivery.receipt) for delivery in first])
    with pytest.raises(StoreCorrupt):
        await engine.claim(TENANT, "q", "c", 50, None)


async def test_a_deleted_queue_is_not_read(engine):
    queue = engine._core.tenant(TENANT).queue("q")
    await engine.delete_queue(TENANT, "q")
    engine._read_ahead(queue)
    assert not ahead(engine)
