from __future__ import annotations

import asyncio

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.message import NewMessage
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import document_key
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from penstock.testing.laws import law


async def _open(adapter: FaultyAdapter) -> KeyValueEngine:
    return await KeyValueEngine.open(adapter, EngineOptions(clock=FakeClock()))


async def test_a_document_is_one_record_and_one_commit() -> None:
    adapter = FaultyAdapter()
    engine = await _open(adapter)
    begun = len(adapter.journal)
    await engine.put_document("keys", "k1", b"x")
    await engine.delete_document("keys", "k1")
    key = document_key("keys", "k1")
    # Every commit has a link of the chain, too.
    written = [list(batch.writes) for batch in adapter.journal[begun:]]
    assert [keys[:-1] for keys in written] == [[key], [key]]
    assert all(batch.sync for batch in adapter.journal[begun:])
    await engine.delete_document("keys", "k1")
    assert len(adapter.journal) == begun + 2, "there was nothing to remove"
    await engine.close()


@law("P1")
async def test_a_document_survives_a_power_loss() -> None:
    adapter = FaultyAdapter()
    engine = await _open(adapter)
    await engine.put_document("keys", "k1", b"x")
    reopened = await _open(adapter.power_loss())
    assert await reopened.list_documents("keys") == (("k1", b"x"),)
    await reopened.close()
    await engine.close()


@law("P1")
async def test_what_is_not_committed_is_not_reported() -> None:
    """Neither a document nor its removal: a crash could take either back."""
    adapter = FaultyAdapter(inline=False)
    engine = await _open(adapter)
    for change in (engine.put_document("keys", "k1", b"x"), engine.delete_document("keys", "k1")):
        changing = asyncio.ensure_future(change)
        await asyncio.sleep(0)
        await engine.get_document("keys", "k1")
        assert changing.done()
    await engine.close()


async def test_a_document_does_not_wait_for_the_commits_of_others() -> None:
    engine = await _open(FaultyAdapter(inline=False))
    await engine.put_document("keys", "k1", b"x")
    publishing = asyncio.ensure_future(engine.publish("t", "orders", [NewMessage(b"")]))
    await asyncio.sleep(0)
    with pytest.raises(StopIteration) as answer:
        engine.get_document("keys", "k1").send(None)
    assert answer.value.value == b"x"
    await publishing
    await engine.close()


@law("X1")
@pytest.mark.parametrize("bit", [0, 7, 20, 39])
async def test_a_damaged_document_is_not_served(bit: int) -> None:
    adapter = FaultyAdapter()
    engine = await _open(adapter)
    await engine.put_document("keys", "k1", b"x")
    await engine.put_document("keys", "k2", b"y")
    adapter.damage(lambda key: key == document_key("keys", "k1"), bit)
    with pytest.raises(StoreCorrupt, match="document"):
        await engine.get_document("keys", "k1")
    with pytest.raises(StoreCorrupt, match="document"):
        await engine.list_documents("keys")
    assert await engine.get_document("keys", "k2") == b"y"
    await engine.put_document("keys", "k3", b"the store goes on")
    await engine.close()
