"""A reader that stays: what claims give while a transaction of somebody else is open for long.

Such a reader, a report or a backup, keeps the database from clearing away what was deleted since
it began. Clients publish, claim and ack ten messages at a time, so that there is much of that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncmy
import asyncpg

from bench.measuring import Figure, middle, per_second
from bench.sql_stores import DIALECTS, Client, store
from penstock.storage.engines import open_engine
from tests.databases import PASSWORD, USER, Server

__all__ = ["beside_a_reader"]

CLIENTS: Final = 8
_BATCH: Final = 10
_DATABASE: Final = "reader"
_LOOK: Final = "SELECT COUNT(*) FROM penstock_run"


async def beside_a_reader(server: Server, dialect: str, seconds: float, rounds: int) -> Figure:
    """The same load without a reader, beside one, and without it again.

    What is counted of the time with the reader is its second half, when most is in the way.
    """
    async with store(server, _DATABASE) as url:
        engine = await open_engine(url)
        clients = [Client(engine, number, _BATCH) for number in range(CLIENTS)]
        alone = [await _load(clients, seconds) for _ in range((rounds + 1) // 2)]
        async with _reader(server, dialect):
            beside = [await _load(clients, seconds) for _ in range(rounds)]
        alone += [await _load(clients, seconds) for _ in range((rounds + 1) // 2)]
        await engine.close()
    late = middle(beside[rounds // 2 :])
    return Figure(
        f"{DIALECTS[dialect]}: publish, claim, ack beside a reader open for {seconds * rounds:g} s",
        late / middle(alone),
        0.6,
        per_second(late),
        per_second(middle(alone)),
    )


async def _load(clients: list[Client], seconds: float) -> float:
    begin = time.perf_counter()
    done = 0

    async def work(client: Client) -> None:
        nonlocal done
        while time.perf_counter() - begin < seconds:
            acked = await client.cycle()
            done += acked

    await asyncio.gather(*map(work, clients))
    return done / (time.perf_counter() - begin)


@asynccontextmanager
async def _reader(server: Server, dialect: str) -> AsyncIterator[None]:
    """A transaction that sees the store as it is now, and stays open."""
    address = {"host": "127.0.0.1", "port": server.port, "user": USER, "password": PASSWORD}
    if dialect == "postgresql":
        connection = await asyncpg.connect(**address, database=_DATABASE)
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.execute(_LOOK)
        yield
        await connection.close()
        return
    async with asyncmy.connect(**address, db=_DATABASE) as connection:
        async with connection.cursor() as cursor:
            await cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            await cursor.execute(_LOOK)
        yield
