"""Assign on a store with damage: what cannot be added stops it with nothing lost or doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.shelf import Shelf
from penstock.testing.laws import law

TENANT = "t"
COUNT = 7


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    opened = await KeyValueEngine.open(
        MemoryAdapter(), EngineOptions(auto_create=False), step_size=2
    )
    yield opened
    await opened.close()


@law("X1")
async def test_a_bucket_that_cannot_be_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a call: what is below the cursor is there, and the rest comes later."""
    reply = await engine.publish(TENANT, "t", [NewMessage(b"")] * COUNT)
    offsets = [one.offset for one in reply.messages]
    policy = QueuePolicy(bucket_size=0)
    await engine.put_queue(TENANT, "q", policy, Start(at=Start.EARLIEST))
    load, loaded = Shelf.load, []

    def breaks(self: Shelf, claim_id: int) -> None:
        loaded.append(claim_id)
        if len(loaded) == 4:
            raise StoreCorrupt("A bucket record is truncated.")
        load(self, claim_id)

    async def assign() -> int:
        found = await engine.assign(
            TENANT, "q", filter="TRUE", start=Offset(0), end=Offset(COUNT), offsets=offsets
        )
        return found.assigned

    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "load", breaks)
        with pytest.raises(StoreCorrupt):
            await assign()
    assert (await engine.get_queue(TENANT, "q")).cursor == 2
    assert (await engine.stats(TENANT, "q")).available == 2
    assert await assign() == COUNT - 2
    page = await engine.peek(TENANT, "q", State.AVAILABLE, None, 100)
    assert [one.message.offset for one in page.items] == offsets
    assert (await engine.stats(TENANT, "q")).available == COUNT
