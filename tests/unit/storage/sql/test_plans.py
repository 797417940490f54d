"""No statement's cost grows with the backlog or with what is done (C4, S1, Q2, G1).

Every statement that touches what grows is run, in the sessions that the engine has, with a million
deliveries waiting, two hundred thousand done and a hundred thousand of everything else. What it
reads has to stay in proportion to what it gives. In PostgreSQL, where a session plans a statement
once, that has to hold for plans that were made while the store was still empty, for those made
with a full store that was never analyzed, and for those made after it was.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import pytest

from penstock.storage.sql.database import Database, load_module
from penstock.storage.sql.migrations import migrate
from penstock.storage.sql.statements import PARAMETER, load
from penstock.storage.sql.urls import parse
from tests.databases import Server, server
from tests.unit.storage.sql.loaded import COLUMNS, LOAD, PUBLISH, WRITE, WRITE_UNHELD, arguments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: What grows: with the backlog, with history, with what producers name.
_GROWING: Final = re.compile(
    r"penstock_(run|log|tally|partition|partition_tally|id|key|newest|replayed)\b"
)
#: A statement may read so many rows for each that it gives, and so many for nothing: those it
#: deletes or writes over, and the tally between two sweeps.
_PER_ROW: Final = 50
_FOR_NOTHING: Final = 2_000
#: Statements that do read what they concern, and why they may.
_EXCUSED: Final = {
    "date_ids": "changes the window of a topic, and with it every id that the topic has",
    "log_pieces": "counts the segments of the part of the log that a reader cuts into pieces",
}


class Cost(NamedTuple):
    """What a statement did."""

    read: int
    """Rows of indexes and tables."""
    given: int
    scanned: list[str]
    """Tables that were read from one end to the other."""


@asynccontextmanager
async def _store(dialect: str) -> AsyncIterator[tuple[Server, Database]]:
    """An empty store of its own, open."""
    found = server(dialect)
    found.drop_database("plans")
    found.create_database("plans")
    url = found.url("plans")
    await migrate(url)
    adapter = load_module(dialect, "adapter")
    opened = await (adapter.PostgreSQL if dialect == "postgresql" else adapter.MySQL).open(
        parse(url)
    )
    try:
        yield found, opened
    finally:
        await opened.close()
        found.drop_database("plans")


def _statements(dialect: str) -> dict[str, str]:
    return {name: text for name, text in sorted(load(dialect).items()) if _GROWING.search(text)}


def _offenders(costs: dict[str, Cost]) -> dict[str, Cost]:
    return {
        name: cost
        for name, cost in costs.items()
        if (cost.scanned or cost.read > _PER_ROW * cost.given + _FOR_NOTHING)
        and name not in _EXCUSED
    }


def test_the_rules_name_statements() -> None:
    assert set(_EXCUSED) <= set(_statements("postgresql")) & set(_statements("mysql"))


# -- PostgreSQL ------------------------------------------------------------------------


async def test_postgresql() -> None:
    async with _store("postgresql") as (found, database):
        statements = _statements("postgresql")
        async with _connection(database) as connection:
            await _prepare(connection, statements)
            # The statements of the function are planned when they are first run.
            await _write_costs(connection)
            await asyncio.to_thread(found.sql, LOAD["postgresql"], "plans")
            costs = [await _costs(connection, statements) | await _write_costs(connection)]
            for prepare in ("DISCARD PLANS", "ANALYZE"):
                await connection.execute(prepare)
                await _prepare(connection, statements)
                costs.append(await _costs(connection, statements) | await _write_costs(connection))
    empty, full, analyzed = map(_offenders, costs)
    assert (empty, full, analyzed) == ({}, {}, {})
    assert all(cost["write"].given and cost["publish"].given for cost in costs)


@asynccontextmanager
async def _connection(database: Any) -> AsyncIterator[Any]:
    async with database.reading() as session:
        yield session._connection


def _values(name: str, text: str) -> str:
    """The arguments of EXECUTE."""
    values = COLUMNS.get(name)
    if values is None:
        values = tuple(arguments(name, tuple(dict.fromkeys(PARAMETER.findall(text)))).values())
    return f" ({', '.join(map(_literal, values))})" if values else ""


def _literal(value: object) -> str:
    if isinstance(value, list):
        return f"'{{{', '.join(map(_element, value))}}}'"
    return "NULL" if value is None else f"'{_element(value)}'"


def _element(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return rf'"\\x{value.hex()}"'
        case _:
            return str(value)


async def _prepare(connection: Any, statements: dict[str, str]) -> None:
    """Have the session prepare the statements, and plan them as things are now."""
    for name, text in statements.items():
        # Parameters become numbers, as the adapter has it.
        names = list(dict.fromkeys(PARAMETER.findall(text)))
        numbered = text
        for number, parameter in enumerate(names, 1):
            numbered = re.sub(rf"(?<!:):{parameter}\b", f"${number}", numbered)
        known = "SELECT count(*) FROM pg_prepared_statements WHERE name = $1"
        if await connection.fetchval(known, name):
            await connection.execute(f"DEALLOCATE {name}")
        await connection.execute(f"PREPARE {name} AS {numbered}")
        await connection.execute(f"EXPLAIN EXECUTE {name}{_values(name, text)}")


async def _costs(connection: Any, statements: dict[str, str]) -> dict[str, Cost]:
    """Run every statement by the plan that the session has; what it does is undone."""
    costs = {}
    for name, text in statements.items():
        await connection.execute("BEGIN")
        ((plan,),) = await connection.fetch(
            f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name}{_values(name, text)}"
        )
        await connection.execute("ROLLBACK")
        costs[name] = _cost(json.loads(plan)[0]["Plan"])
    return costs


async def _write_costs(connection: Any) -> dict[str, Cost]:
    """What the functions read, of which no plan is shown; what it does is undone."""
    costs = {}
    for name, values in (("write", WRITE), ("write_unheld", WRITE_UNHELD), ("publish", PUBLISH)):
        text = load("postgresql")[name.partition("_")[0]]
        await connection.execute("BEGIN")
        # What was counted before is there too, for a while.
        before = await _reads(connection)
        row = await connection.fetchrow(text, *values)
        written = row["numbers"] if name == "publish" else row["written"]
        after = await _reads(connection)
        await connection.execute("ROLLBACK")
        scanned = [t for t in after if _GROWING.search(t) and after[t][0] > before[t][0]]
        read = sum(after[table][1] - before[table][1] for table in after)
        costs[name] = Cost(read, bool(written), scanned)
    return costs


async def _reads(connection: Any) -> dict[str, tuple[int, int]]:
    """By table, how often it was read from one end to the other, and rows that were read."""
    rows = await connection.fetch(
        """SELECT relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0)
        FROM pg_stat_xact_user_tables"""
    )
    return {table: (scans, read) for table, scans, read in rows}


def _cost(plan: dict[str, Any]) -> Cost:
    read = 0
    scanned = []
    for node in _nodes(plan):
        table = node.get("Relation Name", "")
        if "Scan" in node["Node Type"] and (table or "Index Name" in node):
            removed = sum(rows for key, rows in node.items() if key.startswith("Rows Removed"))
            read += (node["Actual Rows"] + removed) * node["Actual Loops"]
            if node["Node Type"] == "Seq Scan" and _GROWING.search(table):
                scanned.append(table)
    return Cost(read, plan["Actual Rows"], scanned)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


# -- MariaDB ---------------------------------------------------------------------------


async def test_mariadb() -> None:
    """Prepared statements are prepared anew after an ANALYZE, and have to be as good as before."""
    async with _store("mysql") as (found, database):
        await asyncio.to_thread(found.sql, LOAD["mysql"], "plans")
        async with database.transaction() as session:
            full = _offenders(await _mariadb_costs(session))
            tables = ", ".join(found.tables("plans"))
            await asyncio.to_thread(found.sql, f"ANALYZE TABLE {tables}", "plans")
            analyzed = _offenders(await _mariadb_costs(session))
    assert (full, analyzed) == ({}, {})


async def _mariadb_costs(session: Any) -> dict[str, Cost]:
    """Run every statement twice, so that it is known already; what it does is undone."""
    costs = {}
    link = await session._linked()
    for name, text in _statements("mysql").items():
        for _ in range(2):
            before = await _read_so_far(link)
            if "VALUES :rows" in text:
                await session.write(name, list(zip(*COLUMNS[name], strict=True)))
                given = 0
            else:
                reply = await session._execute(name, arguments(name, PARAMETER.findall(text)))
                given = max(reply.changed, 0) if reply.rows is None else len(reply.rows)
            costs[name] = Cost(await _read_so_far(link) - before, given, [])
            await link.roll_back()
    return costs


async def _read_so_far(link: Any) -> int:
    """Rows that this session has read; asking is not counted."""
    rows = (await link.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")).rows or ()
    return sum(int(value) for _, value in rows)
