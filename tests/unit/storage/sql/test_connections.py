"""Connections of PostgreSQL that are kept at hand between one call and the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.storage.sql.postgresql import adapter
from penstock.storage.sql.postgresql.adapter import PostgreSQL
from penstock.storage.sql.urls import parse
from tests.databases import server, store_url

NAME = "connections"


@pytest.fixture
async def database() -> AsyncIterator[PostgreSQL]:
    """With a pool of two."""
    opened = await PostgreSQL.open(parse(store_url("postgresql", NAME) + "?pool=2"))
    yield opened
    await opened.close()


async def _pid(database: PostgreSQL) -> int:
    async with database.reading() as session:
        return int(await _raw(session).fetchval("SELECT pg_backend_pid()"))


def _raw(session: object) -> Any:
    return session._connection  # type: ignore[attr-defined]


async def test_one_after_the_other_have_the_same(database: PostgreSQL) -> None:
    assert len({await _pid(database) for _ in range(5)}) == 1
    assert len(database._at_hand) == 1


async def test_many_at_a_time_all_get_one(
    database: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is at hand is for those who wait, and not only when it goes back."""
    monkeypatch.setattr(adapter, "_AT_HAND_S", 3_600)
    async with asyncio.timeout(30):
        for _ in range(3):
            assert len(set(await asyncio.gather(*(_pid(database) for _ in range(20))))) <= 2


async def test_the_pool_gets_them_back(database: PostgreSQL) -> None:
    await _pid(database)
    database._tidy()
    assert database._at_hand == []
    await asyncio.gather(*database._leaving)
    assert database._pool.get_idle_size() == 1


async def test_one_that_was_lost_is_not_used_again(database: PostgreSQL) -> None:
    before = await _pid(database)
    (kept,) = database._at_hand
    gone = asyncio.Event()
    kept.add_termination_listener(lambda _: gone.set())
    await asyncio.to_thread(server("postgresql").kill_backends, NAME)
    await gone.wait()
    assert await _pid(database) != before


async def test_one_that_was_interrupted_is_left_to_the_pool(database: PostgreSQL) -> None:
    async def sleep() -> None:
        async with database.reading() as session:
            await _raw(session).execute("SELECT pg_sleep(60)")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sleep()
    assert database._at_hand == []
    async with asyncio.timeout(30):
        assert await _pid(database)
