"""Migrations on real servers: applied once by whoever comes first, finished after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.errors import StoreBusy, StoreError, StoreTooNew, StoreTooOld, StoreUnavailable
from penstock.model.message import NewMessage
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql import migrations
from penstock.storage.sql.database import load_module
from penstock.storage.sql.migrations import (
    Functions,
    Migrated,
    Migration,
    check,
    functions,
    known,
    migrate,
    read,
)
from penstock.storage.sql.urls import parse
from penstock.testing.laws import law
from tests.databases import Server, server, without_views

NAME = "migrating"
DIALECTS = ["postgresql", "mysql"]


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with an empty database."""
    found = server(request.param)
    found.drop_database(NAME)
    found.create_database(NAME)
    yield found
    found.drop_database(NAME)


def with_more(monkeypatch: pytest.MonkeyPatch, dialect: str, *texts: str) -> tuple[Migration, ...]:
    """As if this Penstock had these migrations besides its own."""
    have = known(dialect)
    numbered = enumerate(texts, len(have) + 1)
    every = (*have, *(read(f"{number:04}_more.sql", text) for number, text in numbered))
    monkeypatch.setattr(migrations, "known", lambda _: every)
    return every


async def look(url: str) -> None:
    """What opening a store does first."""
    address = parse(url)
    kind = {"postgresql": "PostgreSQL", "mysql": "MySQL"}[address.scheme]
    opened = await getattr(load_module(address.scheme, "adapter"), kind).open(address)
    try:
        await check(opened)
    finally:
        await opened.close()


def recorded(found: Server) -> list[list[str]]:
    return found.sql("SELECT number, name FROM penstock_migration ORDER BY number", NAME)


# -- files -----------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_has_its_own_migrations_from_one_on(dialect: str) -> None:
    found = known(dialect)
    assert [item.number for item in found] == list(range(1, len(found) + 1))
    assert found[0].name == "0001_store"
    for item in found:
        assert item.statements
        assert not any(statement.endswith(";") for statement in item.statements)


def test_a_script_is_split_where_a_line_ends_with_a_semicolon() -> None:
    text = "-- One; and more;\nCREATE TABLE a (\n  -- x;\n  b int);  \n\nINSERT ';' a\n;\n-- end\n"
    assert read("0007_x_y.sql", text).statements == ("CREATE TABLE a (\n  b int)", "INSERT ';' a")
    assert (read("0007_x_y.sql", text).number, read("0007_x_y.sql", text).name) == (7, "0007_x_y")


def test_a_script_is_not_split_inside_a_function() -> None:
    function = "CREATE FUNCTION a() AS $$\nBEGIN\n  b;\n  c;\nEND\n$$ LANGUAGE d"
    text = f"CREATE TABLE a (b int);\n{function};\nSELECT 1;\n"
    assert read("0007_x.sql", text).statements == ("CREATE TABLE a (b int)", function, "SELECT 1")


def test_a_checksum_is_of_the_statements_only() -> None:
    one = read("0001_a.sql", "-- What it is\nCREATE TABLE a (b int);\n")
    other = read("0001_b.sql", "CREATE TABLE a\n    (b int);")
    assert one.checksum == other.checksum
    assert one.checksum != read("0001_a.sql", "CREATE TABLE a (b text);").checksum


# -- applying them ---------------------------------------------------------------------


async def test_an_empty_database_is_refused_until_it_is_migrated(database: Server) -> None:
    url = database.url(NAME)
    with pytest.raises(StoreTooOld, match="has no Penstock schema") as caught:
        await look(url)
    assert "penstock migrate --store" in str(caught.value)
    names = tuple(item.name for item in known(database.SCHEME))
    created = ("functions", "views") if database.SCHEME == "postgresql" else ("views",)
    assert await migrate(url) == Migrated(0, len(names), (*names, *created))
    assert await migrate(url) == Migrated(len(names), len(names), ())
    assert recorded(database) == [[str(n), name] for n, name in enumerate(names, 1)]
    await look(url)


async def test_of_several_at_once_one_does_it_and_the_others_find_it_done(
    database: Server,
) -> None:
    url = database.url(NAME)
    done = await asyncio.gather(*(migrate(url) for _ in range(6)))
    last = len(known(database.SCHEME))
    assert sorted(item.before for item in done) == [0, *[last] * 5]
    assert {item.after for item in done} == {last}
    assert len(recorded(database)) == last


async def test_an_older_schema_is_refused_and_brought_up_to_date(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.url(NAME)
    await migrate(url)
    last = len(known(database.SCHEME))
    with_more(monkeypatch, database.SCHEME, "CREATE TABLE penstock_more (a int);")
    with pytest.raises(StoreTooOld, match=f"has schema {last}; this Penstock needs {last + 1}"):
        await look(url)
    assert await migrate(url) == Migrated(last, last + 1, (f"{last + 1:04}_more",))
    await look(url)


async def test_functions_that_differ_are_refused_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``functions.sql`` may change without a migration."""
    found = server("postgresql")
    found.drop_database(NAME)
    found.create_database(NAME)
    url = found.url(NAME)
    source = "SELECT prosrc FROM pg_proc WHERE proname = 'penstock_write'"
    ours = functions("postgresql")
    assert ours is not None
    older = Functions(tuple(item.replace("BEGIN", "BEGIN\n", 1) for item in ours.statements), "x")
    with monkeypatch.context() as before:
        before.setattr(migrations, "functions", lambda _: older)
        await migrate(url)
        await look(url)
    was = found.sql(source, NAME)
    with pytest.raises(StoreTooOld, match="functions"):
        await look(url)
    last = len(known("postgresql"))
    assert await migrate(url) == Migrated(last, last, ("functions",))
    assert await migrate(url) == Migrated(last, last, ())
    await look(url)
    assert found.sql(source, NAME) != was
    found.drop_database(NAME)


@law("Q2")
async def test_what_partitions_have_already_is_counted(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migration ``partitions``: a store that was in use before it knows what it has (Q2)."""
    url = database.url(NAME)
    every = known(database.SCHEME)
    (number,) = [item.number for item in every if item.name.endswith("_partitions")]
    with monkeypatch.context() as older:
        older.setattr(migrations, "known", lambda _: every[: number - 1])
        older.setattr(migrations, "functions", lambda _: None)
        without_views(older, database)
        await migrate(url)
    never = (1 << 63) - 1
    runs = [
        *((1, 0, 5, 16384, 3, "'a'"), (1, 3, 5, 7, 2, "'a'"), (1, 0, 4, 16390, 1, "'b'")),
        *((1, 4, 5, 16400, 9, "NULL"), (2, 2, 5, 16384, 4, "''")),
    ]
    for queue, phase, rank, place, size, partition in runs:
        database.sql(
            f"INSERT INTO penstock_run VALUES ({queue}, {phase}, {rank}, {place}, 1, {size}, "
            f"{never}, {partition}, NULL, 'm', 'l')",
            NAME,
        )
    await migrate(url)
    counted = "SELECT queue, partition_key, unsettled FROM penstock_partition ORDER BY 1, 2"
    found = [(queue, unsettled) for queue, _, unsettled in database.sql(counted, NAME)]
    assert found == [("1", "5"), ("1", "1"), ("2", "4")]


@law("C1")
async def test_a_store_of_the_version_before_leased_server_numbers_is_used_on(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migration ``server_numbers``: what was in flight stays so (C1)."""
    url = database.url(NAME)
    every = known(database.SCHEME)
    (number,) = [item.number for item in every if item.name.endswith("_server_numbers")]
    with monkeypatch.context() as older:
        older.setattr(migrations, "known", lambda _: every[: number - 1])
        older.setattr(migrations, "functions", lambda _: None)
        without_views(older, database)
        await migrate(url)
    if database.SCHEME == "postgresql":
        database.sql("SELECT setval('penstock_server', 1025)", NAME)
    else:
        database.sql("INSERT INTO penstock_server (one, number) VALUES (1, 1025)", NAME)
    database.sql(
        "INSERT INTO penstock_run VALUES (99, 3, 5, 7, 1, 1, 9, NULL, NULL, 'm', 'l')", NAME
    )
    with pytest.raises(StoreTooOld):
        await open_engine(url, EngineOptions())
    await migrate(url)
    engine = await open_engine(url, EngineOptions())
    try:
        await engine.publish("t", "topic", [NewMessage(b"x")])
        (delivery,) = await engine.claim("t", "topic", "c", 1, None)
        assert delivery.payload == b"x"
    finally:
        await engine.close()
    assert database.sql("SELECT number FROM penstock_server", NAME) == [["1"]]
    assert database.sql("SELECT count(*) FROM penstock_run WHERE row_key = 7", NAME) == [["1"]]


async def test_a_newer_schema_is_refused(database: Server) -> None:
    url = database.url(NAME)
    await migrate(url)
    last = len(known(database.SCHEME))
    database.sql(
        "INSERT INTO penstock_migration (number, name, checksum, applied_at) "
        f"VALUES ({last + 1}, 'x', 'y', 1)",
        NAME,
    )
    for attempt in (look, migrate):
        with pytest.raises(StoreTooNew, match=f"has schema {last + 1}.*knows schemas up to {last}"):
            await attempt(url)


async def test_a_migration_that_was_changed_afterwards_is_refused(database: Server) -> None:
    url = database.url(NAME)
    await migrate(url)
    database.sql("UPDATE penstock_migration SET checksum = 'other' WHERE number = 1", NAME)
    for attempt in (look, migrate):
        with pytest.raises(StoreError, match="was changed after it was applied"):
            await attempt(url)


# -- failing in the middle -------------------------------------------------------------

MORE = """
CREATE TABLE penstock_one (a int);
CREATE TABLE penstock_two (a int NOT NULL);
ALTER TABLE penstock_two ADD COLUMN b int;
CREATE INDEX penstock_two_b ON penstock_two (b);
INSERT INTO penstock_two (a, b) VALUES (1, 2);
UPDATE penstock_two SET a = a + 1;
ALTER TABLE penstock_two DROP COLUMN b;
ALTER TABLE penstock_one RENAME TO penstock_three;
DROP TABLE penstock_three;
"""


async def test_a_statement_that_fails_is_named(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.url(NAME)
    await migrate(url)
    last = len(known(database.SCHEME))
    broken = "CREATE TABLE penstock_one (a int);\nCREATE TABLE (a int);\n"
    with_more(monkeypatch, database.SCHEME, broken)
    with pytest.raises(StoreError, match=f"Statement 2 of migration {last + 1:04}_more failed"):
        await migrate(url)
    # What is in place in between is no schema to work with.
    with pytest.raises(StoreTooOld):
        await look(url)
    if database.SCHEME == "postgresql":
        assert "penstock_one" not in database.tables(NAME)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash", range(9))
async def test_what_a_crash_left_half_done_is_finished_by_the_next(
    database: Server, monkeypatch: pytest.MonkeyPatch, crash: int, after: bool
) -> None:
    """The connection is cut before or after a statement; nothing is lost and nothing done twice."""
    url = database.url(NAME)
    await migrate(url)
    *_, more = with_more(monkeypatch, database.SCHEME, MORE)
    cut = Cut(monkeypatch, database, more.statements[crash], after=after)
    with pytest.raises(StoreUnavailable, match="run the migration again"):
        await migrate(url)
    assert cut.happened
    with pytest.raises(StoreTooOld):
        await look(url)
    cut.over()
    assert (await migrate(url)).applied == (more.name,)
    assert database.sql("SELECT a FROM penstock_two", NAME) == [["2"]]
    assert not {"penstock_one", "penstock_three"} & set(database.tables(NAME))
    assert await migrate(url) == Migrated(more.number, more.number, ())


class Cut:
    """Ends every connection to the database before or after a statement."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, found: Server, statement: str, *, after: bool
    ) -> None:
        self.happened = False
        self._over = False
        self._server = found
        self._statement = statement
        self._after = after
        if found.SCHEME == "postgresql":
            import asyncpg

            kind, name = asyncpg.Connection, "execute"
        else:
            from penstock.storage.sql.mysql.connection import Link

            kind, name = Link, "execute_text"
        self._execute = getattr(kind, name)
        cut = self

        async def execute(connection: object, query: str, *args: object, **more: object) -> object:
            return await cut.execute(connection, query, *args, **more)

        monkeypatch.setattr(kind, name, execute)

    async def execute(
        self, connection: object, query: str, *args: object, **more: object
    ) -> object:
        wanted = query == self._statement and not self._over
        if wanted and not self._after:
            self._kill()
        done = await self._execute(connection, query, *args, **more)
        if wanted:
            self._kill()
        return done

    def _kill(self) -> None:
        self.happened = True
        self._server.kill_backends(NAME)

    def over(self) -> None:
        self._over = True


async def test_who_waits_too_long_for_another_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.storage.sql.postgresql import schema

    monkeypatch.setitem(schema._SETTINGS, "lock_timeout", "50ms")
    found = server("postgresql")
    found.drop_database(NAME)
    found.create_database(NAME)
    import asyncpg

    other = await asyncpg.connect(
        host=str(found.folder), port=found.port, user="postgres", database=NAME
    )
    async with other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock($1)", schema._LOCK)
        with pytest.raises(StoreBusy, match="Another process changes the schema"):
            await migrate(found.url(NAME))
    await other.close()
    assert (await migrate(found.url(NAME))).before == 0
