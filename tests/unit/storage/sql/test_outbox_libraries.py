"""Publishing inside a transaction of any library that applications use (P2)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import penstock
from penstock import NewMessage
from penstock.broker import Broker
from penstock.errors import QueueFull
from penstock.storage.sql.urls import parse
from penstock.testing.laws import law
from tests.databases import server, store_url
from tests.unit.storage.sql.callers import caller

NAME = "outboxlibs"
LIBRARIES = (
    *("postgresql psycopg", "postgresql psycopg-async", "postgresql psycopg2"),
    *("postgresql sqlalchemy+psycopg", "postgresql sqlalchemy+psycopg2-session"),
    *("postgresql sqlalchemy+asyncpg", "postgresql sqlalchemy+psycopg-async-session"),
    *("mysql pymysql", "mysql aiomysql", "mysql sqlalchemy+pymysql-session"),
    *("mysql sqlalchemy+asyncmy", "mysql sqlalchemy+aiomysql-session"),
)
#: Everything that a literal has to survive.
ODD = "quote ' double \" back \\ slash $1 %s ? :x é 漢 😀\n\t{1,2}"


async def answer(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Own:
    """A connection or session of a library, with a transaction open."""

    def __init__(self, given: Any, close: Any, execute: Any = None) -> None:
        self.given = given
        self._close = close
        self._execute = execute

    async def insert(self) -> None:
        sql = "INSERT INTO bill VALUES (1)"
        if self._execute is not None:
            await answer(self._execute(sql))
            return
        cursor = await answer(self.given.cursor())
        await answer(cursor.execute(sql))
        await answer(cursor.close())

    async def commit(self) -> None:
        await answer(self.given.commit())

    async def roll_back(self) -> None:
        await answer(self.given.rollback())

    async def close(self) -> None:
        for close in self._close:
            await answer(close())


def where(dialect: str) -> dict[str, Any]:
    address = parse(server(dialect).url(NAME))
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password or "",
        "database": address.database,
    }


async def of_driver(library: str, place: dict[str, Any]) -> Own:
    if library.startswith("psycopg"):
        place = {"dbname": place.pop("database"), **place}
    match library:
        case "psycopg":
            import psycopg
            from psycopg.rows import dict_row

            own = psycopg.connect(**place, row_factory=dict_row)
        case "psycopg-async":
            import psycopg

            own = await psycopg.AsyncConnection.connect(**place)
        case "psycopg2":
            import psycopg2

            own = psycopg2.connect(**place)
        case "pymysql":
            import pymysql

            own = pymysql.connect(**place, cursorclass=pymysql.cursors.DictCursor)
        case _:
            import aiomysql

            place["db"] = place.pop("database")
            own = await aiomysql.connect(**place)
    if "mysql" in library:
        cursor = await answer(own.cursor())
        await answer(cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        await answer(cursor.close())
    return Own(own, [own.close])


async def of_sqlalchemy(library: str, dialect: str, place: dict[str, Any]) -> Own:
    kind = library.removeprefix("sqlalchemy+")
    driver = kind.partition("-")[0]
    url = sqlalchemy.URL.create(
        f"{dialect}+{driver}",
        place["user"],
        place["password"],
        place["host"],
        place["port"],
        place["database"],
    )
    options: dict[str, Any] = {"isolation_level": "READ COMMITTED"}
    if driver in ("asyncpg", "asyncmy", "aiomysql") or "async" in kind:
        engine = create_async_engine(url, **options)
        given: Any = AsyncSession(engine) if "session" in kind else await engine.connect()
    else:
        engine = sqlalchemy.create_engine(url, **options)
        given = Session(engine) if "session" in kind else engine.connect()
    return Own(
        given, [given.close, engine.dispose], lambda sql: given.execute(sqlalchemy.text(sql))
    )


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> tuple[str, str]:
    dialect, name = request.param.split()
    return dialect, name


@pytest.fixture
async def q(library: tuple[str, str]) -> AsyncIterator[Broker]:
    server(library[0])
    async with penstock.open(store_url(library[0], NAME), keepers=False) as broker:
        yield broker


@pytest.fixture
async def own(library: tuple[str, str], q: Broker) -> AsyncIterator[Own]:

    dialect, name = library
    making = await caller(dialect, NAME)
    await making.run("DROP TABLE IF EXISTS bill")
    await making.run("CREATE TABLE bill (id integer PRIMARY KEY)")
    await making.close()
    if name.startswith("sqlalchemy"):
        made = await of_sqlalchemy(name, dialect, where(dialect))
    else:
        made = await of_driver(name, where(dialect))
    yield made
    await made.close()


async def bills(library: tuple[str, str]) -> list[Any]:

    looking = await caller(library[0], NAME)
    try:
        return [tuple(row) for row in await looking.run("SELECT id FROM bill")]
    finally:
        await looking.close()


@law("P2")
async def test_the_commit_makes_it_visible(q: Broker, own: Own, library: tuple[str, str]) -> None:
    await q.create_queue("orders", "topic = 'orders'", ordering="partition")
    await own.insert()
    published = await q.publish(
        "orders",
        bytes(range(256)),
        headers={"text": ODD, "n": -(2**63), "x": 1.5, "b": True},
        id=ODD,
        key="k'",
        partition_key=ODD,
        connection=own.given,
    )
    batch = [NewMessage(b""), NewMessage(b"x" * 70_000, partition_key="p")]
    reply = await q.publish_batch("orders", batch, batch_id="b", connection=own.given)
    assert reply.durability == "transaction"
    assert (await q.read_log()).entries == ()
    await own.commit()
    entries = (await q.read_log(payloads=True)).entries
    assert [entry.payload for entry in entries] == [bytes(range(256)), b"", b"x" * 70_000]
    first = entries[0].message
    assert first.id == published.id
    assert first.headers == {"text": ODD, "n": -(2**63), "x": 1.5, "b": True}
    assert (first.partition_key, first.key) == (ODD, "k'")
    assert (await q.stats("orders")).depth == 3
    assert await bills(library) == [(1,)]
    assert (await q.publish("orders", b"", id=ODD)).duplicate
    assert (await q.publish_batch("orders", batch, batch_id="b")).repeated


@law("P2")
async def test_a_rollback_leaves_nothing(q: Broker, own: Own, library: tuple[str, str]) -> None:
    await own.insert()
    await q.publish("orders", b"never", id="once", connection=own.given)
    await own.roll_back()
    assert (await q.read_log()).entries == ()
    assert await bills(library) == []
    assert not (await q.publish("orders", b"now", id="once")).duplicate


@law("P2")
async def test_a_refused_publish_leaves_the_transaction_as_it_was(
    q: Broker, own: Own, library: tuple[str, str]
) -> None:
    await q.create_queue("orders", "topic = 'orders'", max_depth=1)
    await q.publish("orders", b"first")
    await own.insert()
    with pytest.raises(QueueFull):
        await q.publish("orders", b"second", connection=own.given)
    await own.commit()
    assert await bills(library) == [(1,)]
    assert len((await q.read_log()).entries) == 1


BLOCKING = ("psycopg", "psycopg2", "pymysql")


@law("P2")
@pytest.mark.parametrize(
    "library",
    [name for name in LIBRARIES if name.endswith((*BLOCKING, "2-session", "+pymysql-session"))],
    indirect=True,
)
async def test_a_cancelled_publish_leaves_the_connection_usable(
    q: Broker, own: Own, library: tuple[str, str]
) -> None:
    """A thread still waits for the database, and no other one may use the connection meanwhile."""
    await q.create_queue("orders", "topic = 'orders'")
    other = await caller(library[0], NAME)
    await other.begin()
    await q.publish("orders", b"", id="same", connection=other.connection)
    await own.insert()
    waiting = asyncio.create_task(q.publish("orders", b"", id="same", connection=own.given))
    await asyncio.wait({waiting}, timeout=1)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=0.2)
    assert not waiting.done()
    await other.roll_back()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await own.commit()
    assert await bills(library) == [(1,)]
    assert (await q.read_log()).entries == ()
    await other.close()
