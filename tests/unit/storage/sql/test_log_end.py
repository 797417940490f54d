"""The end of the log never falls, whichever server is asked (L2).

A publish first says at which segment it began. The tests stop it between reading that number and
writing it down, while others publish and readers look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from penstock.model.message import NewMessage
from penstock.storage.contract import Engine
from penstock.storage.sql.database import Stable
from penstock.storage.sql.mysql.binding import Statement
from penstock.storage.sql.mysql.connection import Link, Reply
from penstock.testing.laws import law
from tests.databases import server
from tests.unit.storage.sql.callers import Caller, caller
from tests.unit.storage.sql.pairs import NAME, TENANT, Pair, opened_again, publish

#: The key of the advisory lock that closes the gate.
GATE = 4711
#: Takes a lock of PostgreSQL as soon as the gate is open. Its argument is read before.
GATED_LOCK = f"""
CREATE OR REPLACE FUNCTION gated_lock(key bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_lock({GATE});
    PERFORM pg_advisory_unlock({GATE});
    PERFORM pg_advisory_xact_lock_shared(key);
END
$$
"""
#: What is wrong if it takes longer.
SOON_S = 30


class Gate:
    """Holds a publishing transaction back after it has read at which segment it begins."""

    def __init__(self, dialect: str, own: Caller) -> None:
        self._dialect = dialect
        self._own = own

    def guard(self, engine: Engine) -> None:
        """Let publishes of the engine pass the gate."""
        database: Any = engine._core.database  # type: ignore[attr-defined]
        if self._dialect == "postgresql":
            text, names = database.statements["begin_publishing"]
            head, lock, tail = text.rpartition("pg_advisory_xact_lock_shared")
            assert lock
            assert "last_value" in tail
            database.statements["begin_publishing"] = f"{head}gated_lock{tail}", names
            return
        sql, _ = database._statements["begin_publishing"].bind({})
        base = "COALESCE((SELECT MAX(segment) FROM penstock_log), 0)"
        assert base in sql
        gated = f"{base} + 0 * GET_LOCK('{GATE}', {SOON_S})"
        database._statements["begin_publishing"] = Statement(sql.replace(base, gated))

    async def close(self) -> None:
        if self._dialect == "postgresql":
            await self._own.run(f"SELECT pg_advisory_lock({GATE})")
        else:
            await self._own.run(f"SELECT GET_LOCK('{GATE}', 0)")

    async def open(self) -> None:
        if self._dialect == "postgresql":
            await self._own.run(f"SELECT pg_advisory_unlock({GATE})")
        else:
            await self._own.run(f"SELECT RELEASE_LOCK('{GATE}')")

    async def somebody_waits(self) -> bool:
        waiting = {
            "postgresql": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
            f"AND objid = {GATE} AND NOT granted",
            "mysql": "SELECT COUNT(*) FROM information_schema.processlist "
            "WHERE state = 'User lock'",
        }[self._dialect]
        return bool((await self._own.run(waiting))[0][0])


@pytest.fixture
async def gate(dialect: str, pair: Pair) -> AsyncIterator[Gate]:
    if dialect == "postgresql":
        server(dialect).sql(GATED_LOCK, NAME)
    own = await caller(dialect, NAME)
    yield Gate(dialect, own)
    await own.close()


@law("L2")
async def test_a_publish_that_begins_late_does_not_set_the_end_back(
    dialect: str, pair: Pair, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    database: Any = pair.a._core.database  # type: ignore[attr-defined]
    stable, looked = database.stable, asyncio.Event()

    async def observed() -> Stable:
        try:
            return cast(Stable, await stable())
        finally:
            looked.set()

    monkeypatch.setattr(database, "stable", observed)
    own = await caller(dialect, NAME)
    await own.begin()
    await gate.close()
    gate.guard(pair.b)
    held = [NewMessage(b"held")]
    publishing = asyncio.create_task(pair.b.publish_within(own.connection, TENANT, "old", held))
    async with asyncio.timeout(SOON_S):
        while not await gate.somebody_waits():
            assert not publishing.done()
        await publish(pair.a, "old", b"1", b"2")
        reading = asyncio.create_task(pair.a.log_end(TENANT))
        # The server may answer, or retry until it knows where the publish began.
        await looked.wait()
        await gate.open()
        await publishing
        end = await reading
        # The transaction is still open, and this server has not looked at the log before.
        async with opened_again(dialect, pair.clock) as fresh:
            assert await fresh.log_end(TENANT) >= end
    await own.roll_back()
    await own.close()


@law("L2")
@pytest.mark.parametrize("dialect", ["mysql"], indirect=True)
async def test_a_ticket_that_is_cleared_away_does_not_set_the_end_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server clears tickets away while another reads them twice."""
    await publish(pair.a, "old", b"1", b"2")
    await publish(pair.a, "old", b"3")
    end = await pair.a.log_end(TENANT)
    together = Link.together
    reads = 0

    async def one_by_one(link: Link, parts: Sequence[tuple[str, Sequence[object]]]) -> list[Reply]:
        nonlocal reads
        replies = []
        for part in parts:
            if "FROM penstock_ticket" in part[0]:
                reads += 1
                if reads == 2:
                    server("mysql").sql("DELETE FROM penstock_ticket", NAME)
            replies += await together(link, [part])
        return replies

    monkeypatch.setattr(Link, "together", one_by_one)
    async with opened_again("mysql", pair.clock) as fresh:
        assert await fresh.log_end(TENANT) == end
    assert reads >= 2
