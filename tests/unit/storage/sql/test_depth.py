"""``max_depth`` among publishes of one server that are under way at the same time."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import QueueFull
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.engines import open_engine
from tests.databases import store_url
from tests.unit.storage.sql.callers import DIALECTS


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_no_more_are_taken_than_there_is_room_for(dialect: str) -> None:
    engine = await open_engine(store_url(dialect, "depth"))
    try:
        policy = QueuePolicy(filter="TRUE", max_depth=25)
        await engine.put_queue("t", "q", policy, Start())
        batch = [NewMessage(b"x")] * 10
        outcomes = await asyncio.gather(
            *(engine.publish("t", "orders", batch) for _ in range(20)), return_exceptions=True
        )
        refused = [one for one in outcomes if isinstance(one, BaseException)]
        assert all(isinstance(one, QueueFull) for one in refused)
        assert len(outcomes) - len(refused) == 2
        assert (await engine.stats("t", "q")).depth == 20
    finally:
        await engine.close()
