"""A store in a database and its copies: which changes of place begin a new epoch (A1)."""

from __future__ import annotations

import subprocess

import pytest

from penstock.errors import OtherStore
from penstock.model.identity import StoreIdentity
from penstock.model.message import Offset
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql.migrations import migrate
from penstock.testing.laws import law
from tests.databases import MariaDB, Server, server, store_url
from tests.private_server import binary
from tests.unit.storage.sql.pairs import NAME, TENANT, Pair, publish

COPY = "copied"


async def identity(url: str) -> StoreIdentity:
    engine = await open_engine(url, EngineOptions())
    try:
        return await engine.identity(TENANT)
    finally:
        await engine.close()


async def test_two_servers_of_one_store_agree(pair: Pair) -> None:
    assert await pair.a.identity(TENANT) == await pair.b.identity(TENANT)
    await pair.a.new_epoch()
    assert await pair.a.identity(TENANT) == await pair.b.identity(TENANT)


async def test_a_restored_dump_is_another_epoch_while_servers_run(dialect: str, pair: Pair) -> None:
    """The row that a dump brings names the place that the dump was made at."""
    before = await pair.a.identity(TENANT)
    database = server(dialect)
    database.sql("CREATE TABLE kept AS SELECT * FROM penstock_store", NAME)
    try:
        # PostgreSQL gives the new table another oid. MySQL only sees another database.
        word = {"postgresql": "table=", "mysql": "database="}[dialect]
        database.sql(f"UPDATE kept SET place = REPLACE(place, '{word}', '{word}1')", NAME)
        database.sql("DELETE FROM penstock_store", NAME)
        database.sql("INSERT INTO penstock_store SELECT * FROM kept", NAME)
    finally:
        database.sql("DROP TABLE kept", NAME)
    after = await pair.b.identity(TENANT)
    assert after.store == before.store
    assert after.epoch != before.epoch
    assert await pair.a.identity(TENANT) == after


@law("A1")
async def test_archived_is_checked_by_every_server(pair: Pair) -> None:
    await publish(pair.a, "old", b"1")
    identity = await pair.a.identity(TENANT)
    end = await pair.a.log_end(TENANT)
    await pair.b.archived(TENANT, Offset(end - 1), identity)
    with pytest.raises(OtherStore, match=f"log ends at {end}"):
        await pair.b.archived(TENANT, end, identity)


async def test_a_store_that_was_emptied_is_another_store(dialect: str, pair: Pair) -> None:
    before = await pair.a.identity(TENANT)
    server(dialect).sql("DELETE FROM penstock_store", NAME)
    assert (await pair.a.identity(TENANT)).store != before.store


async def test_a_copied_postgresql_database_is_another_epoch() -> None:
    url = store_url("postgresql", NAME)
    original = await identity(url)
    database = server("postgresql")
    database.drop_database(COPY)
    database.sql(f"CREATE DATABASE {COPY} TEMPLATE {NAME}")
    try:
        copy = await identity(database.url(COPY))
    finally:
        database.drop_database(COPY)
    assert copy.store == original.store
    assert copy.epoch != original.epoch
    assert await identity(url) == original


async def test_a_mysql_store_under_another_name_is_another_epoch() -> None:
    url = store_url("mysql", NAME)
    original = await identity(url)
    copied = store_url("mysql", COPY)
    server("mysql").sql(f"INSERT INTO {COPY}.penstock_store SELECT * FROM {NAME}.penstock_store")
    copy = await identity(copied)
    assert copy.store == original.store
    assert copy.epoch != original.epoch
    assert await identity(url) == original


@law("A1")
async def test_a_mariadb_dump_that_is_restored_is_another_epoch() -> None:
    """Under the same name, on the same server."""
    database = server("mysql")
    assert isinstance(database, MariaDB)
    url = await _migrated(database)
    original = await identity(url)
    _dump_and_restore(database)
    try:
        restored = await identity(url)
        assert restored.store == original.store
        assert restored.epoch != original.epoch
        assert await identity(url) == restored
    finally:
        database.drop_database(COPY)


@pytest.mark.parametrize(
    "statement",
    [
        "OPTIMIZE TABLE penstock_place",
        "ALTER TABLE penstock_place FORCE",
        "ALTER TABLE penstock_place CONVERT TO CHARACTER SET utf8mb4",
        "RENAME TABLE penstock_place TO a_while, a_while TO penstock_place",
    ],
)
async def test_a_rebuilt_place_of_mariadb_is_no_new_epoch(statement: str) -> None:
    database = server("mysql")
    url = await _migrated(database)
    try:
        original = await identity(url)
        database.sql(statement, COPY)
        assert await identity(url) == original
    finally:
        database.drop_database(COPY)


def _dump_and_restore(database: MariaDB) -> None:
    login = ("--no-defaults", f"--socket={database.socket}", "--user=root")
    options = ("--single-transaction", "--hex-blob", "--routines")
    dump = [binary("mariadb-dump", "mariadb-client"), *login, *options, COPY]
    dumped = subprocess.run(dump, capture_output=True, check=True)
    database.drop_database(COPY)
    database.create_database(COPY)
    restore = [binary("mariadb", "mariadb-client"), *login, COPY]
    subprocess.run(restore, input=dumped.stdout, check=True)


async def _migrated(database: Server) -> str:
    """A database as an operator makes it."""
    database.drop_database(COPY)
    database.create_database(COPY)
    await migrate(database.url(COPY))
    return database.url(COPY)


@pytest.mark.parametrize("statement", ["FLUSH TABLES", "ANALYZE TABLE penstock_store"])
async def test_upkeep_of_a_mysql_database_is_no_new_epoch(statement: str) -> None:
    url = store_url("mysql", NAME)
    original = await identity(url)
    server("mysql").sql(statement, NAME)
    assert await identity(url) == original


@pytest.mark.parametrize(
    "statement", ["OPTIMIZE TABLE penstock_store", "ALTER TABLE penstock_store FORCE"]
)
async def test_a_rebuilt_mysql_table_is_no_new_epoch(statement: str) -> None:
    url = store_url("mysql", NAME)
    original = await identity(url)
    database = server("mysql")

    def created() -> list[list[str]]:
        return database.sql(
            "SELECT create_time FROM information_schema.tables "
            f"WHERE table_schema = '{NAME}' AND table_name = 'penstock_store'"
        )

    # The database dates tables by the second: rebuild until the date is another.
    before = created()
    while created() == before:
        database.sql(statement, NAME)
    assert await identity(url) == original


async def test_a_place_as_an_earlier_version_noted_it_is_brought_up_to_date(dialect: str) -> None:
    url = store_url(dialect, NAME)
    original = await identity(url)
    database = server(dialect)
    ((place,),) = database.sql("SELECT place FROM penstock_store", NAME)
    outdated = "former=1 " + place.split()[-1]
    database.sql(f"UPDATE penstock_store SET place = '{outdated}'", NAME)
    assert await identity(url) == original
    assert database.sql("SELECT place FROM penstock_store", NAME) == [[place]]
