"""``penstock migrate`` creates the views, other users read them, and servers do not need them."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.model.delivery import Ack, Reject
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy
from penstock.storage.engines import open_engine
from penstock.storage.sql import migrations
from penstock.storage.sql.migrations import VIEWS, Migrated, Views, known, migrate, views
from penstock.testing.clock import FakeClock
from tests.databases import PASSWORD, MariaDB, Server, server
from tests.private_server import binary
from tests.unit.storage.sql.callers import caller
from tests.unit.storage.sql.pairs import LATEST, NAME, TENANT, claim, opened, publish, settled

DATABASE: Final = "viewed"
READER: Final = "reader"
#: Privileges on MySQL, as in docs/operations.md.
FOR_TABLES: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP"
FOR_VIEWS: Final = "CREATE VIEW, CREATE ROUTINE, ALTER ROUTINE"
#: Seconds after which a verb that should not wait hangs.
HANG_S: Final = 30
DOCUMENT: Final = Path(__file__).parents[4] / "docs" / "sql.md"


@pytest.fixture
def database(dialect: str) -> Iterator[Server]:
    """A server with an empty database."""
    found = server(dialect)
    found.drop_database(DATABASE)
    found.create_database(DATABASE)
    yield found
    found.drop_database(DATABASE)


async def use(url: str) -> None:
    """Open a store as a server does, and publish."""
    engine = await open_engine(url)
    try:
        await engine.publish(TENANT, "topic", [NewMessage(b"")])
    finally:
        await engine.close()


async def test_views_that_are_missing_or_old_are_created_and_no_server_needs_them(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.url(DATABASE)
    last = len(known(database.SCHEME))
    ours = views(database.SCHEME)
    with monkeypatch.context() as before:
        before.setattr(migrations, "views", lambda _: Views(ours.statements, "older"))
        assert "views" in (await migrate(url)).applied
    await use(url)
    assert await migrate(url) == Migrated(last, last, ("views",))
    assert await migrate(url) == Migrated(last, last, ())
    for name in VIEWS:
        database.sql(f"DROP VIEW {name}", DATABASE)
        await use(url)
        assert await migrate(url) == Migrated(last, last, ("views",))
    assert database.sql("SELECT COUNT(*) FROM penstock_messages", DATABASE) == [["4"]]


@pytest.mark.parametrize("granted", ["CREATE VIEW", "CREATE ROUTINE", "SELECT"])
async def test_a_user_of_mysql_who_may_not_create_views_gets_a_store(
    granted: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = server("mysql")
    database.drop_database(DATABASE)
    database.create_database(DATABASE)
    database.sql(f"CREATE USER maker IDENTIFIED BY '{PASSWORD}'")
    database.sql(
        f"GRANT {FOR_TABLES} ON {DATABASE}.* TO maker; GRANT {granted} ON {DATABASE}.* TO maker"
    )
    url = database.url(DATABASE).replace("penstock:", "maker:", 1)
    last = len(known("mysql"))
    try:
        with caplog.at_level(logging.WARNING, "penstock.storage"):
            assert (await migrate(url)).applied == tuple(item.name for item in known("mysql"))
        (record,) = caplog.records
        assert FOR_VIEWS in record.getMessage()
        assert "'penstock migrate'" in record.getMessage()
        await use(url)
        database.sql(f"GRANT {FOR_VIEWS} ON {DATABASE}.* TO maker")
        assert await migrate(url) == Migrated(last, last, ("views",))
        assert await migrate(url) == Migrated(last, last, ())
        assert database.sql("SELECT COUNT(*) FROM penstock_messages", DATABASE) == [["1"]]
    finally:
        database.drop_database(DATABASE)
        database.sql("DROP USER maker")


async def test_a_dump_without_functions_restores_everything_but_the_views() -> None:
    database = server("mysql")
    assert isinstance(database, MariaDB)
    database.drop_database(DATABASE)
    database.create_database(DATABASE)
    url = database.url(DATABASE)
    try:
        await migrate(url)
        await use(url)
        assert "penstock_unpack" in _dump_and_restore(database)
        await use(url)
        assert (await migrate(url)).applied == ("views",)
        assert database.sql("SELECT COUNT(*) FROM penstock_messages", DATABASE) == [["2"]]
    finally:
        database.drop_database(DATABASE)


def _dump_and_restore(database: MariaDB) -> str:
    """Returns the error at which restoring ends."""
    login = ("--no-defaults", f"--socket={database.socket}", "--user=root")
    dump = [binary("mariadb-dump", "mariadb-client"), *login, "--hex-blob", DATABASE]
    dumped = subprocess.run(dump, capture_output=True, check=True)
    database.drop_database(DATABASE)
    database.create_database(DATABASE)
    restore = [binary("mariadb", "mariadb-client"), *login, DATABASE]
    return subprocess.run(restore, input=dumped.stdout, capture_output=True).stderr.decode()


async def test_a_user_reads_the_views_without_access_to_the_tables(database: Server) -> None:
    url = database.url(DATABASE)
    await migrate(url)
    engine = await open_engine(url)
    await engine.put_queue(TENANT, "q", QueuePolicy(), LATEST)
    await engine.publish(TENANT, "topic", [NewMessage(b"", {"third": 1 / 3})])
    await engine.close()
    if database.SCHEME == "postgresql":
        # Without the schema in the search path, functions must not depend on it.
        setup = f"CREATE ROLE {READER}; GRANT SELECT ON {', '.join(VIEWS)} TO {READER}"
        before, prefix = f"SET ROLE {READER}; SET search_path = ''; ", "public."
    else:
        grants = (f"GRANT SELECT ON {DATABASE}.{name} TO {READER}" for name in VIEWS)
        setup = "; ".join([f"CREATE ROLE {READER}", f"GRANT {READER} TO root@localhost", *grants])
        before, prefix = f"SET ROLE {READER}; ", ""
    try:
        database.sql(setup, DATABASE)
        for name in VIEWS:
            assert len(database.sql(f"{before}SELECT * FROM {prefix}{name}", DATABASE)) == 1
    finally:
        database.drop_database(DATABASE)
        database.sql(f"DROP ROLE {READER}")


async def test_reading_the_views_blocks_no_verb(dialect: str) -> None:
    async with opened(dialect, FakeClock()) as (engine,):
        await engine.put_queue(TENANT, "q", QueuePolicy(), LATEST)
        await publish(engine, "topic", b"0", b"1", b"2")
        (one,) = await claim(engine, "q", 1)
        reader = await caller(dialect, NAME)
        try:
            await reader.begin("REPEATABLE READ")
            first = [await reader.run(f"SELECT * FROM {name}") for name in VIEWS]
            async with asyncio.timeout(HANG_S):
                await publish(engine, "topic", b"3")
                assert await settled(engine, "q", Ack(one.receipt)) == ["ok"]
                assert len(await claim(engine, "q")) == 3
                await engine.put_queue(TENANT, "q", QueuePolicy(paused=True), LATEST)
            # It is a snapshot.
            assert [await reader.run(f"SELECT * FROM {name}") for name in VIEWS] == first
            await reader.roll_back()
        finally:
            await reader.close()


async def test_the_queries_of_the_document_answer_on_both_databases(dialect: str) -> None:
    section = DOCUMENT.read_text().split("\n## Views\n")[1].split("\n## ")[0]
    depths, errors, newest = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    clock = FakeClock()
    async with opened(dialect, clock) as (engine,):
        for queue in ("orders", "idle"):
            await engine.put_queue("default", queue, QueuePolicy(filter="topic = 'orders'"), LATEST)
        await engine.publish(
            "default", "orders", [NewMessage(b"%d" % nth, {"nth": nth}) for nth in range(5)]
        )
        for nth, error in enumerate(["late", "broken", "late"]):
            clock.advance(nth)
            (one,) = await engine.claim("default", "orders", "c", 1, None)
            await engine.settle("default", "orders", [Reject(one.receipt, error)])
        reader = await caller(dialect, NAME)
        try:
            found: list[Any] = [await reader.run(text) for text in (depths, errors, newest)]
        finally:
            await reader.close()
    assert [tuple(row) for row in found[0]] == [("orders", 2, 0, 3)]
    assert [tuple(row[:2]) for row in found[1]] == [("late", 2), ("broken", 1)]
    assert [(row[1], row[2], row[-1]) for row in found[2]] == [
        *((1, "late", b"2"), (1, "broken", b"1"), (1, "late", b"0")),
    ]
