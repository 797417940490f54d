"""A long-running reader: the claim rate while another transaction stays open.

Such a reader, a report or a backup, keeps the database from removing rows deleted since it began.
Clients publish, claim and ack ten messages at a time, to produce many of them.
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
    """The same load without a reader, with one, and without it again.

    Only the second half of the time with the reader counts, when there are most dead rows.
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
    """A transaction that holds a snapshot of the store and stays open."""
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
