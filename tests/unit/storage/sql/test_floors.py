"""Floors hide nothing that is there or may still come (C4, C5).

Where a database has no use for them they cost nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.model.delivery import Ack
from penstock.model.message import NewMessage
from penstock.storage.contract import Engine
from penstock.storage.sql.database import Stable
from penstock.testing.laws import law
from tests.unit.storage.sql.callers import caller
from tests.unit.storage.sql.pairs import NAME, TENANT, Pair, claim, payloads, settled

#: Longer than floors are kept.
LATER_MS = 300


async def publish(engine: Engine, *priorities: int) -> None:
    """Publish messages that say their priorities."""
    messages = [NewMessage(b"%d" % one, priority=one) for one in priorities]
    await engine.publish(TENANT, "old", messages)


async def work_off(pair: Pair, engine: Engine) -> None:
    """Claim and ack until there is nothing, with fresh floors every time."""
    while held := await claim(engine, "old", 1):
        await settled(engine, "old", *(Ack(one.receipt) for one in held))
        pair.clock.advance(LATER_MS)


def floors(engine: Any) -> tuple[int, ...]:
    """What the server goes by."""
    return next(found for found, _ in engine._core.floors.values())


@law("C5")
async def test_what_an_open_publish_brings_is_above_them(pair: Pair, dialect: str) -> None:
    own = await caller(dialect, NAME)
    try:
        await own.begin()
        messages = [NewMessage(b"held %d" % one, priority=one) for one in (0, 4, 9)]
        await pair.b.publish_within(own.connection, TENANT, "old", messages)
        for _ in range(3):
            await publish(pair.b, 0, 4, 9)
            await work_off(pair, pair.a)
        await own.commit()
    finally:
        await own.close()
    assert payloads(await claim(pair.a, "old")) == [b"held 9", b"held 4", b"held 0"]


@law("C4")
async def test_each_priority_has_its_own(pair: Pair) -> None:
    await work_off(pair, pair.a)
    await publish(pair.b, 2)
    for _ in range(4):
        await publish(pair.b, 7)
        (held,) = await claim(pair.a, "old", 1)
        await settled(pair.a, "old", Ack(held.receipt))
        pair.clock.advance(LATER_MS)
    if pair.a.capabilities.engine == "postgresql":
        of = floors(pair.a)
        assert of[9 - 7] > of[9 - 2] > 0
    await publish(pair.b, 2, 7, 9)
    assert payloads(await claim(pair.a, "old")) == [b"9", b"7", b"2", b"2"]


@law("C5")
async def test_what_is_locked_at_a_floor_is_waited_for(pair: Pair, dialect: str) -> None:
    """Nobody is told that the queue is empty while somebody else may give it back."""
    await work_off(pair, pair.a)
    await publish(pair.b, 4)
    own = await caller(dialect, NAME)
    try:
        await own.begin()
        await own.run("SELECT row_key FROM penstock_run FOR UPDATE")
        waiting = asyncio.create_task(claim(pair.a, "old"))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
        await own.roll_back()
        assert payloads(await waiting) == [b"4"]
    finally:
        await own.close()


async def test_nobody_asks_how_far_the_log_is_settled_where_there_are_none(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = pair.a
    asked: list[int] = []
    stable = engine._core.stable

    async def counted() -> Stable:
        asked.append(1)
        found: Stable = await stable()
        return found

    monkeypatch.setattr(engine._core, "stable", counted)
    for _ in range(4):
        await claim(pair.a, "old", 1)
        pair.clock.advance(LATER_MS)
    has_floors = engine._core.database.has_floors
    assert bool(asked) is has_floors
    assert bool(engine._core.floors) is has_floors
