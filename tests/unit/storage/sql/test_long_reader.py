"""A reader that stays open does not make claims dearer, however much happens meanwhile (C4).

While a transaction of somebody else is open the database keeps every row that was deleted since,
and those of a queue lie right where a claim looks for its first run. So that the machine does not
matter, pages are counted and not seconds: what the claim's statement touches after many publishes,
claims and acks is what it touched after few, while without the engine's floor it grows.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncmy
import asyncpg
import pytest

from penstock import Ack, NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import Engine
from penstock.storage.engines import open_engine
from penstock.storage.sql.deliveries import Phase
from tests.databases import PASSWORD, USER, server, store_url

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FEW: Final = 200
MANY: Final = 1_200
#: Pages by which two looks at the same place may differ: a tree has grown by a level, say.
SLACK: Final = 12
#: Pages that the rows of so many deliveries take at least.
GROWTH: Final = 30


_WALKS: Final = "MariaDB ends no range at a deleted row: behind an empty rank it walks past those"


@pytest.mark.parametrize(
    "dialect",
    ["postgresql", pytest.param("mysql", marks=pytest.mark.xfail(reason=_WALKS))],
)
async def test_claims_walk_past_nothing(dialect: str) -> None:
    early, late, without = await _pages(dialect, waiting=4)
    assert late <= early + SLACK
    assert without >= late + GROWTH


async def test_beside_what_waits_with_a_lower_priority() -> None:
    early, late, without = await _pages("postgresql", waiting=0)
    assert late <= early + SLACK
    assert without >= late + GROWTH


async def _pages(dialect: str, waiting: int) -> tuple[int, int, int]:
    """What a look of a claim touches after few and many deliveries, and then without a floor.

    There are always some left waiting, with this priority.
    """
    engine: Any = await open_engine(store_url(dialect))
    await engine.put_queue("t", "q", QueuePolicy(filter="topic = 'q'"), Start())
    pages = _postgresql_pages if dialect == "postgresql" else _mariadb_pages
    await engine.publish("t", "q", [NewMessage(b"waits", priority=waiting)] * 20)
    await _cycles(engine, 30)
    async with _reader(dialect):
        await _cycles(engine, FEW)
        early = await pages(engine, _floors(engine))
        await _cycles(engine, MANY - FEW)
        late = await pages(engine, _floors(engine))
        without = await pages(engine, ())
    await engine.close()
    return early, late, without


async def _cycles(engine: Engine, count: int) -> None:
    for number in range(count):
        await engine.publish("t", "q", [NewMessage(b"%d" % number, priority=4)])
        deliveries = await engine.claim("t", "q", "c", 1, None)
        reply = await engine.settle("t", "q", [Ack(one.receipt) for one in deliveries])
        assert [outcome.ok for outcome in reply.outcomes] == [True]


def _floors(engine: Any) -> Sequence[int]:
    """The floors that the next claim of the engine would begin at, by rank."""
    return next((floors for floors, _ in engine._core.floors.values()), ())


async def _postgresql_pages(engine: Any, floors: Sequence[int]) -> int:
    """Pages that the claim's look touches."""
    database = engine._core.database
    text, names = database.statements["first_groups"]
    listed = ", ".join(map(str, floors))
    given = {"queue": "1", "phases": "'{0, 1}'", "floors": f"'{{{listed}}}'", "most": "2"}
    async with database.reading() as session:
        connection = session._connection
        number = await connection.fetchval("SELECT number FROM penstock_queue")
        given["queue"] = str(number)
        await connection.execute(f"PREPARE looks AS {text}")
        values = ", ".join(given[name] for name in names)
        await connection.execute("BEGIN")
        plan = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE looks ({values})"
        )
        await connection.execute("ROLLBACK")
        await connection.execute("DEALLOCATE looks")
    top = json.loads(plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


async def _mariadb_pages(engine: Any, floors: Sequence[int]) -> int:
    """The same; the server counts for everybody, so it is the least of several looks."""
    counts = []
    async with engine._core.database.transaction() as session:
        link = await session._linked()
        ((number,),) = (await link.execute("SELECT number FROM penstock_queue")).rows
        for _ in range(9):
            before = await _requests(link)
            await session.first_groups(number, [Phase.FRESH, Phase.RETURNED], floors, 2)
            counts.append(await _requests(link) - before)
            await link.roll_back()
    return min(counts)


async def _requests(link: Any) -> int:
    asked = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'"
    ((_, value),) = (await link.execute(asked)).rows
    return int(value)


@asynccontextmanager
async def _reader(dialect: str) -> AsyncIterator[None]:
    """A transaction that sees the store as it is now, and stays open."""
    look = "SELECT COUNT(*) FROM penstock_run"
    address = {"host": "127.0.0.1", "port": server(dialect).port, "user": USER}
    if dialect == "postgresql":
        connection = await asyncpg.connect(**address, password=PASSWORD, database="store")
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.execute(look)
        yield
        await connection.close()
        return
    async with asyncmy.connect(**address, password=PASSWORD, db="store") as connection:
        async with connection.cursor() as cursor:
            await cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            await cursor.execute(look)
        yield
