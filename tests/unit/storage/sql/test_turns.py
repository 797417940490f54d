"""Replay and purge take turns, so a long one does not starve other tenants (decision 0040)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.filters import parse
from penstock.model.delivery import Ack, Reject, ReplaySource
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.storage.engines import open_engine
from penstock.storage.sql import browse, replay
from tests.databases import store_url
from tests.unit.storage.sql.pairs import TENANT

BATCH = 10
BATCHES = 4


@pytest.fixture
async def engine(dialect: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """A store with four batches of messages in a queue, where a batch is small."""
    monkeypatch.setattr(replay, "_BATCH", BATCH)
    monkeypatch.setattr(browse, "_BATCH", BATCH)
    engine = await open_engine(store_url(dialect, "turns"))
    try:
        await engine.put_queue(TENANT, "q", QueuePolicy(filter="topic = 'q'"), Start())
        await engine.publish(TENANT, "q", [NewMessage(b"x")] * (BATCH * BATCHES))
        yield engine
    finally:
        await engine.close()


async def settle_all(engine: Engine, source: ReplaySource) -> None:
    """Bring every delivery to where the source takes it from."""
    settle = Reject if source is ReplaySource.FAILED else Ack
    claimed = await engine.claim(TENANT, "q", "c", BATCH * BATCHES, None)
    await engine.settle(TENANT, "q", [settle(delivery.receipt) for delivery in claimed])


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("source", ReplaySource)
async def test_a_replay_takes_a_turn_a_batch(
    engine: Engine, source: ReplaySource, dry_run: bool
) -> None:
    await settle_all(engine, source)
    before = engine.turns.granted
    reply = await engine.replay(
        TENANT, "q", source, None, 1_000, rate=None, dry_run=dry_run, replay_id=None
    )
    assert reply.count == BATCH * BATCHES
    assert engine.turns.granted - before >= BATCHES - 1


async def test_a_replay_that_finds_nothing_takes_turns_too(engine: Engine) -> None:
    await settle_all(engine, ReplaySource.FAILED)
    before = engine.turns.granted
    nothing = parse("priority = 9")
    reply = await engine.replay(
        *(TENANT, "q", ReplaySource.FAILED, nothing, 1_000),
        rate=None,
        dry_run=False,
        replay_id=None,
    )
    assert reply.count == 0
    assert engine.turns.granted - before == BATCHES - 1


@pytest.mark.parametrize("where", [None, "priority = 9"])
async def test_a_purge_takes_a_turn_a_batch(engine: Engine, where: str | None) -> None:
    """Also one whose filter takes nothing: looking is work too."""
    before = engine.turns.granted
    filter_ = None if where is None else parse(where)
    reply = await engine.purge(TENANT, "q", State.AVAILABLE, filter_, 1_000)
    assert reply.count == (BATCH * BATCHES if where is None else 0)
    assert engine.turns.granted - before == BATCHES - 1
