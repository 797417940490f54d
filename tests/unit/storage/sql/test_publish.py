"""Publishes that append nothing leave no trace in the log."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.message import NewMessage
from penstock.storage.contract import Engine
from penstock.storage.sql.append import parts_of
from penstock.testing.laws import law
from tests.databases import server
from tests.unit.storage.sql.pairs import NAME, TENANT, Pair, publish

SEGMENTS = "SELECT segment, entries FROM penstock_log ORDER BY segment"


def test_no_entries_are_no_segment() -> None:
    assert parts_of([]) == []


async def _publish_and_leave(engine: Engine) -> None:
    """Publish, and cancel that before the engine has begun with it."""
    call = asyncio.ensure_future(publish(engine, "old", b"1"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await engine._publishes.drain()  # type: ignore[attr-defined]


@law("L1")
async def test_a_publish_whose_caller_has_left_appends_no_segment(dialect: str, pair: Pair) -> None:
    """Seed 335 of the simulation: the batch that was left without calls appended an empty one."""
    before = server(dialect).sql(SEGMENTS, NAME)
    await _publish_and_leave(pair.a)
    assert server(dialect).sql(SEGMENTS, NAME) == before
    (published,) = await publish(pair.a, "old", b"2")
    assert await pair.b.log_end(TENANT) == published + 1


@law("P4")
async def test_a_publish_of_only_duplicates_appends_no_segment(dialect: str, pair: Pair) -> None:
    message = NewMessage(b"1", id="i")
    first = await pair.a.publish(TENANT, "old", [message], batch_id="b")
    before = server(dialect).sql(SEGMENTS, NAME)
    repeated = await pair.b.publish(TENANT, "old", [message], batch_id="b")
    duplicates = await pair.b.publish(TENANT, "old", [message, message])
    assert repeated.repeated
    assert {one.id for one in duplicates.messages} == {first.messages[0].id}
    assert server(dialect).sql(SEGMENTS, NAME) == before
