"""Private PostgreSQL and MariaDB servers, and empty stores in them.

Servers are set up as unlike a developer's machine as is usual elsewhere: PostgreSQL sorts text as
people do, MariaDB takes it for latin1, and the store's user may do nothing beyond its database.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncmy
import asyncpg
import pytest

from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql.database import load_module
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.migrations import migrate
from penstock.testing.opening import Opener
from tests.private_server import PASSWORD, START_S, STOP_S, USER, Server, binary

__all__ = [
    "PASSWORD",
    "USER",
    "MariaDB",
    "PostgreSQL",
    "Server",
    "empty_url",
    "server",
    "store_opener",
    "store_url",
    "without_views",
]


class PostgreSQL(Server):
    """PostgreSQL, the newest that is installed."""

    SCHEME = "postgresql"
    USERS = ("postgres", "nobody")
    STOP = signal.SIGINT
    ABANDON = signal.SIGQUIT

    def __init__(self, *, fsync: bool = False) -> None:
        self._bin = _postgresql_bin()
        super().__init__(fsync=fsync)

    def _install(self) -> None:
        self._run(
            [
                *(str(self._bin / "initdb"), "--no-sync", "--no-instructions"),
                *("-D", str(self.data), "-U", "postgres", "-E", "UTF8", "--no-locale"),
                *("--locale-provider=icu", "--icu-locale=en-US"),
                *("--auth-local=trust", "--auth-host=scram-sha-256"),
            ]
        )

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": 200,
            "shared_buffers": "128MB",
            # In the data folder, where a killed server leaves nothing behind.
            "dynamic_shared_memory_type": "mmap",
            "timezone": "UTC",
            # After a kill: the disk as a whole, and not file by file.
            "recovery_init_sync_method": "syncfs",
        }
        if not self.fsync:
            settings |= {"fsync": "off", "full_page_writes": "off"}
            settings |= {"wal_level": "minimal", "max_wal_senders": 0}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._bin / "postgres"), "-D", str(self.data), *flags]

    def _ready(self) -> bool:
        with suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().split("\n")
            return lines[0] == str(self.pid) and len(lines) > 7 and lines[7].strip() == "ready"
        return False

    def _create_user(self) -> None:
        self.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")

    def close(self) -> None:
        if not self.running:
            # A killed one leaves a segment of shared memory behind, by which it locks its data.
            with suppress(OSError):
                segment = (self.data / "postmaster.pid").read_text().split("\n")[6].split()[1]
                subprocess.run(["ipcrm", "-m", segment], capture_output=True)
        super().close()

    def sql(self, statements: str, database: str | None = None) -> list[list[str]]:
        output = self._run(
            [
                *(str(self._bin / "psql"), "-h", str(self.folder), "-p", str(self.port)),
                *("-U", "postgres", "-d", database or "postgres", "-v", "ON_ERROR_STOP=1"),
                *("-XqAt", "-F", "\t", "-c", statements),
            ]
        )
        return [line.split("\t") for line in output.splitlines()]

    def create_database(self, name: str) -> None:
        self.sql(f'CREATE DATABASE "{name}" OWNER {USER}')

    def drop_database(self, name: str) -> None:
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def kill_backends(self, database: str) -> None:
        self.sql(_PG_KILL.format(database))

    def tables(self, database: str) -> list[str]:
        listing = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'penstock%'"
        return [name for (name,) in self.sql(listing, database)]

    def empty(self, database: str, tables: Iterable[str]) -> None:
        # A fraction of the time of TRUNCATE, which makes new files for tables and indexes.
        deletes = ";".join(f'DELETE FROM "{table}"' for table in tables)
        unchecked = "SET session_replication_role = replica"
        _wait(self._execute(f"{_PG_KILL.format(database)};{unchecked};{deletes}", database))

    async def _execute(self, statements: str, database: str) -> None:
        """What ``sql`` does, without a program of its own: it comes before every test."""
        connection = await asyncpg.connect(
            host=str(self.folder), port=self.port, user="postgres", database=database
        )
        try:
            await connection.execute(statements)
        finally:
            await connection.close()


_PG_KILL = """SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = '{}' AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""


class MariaDB(Server):
    """MariaDB."""

    SCHEME = "mysql"
    USERS = ("mysql", "nobody")
    STOP = signal.SIGTERM
    ABANDON = signal.SIGKILL

    def __init__(self, *, fsync: bool = False) -> None:
        self._server = binary("mariadbd", "mariadb-server")
        self._client = binary("mariadb", "mariadb-client")
        super().__init__(fsync=fsync)

    @property
    def socket(self) -> Path:
        """Where the administrator connects."""
        return self.folder / "socket"

    def _install(self) -> None:
        self._run(
            [
                *(binary("mariadb-install-db", "mariadb-server"), "--no-defaults"),
                *(f"--datadir={self.data}", "--skip-test-db", "--skip-name-resolve"),
                *("--auth-root-authentication-method=normal", "--innodb-flush-method=nosync"),
                *("--innodb-doublewrite=0", "--innodb-buffer-pool-size=16M"),
                f"--innodb-log-file-size={self._log_file_size}",
                # A server that starts clears away what it finds there, whosever it is.
                f"--tmpdir={self.folder}",
            ]
        )

    @property
    def _log_file_size(self) -> str:
        return "96M" if self.fsync else "48M"

    def _command(self) -> list[str]:
        settings = {
            "datadir": self.data,
            "socket": self.socket,
            "pid-file": self.folder / "pid",
            "tmpdir": self.folder,
            "bind-address": "127.0.0.1",
            "port": self.port,
            "max-connections": 200,
            "innodb-buffer-pool-size": "128M",
            "innodb-log-file-size": self._log_file_size,
            "default-time-zone": "+00:00",
        }
        if not self.fsync:
            settings |= {"innodb-flush-log-at-trx-commit": 2, "innodb-flush-method": "nosync"}
            settings |= {"innodb-doublewrite": 0}
        flags = [f"--{name}={value}" for name, value in settings.items()]
        return [self._server, "--no-defaults", "--skip-name-resolve", *flags]

    def _ready(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(START_S)
            probe.connect(str(self.socket))
            # The greeting; a killed server's socket is still there, but nobody behind it.
            return bool(probe.recv(1))
        return False

    def _create_user(self) -> None:
        self.sql(f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")
        # The simulation looks at the locks of the server.
        self.sql(f"GRANT PROCESS ON *.* TO '{USER}'@'%'")

    def sql(self, statements: str, database: str | None = None) -> list[list[str]]:
        output = self._run(
            [
                *(self._client, "--no-defaults", f"--socket={self.socket}", "--user=root"),
                *("-N", "-B", "-e", statements, *([database] if database else [])),
            ]
        )
        return [line.split("\t") for line in output.splitlines()]

    def create_database(self, name: str) -> None:
        self.sql(f"CREATE DATABASE `{name}`; GRANT ALL ON `{name}`.* TO '{USER}'@'%'")

    def drop_database(self, name: str) -> None:
        self.kill_backends(name)
        self.sql(f"DROP DATABASE IF EXISTS `{name}`")

    def kill_backends(self, database: str) -> None:
        doomed = self.sql(_MARIADB_KILL.format(database))
        deadline = time.monotonic() + STOP_S
        while doomed and any(one in doomed for one in self.sql(_MARIADB_CONNECTIONS)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"connections to {database} do not end")

    def tables(self, database: str) -> list[str]:
        listing = """SELECT table_name FROM information_schema.tables
            WHERE table_schema = '{}' AND table_type <> 'VIEW'"""
        return [name for (name,) in self.sql(listing.format(database))]

    def empty(self, database: str, tables: Iterable[str]) -> None:
        _wait(self._empty(database, tables))

    async def _empty(self, database: str, tables: Iterable[str]) -> None:
        """Without a program of its own: it comes before every test."""
        connection = await asyncmy.connect(
            unix_socket=str(self.socket), user="root", database=database, autocommit=True
        )
        try:
            async with connection.cursor() as cursor:
                while await cursor.execute(_MARIADB_OTHERS, (database,)):
                    for (other,) in await cursor.fetchall():
                        with suppress(asyncmy.errors.OperationalError):
                            await cursor.execute(f"KILL {other}")
                await cursor.execute("SET foreign_key_checks = 0")
                for table in tables:
                    await cursor.execute(f"DELETE FROM `{table}`")
        finally:
            await connection.ensure_closed()


_MARIADB_OTHERS = """SELECT id FROM information_schema.processlist
    WHERE db = %s AND id <> CONNECTION_ID()"""
_MARIADB_CONNECTIONS = "SELECT id FROM information_schema.processlist"
#: Who was connected; those who go by themselves in the meantime are no error.
_MARIADB_KILL = """DELIMITER //
BEGIN NOT ATOMIC
    DECLARE CONTINUE HANDLER FOR 1094 DO 0;
    SELECT id FROM information_schema.processlist WHERE db = '{0}';
    FOR one IN (SELECT id FROM information_schema.processlist WHERE db = '{0}') DO
        KILL one.id;
    END FOR;
END //"""


# -- of this process -------------------------------------------------------------------

_KINDS: dict[str, type[Server]] = {kind.SCHEME: kind for kind in (PostgreSQL, MariaDB)}
_servers: dict[str, Server] = {}
#: By URL, the tables that have rows of a store in them.
_stores: dict[str, list[str]] = {}
#: By dialect, the folder of the test whose store is open.
_occupants: dict[str, Path] = {}
#: A file in that folder: pytest gives the name of a removed folder to another test.
_OCCUPIED = "occupies-a-database"


def server(dialect: str) -> Server:
    """The server of this process, ``postgresql`` or ``mysql``; it runs from the first call on.

    Tests may kill it as they like: it is started again for the next one.
    """
    if dialect not in _servers:
        _servers[dialect] = _KINDS[dialect]()
    if not _servers[dialect].running:
        _servers[dialect].start()
    return _servers[dialect]


def store_url(dialect: str, name: str = "store") -> str:
    """An empty store. There is one of each name, and whoever still uses it is thrown out."""
    found = server(dialect)
    url = found.url(name)
    if url in _stores:
        found.empty(name, _stores[url])
    else:
        found.drop_database(name)
        found.create_database(name)
        _wait(migrate(url))
        _stores[url] = [table for table in found.tables(name) if "migration" not in table]
    return url


def empty_url(dialect: str, name: str) -> str:
    """An empty database for a simulation: without TLS, and it finds deadlocks soon."""
    found = server(dialect)
    found.drop_database(name)
    found.create_database(name)
    if dialect == "postgresql":
        found.sql(f"ALTER DATABASE {name} SET deadlock_timeout = '50ms'")
        return f"{found.url(name)}?sslmode=disable"
    return f"{found.url(name)}?ssl-mode=DISABLED"


def store_opener(dialect: str) -> Opener:
    """Opens an empty store for every folder that is new, and the same one for the same folder.

    The engine is deaf to other servers, as there are none: what it polls would come back to it as
    news, at moments of its own, and a test could not say what the engine itself has told.
    """

    async def opener(options: EngineOptions, path: Path) -> Engine:
        mark = path / _OCCUPIED
        if _occupants.get(dialect) != path or not mark.exists():
            store_url(dialect)
            _occupants[dialect] = path
            mark.touch()
        engine = await open_engine(server(dialect).url("store"), options)
        assert isinstance(engine, SqlEngine)
        await engine._watch.close()
        return engine

    return opener


def without_views(patch: pytest.MonkeyPatch, database: Server) -> None:
    """Migrate without the views, which match the last schema only."""

    async def replace_views(*_: object) -> bool:
        return False

    patch.setattr(load_module(database.SCHEME, "schema")._Schema, "replace_views", replace_views)


def _wait(work: Coroutine[Any, Any, object]) -> None:
    """Do it in a thread, because this one may have a loop that runs."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, work).result()


def _postgresql_bin() -> Path:
    """The folder of PostgreSQL's programs."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if found:
        return max(found, key=lambda path: float(path.parent.name))
    return Path(binary("postgres", "postgresql")).parent
