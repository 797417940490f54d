"""A store in a database and its copies: which changes of place begin a new epoch (A1)."""

from __future__ import annotations

import pytest

from penstock.model.identity import StoreIdentity
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from tests.databases import server, store_url
from tests.unit.storage.sql.pairs import NAME, TENANT, Pair

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
    """A dump that is loaded drops the table and makes it again, with the same row in it."""
    before = await pair.a.identity(TENANT)
    database = server(dialect)
    database.sql("CREATE TABLE kept AS SELECT * FROM penstock_store", NAME)
    try:
        # MySQL tells the time of creation in seconds: this one is known to be another.
        place = "REPLACE(place, 'table=', 'table=1')"
        database.sql(f"UPDATE kept SET place = {place}", NAME)
        database.sql("DELETE FROM penstock_store", NAME)
        database.sql("INSERT INTO penstock_store SELECT * FROM kept", NAME)
    finally:
        database.sql("DROP TABLE kept", NAME)
    after = await pair.b.identity(TENANT)
    assert after.store == before.store
    assert after.epoch != before.epoch
    assert await pair.a.identity(TENANT) == after


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


@pytest.mark.parametrize("statement", ["FLUSH TABLES", "ANALYZE TABLE penstock_store"])
async def test_upkeep_of_a_mysql_database_is_no_new_epoch(statement: str) -> None:
    url = store_url("mysql", NAME)
    original = await identity(url)
    server("mysql").sql(statement, NAME)
    assert await identity(url) == original
