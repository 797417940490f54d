"""Databases that are not there, let nobody in, or take no writes: a typed error each, from real
servers, and no password in any of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import quote

import pytest

import penstock
from penstock.errors import (
    BadUrl,
    PenstockError,
    StoreBusy,
    StoreReadOnly,
    StoreTooOld,
    StoreUnavailable,
)
from penstock.storage.engines import open_engine
from penstock.storage.sql.database import load_module
from penstock.storage.sql.migrations import migrate
from penstock.storage.sql.urls import parse
from penstock.testing.laws import law
from tests.databases import PASSWORD, USER, PostgreSQL, Server, server, store_url
from tests.service.serving import unused_port

DIALECTS = ["postgresql", "mysql"]


async def _open(url: str) -> None:
    await (await open_engine(url)).close()


#: What somebody does with a URL.
ATTEMPTS: list[Callable[[str], Awaitable[object]]] = [_open, migrate]


async def refused(url: str, kind: type[PenstockError], words: str) -> None:
    """Opening and migrating are refused alike."""
    for attempt in ATTEMPTS:
        with pytest.raises(kind, match=words) as caught:
            await attempt(url)
        assert type(caught.value) is kind
        shown = str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)
        assert PASSWORD not in shown
        assert quote(PASSWORD, safe="") not in shown


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_wrong_password(dialect: str) -> None:
    url = server(dialect).url("store").replace(quote(PASSWORD, safe=""), "wrong")
    await refused(url, StoreUnavailable, "The password or the user is wrong")


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_unknown_user(dialect: str) -> None:
    url = server(dialect).url("store").replace(USER, "nobody", 1)
    await refused(url, StoreUnavailable, "The password or the user is wrong")


@law("E1")
async def test_no_such_database() -> None:
    await refused(
        server("postgresql").url("no%20such%20one"),
        StoreUnavailable,
        'There is no such database: database "no such one" does not exist',
    )
    found = server("mysql")
    # MySQL tells only those who might have it.
    await refused(found.url("none"), StoreUnavailable, "The user may not use the database")
    found.sql(f"GRANT ALL ON `none`.* TO '{USER}'@'%'")
    await refused(found.url("none"), StoreUnavailable, "There is no such database")


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_nobody_listens_there(dialect: str) -> None:
    for host in (f"127.0.0.1:{unused_port()}", "no-such-host.invalid"):
        url = f"{dialect}://{USER}:{quote(PASSWORD, safe='')}@{host}/store"
        await refused(url, StoreUnavailable, "cannot be reached")


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_somebody_listens_and_never_answers(dialect: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"{dialect}://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/store"
        await refused(f"{url}?connect_timeout=1", StoreUnavailable, "cannot be reached")


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_somebody_listens_who_is_no_database(dialect: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = web.sockets[0].getsockname()[1]
    async with web:
        url = f"{dialect}://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/store"
        await refused(f"{url}?connect_timeout=2", StoreUnavailable, "cannot be reached")


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_nonsense_after_the_scheme(dialect: str) -> None:
    for rest in ("", "//", "//x", "//x/", "///y", "//x:y/z", "//[/z", "//x/z?pool=many"):
        await refused(f"{dialect}:{rest}", BadUrl, "Use a URL such as")


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_database_without_tables_is_not_opened(dialect: str) -> None:
    found = server(dialect)
    found.drop_database("bare")
    found.create_database("bare")
    with pytest.raises(StoreTooOld, match="penstock migrate"):
        await open_engine(found.url("bare"))
    assert found.tables("bare") == []


# -- no connection left ----------------------------------------------------------------


@contextmanager
def at_most(found: Server, connections: int) -> Iterator[None]:
    """As many connections for the user as this."""
    if found.SCHEME == "postgresql":
        change = f"ALTER ROLE {USER} CONNECTION LIMIT {{}}"
    else:
        change = f"ALTER USER '{USER}'@'%' WITH MAX_USER_CONNECTIONS {{}}"
    found.sql(change.format(connections))
    try:
        yield
    finally:
        found.sql(change.format(-1 if found.SCHEME == "postgresql" else 0))


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_who_gets_no_connection_may_try_again(dialect: str) -> None:
    url = store_url(dialect)
    found = server(dialect)
    with at_most(found, 1):
        async with _connected(url):
            await refused(url, StoreBusy, "no connection left|max_user_connections")
    await _open(url)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[None]:
    """Somebody who has the only connection."""
    address = parse(url)
    async with load_module(address.scheme, "schema").opened(address):
        yield


# -- no writes -------------------------------------------------------------------------


@contextmanager
def read_only(found: Server, database: str) -> Iterator[None]:
    """As after a failover to a replica, or by an administrator who is busy with something."""
    if found.SCHEME == "postgresql":
        change = f'ALTER DATABASE "{database}" SET default_transaction_read_only = {{}}'
    else:
        change = "SET GLOBAL read_only = {}"
    found.sql(change.format("on"))
    found.kill_backends(database)
    try:
        yield
    finally:
        found.sql(change.format("off"))
        found.kill_backends(database)


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_database_without_tables_that_takes_no_writes(dialect: str) -> None:
    found = server(dialect)
    found.drop_database("bare")
    found.create_database("bare")
    with read_only(found, "bare"), pytest.raises(StoreReadOnly, match="does not accept writes"):
        await migrate(found.url("bare"))


@law("E1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_database_that_takes_no_writes_for_a_while(dialect: str) -> None:
    url = store_url(dialect)
    found = server(dialect)
    async with penstock.open(url, keepers=False) as q:
        await q.publish("orders", b"one")
        with read_only(found, "store"):
            with pytest.raises(StoreReadOnly) as caught:
                await q.publish("orders", b"two")
            assert caught.value.status == 503
            with pytest.raises(StoreReadOnly):
                await q.claim("orders")
            # What only looks goes on.
            assert (await q.stats("orders")).available == 1
            # There is nothing to change, so nothing is refused.
            assert (await migrate(url)).applied == ()
        await q.publish("orders", b"two")
        assert (await q.stats("orders")).available == 2


class Standby(PostgreSQL):
    """A replica of another server."""

    def __init__(self, primary: PostgreSQL) -> None:
        super().__init__(fsync=True)
        self._primary = primary

    def _install(self) -> None:
        place = ("-h", str(self._primary.folder), "-p", str(self._primary.port))
        copy = (str(self._bin / "pg_basebackup"), "-D", str(self.data), "-U", "postgres", "-R")
        self._run([*copy, *place, "-X", "stream", "-c", "fast", "--no-sync"])

    def _create_user(self) -> None:
        """It has those of the primary."""


@law("E1")
async def test_a_replica_is_refused() -> None:
    primary = PostgreSQL(fsync=True)
    primary.start()
    primary.create_database("store")
    await migrate(primary.url("store"))
    standby = Standby(primary)
    try:
        standby.start()
        assert (await migrate(standby.url("store"))).applied == ()
        with pytest.raises(StoreReadOnly, match="Connect to the primary"):
            await open_engine(standby.url("store"))
    finally:
        standby.close()
        primary.close()
