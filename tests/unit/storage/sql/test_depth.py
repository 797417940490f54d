"""``max_depth`` among publishes of one server that are under way at the same time, and beside
others who need not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from penstock.errors import QueueFull
from penstock.model.delivery import Ack
from penstock.model.message import NewMessage, Offset, Outgoing
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.engines import open_engine
from tests.databases import store_url
from tests.unit.storage.sql.callers import DIALECTS, caller
from tests.unit.storage.sql.gates import someone_waits
from tests.unit.storage.sql.pairs import LATEST, NAME, TENANT, Pair, claim


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


LOCK = "SELECT * FROM penstock_limit WHERE kind = 0 FOR UPDATE"


@asynccontextmanager
async def blocked(dialect: str, act: Awaitable[object]) -> AsyncIterator[asyncio.Future[object]]:
    """The act, which waits for a depth that another session holds until the end of the block."""
    other = await caller(dialect, NAME)
    await other.begin()
    await other.run(LOCK)
    task = asyncio.ensure_future(act)
    while not await someone_waits(dialect):
        assert not task.done()
    try:
        yield task
    finally:
        await other.roll_back()
        await other.close()
        await task


@pytest.mark.parametrize("publish_too", [False, True], ids=["publish", "settle and publish"])
async def test_who_waits_for_a_depth_holds_nobody_else_up(
    pair: Pair, dialect: str, publish_too: bool
) -> None:
    """Neither publishes to other queues of the tenant nor readers of the log."""
    await pair.a.put_queue(
        TENANT, "full", QueuePolicy(filter="topic = 'full'", max_depth=9), LATEST
    )
    await pair.a.publish(TENANT, "full", [NewMessage(b"x")])
    (held,) = await claim(pair.a, "old")
    message = [NewMessage(b"x")]
    waiting: Awaitable[object] = (
        pair.a.settle(TENANT, "old", [Ack(held.receipt)], publish=[Outgoing("full", message)])
        if publish_too
        else pair.a.publish(TENANT, "full", message)
    )
    async with blocked(dialect, waiting) as task:
        await pair.a.publish(TENANT, "old", [NewMessage(b"1")])
        await pair.a.publish(TENANT, "old", [NewMessage(b"2", id="2")])
        page = await pair.b.read_log(TENANT, Offset(0), 100, payloads=True)
        assert not task.done()
    assert [entry.payload for entry in page.entries] == [b"0", b"x", b"1", b"2"]
    assert (await pair.b.stats(TENANT, "full")).depth == 2


async def test_a_topic_that_a_queue_with_a_depth_never_takes_is_not_counted(pair: Pair) -> None:
    policy = QueuePolicy(filter="topic LIKE 'full%' AND priority > 0", max_depth=1)
    await pair.a.put_queue(TENANT, "full", policy, LATEST)
    await pair.a.publish(TENANT, "full.a", [NewMessage(b"x")])
    for engine in (pair.a, pair.b):
        await engine.publish(TENANT, "old", [NewMessage(b"y")])
        await engine.publish(TENANT, "full.b", [NewMessage(b"y", priority=0)])
        with pytest.raises(QueueFull):
            await engine.publish(TENANT, "full.b", [NewMessage(b"y")])
