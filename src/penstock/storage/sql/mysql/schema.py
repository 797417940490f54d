"""Changing the schema on MySQL, where DDL cannot be rolled back.

Every DDL statement commits implicitly, so a migration is recorded before its first statement, and
the number of finished statements after each. After a crash, the next attempt continues from
there. Only the statement during which it happened may have run without being counted: an error
that its effect already exists proves that it did. Changes of rows are counted in their own
transaction. A server lock excludes other migrations.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import asyncmy
from msgspec.structs import replace

from penstock.errors import StoreError, StoreUnavailable
from penstock.storage.sql.database import RetryTransaction
from penstock.storage.sql.migrations import VIEWS, Applied, Migration, Schema, Views
from penstock.storage.sql.mysql.connection import Connector, Link
from penstock.storage.sql.mysql.error_mapping import FAILURES, number_of, opening, translate
from penstock.storage.sql.urls import Address

__all__ = ["opened"]

_log = logging.getLogger("penstock.storage")

#: Seconds to wait for another migration, and for the locks of running servers.
_PATIENCE_S: Final = 60
#: Seconds that one statement may take: it may have to copy a large table.
_STATEMENT_S: Final = 86_400
#: The table, column or index already exists, or is already gone.
_DONE_BEFORE: Final = frozenset({1050, 1051, 1060, 1061, 1091, 1146, 1826})
#: The first versions with SKIP LOCKED.
_OLDEST_MARIADB: Final = (10, 6)
_OLDEST_MYSQL: Final = (8, 0)
_FIND: Final = """
SELECT 1 FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = 'penstock_migration'
"""
_TABLE: Final = """
CREATE TABLE penstock_migration (
    number     integer PRIMARY KEY,
    name       varchar(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    checksum   varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- How many of its statements are done.
    done       integer NOT NULL DEFAULT 0,
    -- Null until all of them are.
    applied_at bigint
) ENGINE = InnoDB
"""
_SELECT: Final = """
SELECT number, name, checksum, CASE WHEN applied_at IS NULL THEN done END
FROM penstock_migration ORDER BY number
"""
_BEGIN: Final = """
INSERT INTO penstock_migration (number, name, checksum) VALUES (?, ?, ?)
"""
_COUNT: Final = "UPDATE penstock_migration SET done = ? WHERE number = ?"
_END: Final = """
UPDATE penstock_migration SET applied_at = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)
WHERE number = ?
"""
#: The comment on a function records the checksum of the file that created it and the views.
_VIEWS_CHECKSUM: Final = """
SELECT routine_comment, (
    SELECT COUNT(*) FROM information_schema.views
    WHERE table_schema = DATABASE() AND table_name IN (?, ?, ?)
)
FROM information_schema.routines
WHERE routine_schema = DATABASE() AND routine_name = 'penstock_unpack'
"""
_SET_VIEWS_CHECKSUM: Final = "ALTER FUNCTION penstock_unpack COMMENT '{}'"
#: The user may not create a routine or a view, or not while the server writes a binary log.
_FORBIDDEN: Final = frozenset({1044, 1142, 1227, 1370, 1419})
_LEFT_OUT: Final = (
    "The views %s were not created, because the user lacks a privilege: %s. The store works "
    "without them. To get them, grant the user CREATE VIEW, CREATE ROUTINE, ALTER ROUTINE on the "
    "database and, if the server writes a binary log, set its log_bin_trust_function_creators to "
    "1; then run 'penstock migrate' again."
)
#: Makes running servers read the catalog again, and with it the schema number.
_RAISE_VERSIONS: Final = "UPDATE penstock_tenant SET version = version + 1"


class _Schema(Schema):
    def __init__(self, link: Link) -> None:
        self._link = link

    async def applied(self) -> list[Applied]:
        # Search first: a replica has the table, and must not be written to.
        if not (await self._link.execute(_FIND)).rows:
            await self._link.execute_text(_TABLE)
        rows = (await self._link.execute(_SELECT)).rows or ()
        return [Applied(*row) for row in rows]

    async def apply(self, migration: Migration, done: int | None) -> None:
        if done is None:
            begun = (migration.number, migration.name, migration.checksum)
            await self._link.execute(_BEGIN, begun)
        for number, statement in enumerate(migration.statements[done or 0 :], (done or 0) + 1):
            await self._link.execute_text("START TRANSACTION")
            try:
                await self._link.execute_text(statement)
            except asyncmy.MySQLError as error:
                uncounted = done is not None and number == done + 1
                if not uncounted or number_of(error) not in _DONE_BEFORE:
                    _refuse(error, migration, number)
            await self._link.execute(_COUNT, (number, migration.number))
            await self._link.execute_text("COMMIT")
        await self._link.execute_text("START TRANSACTION")
        await self._link.execute(_END, (migration.number,))
        await self._link.execute_text(_RAISE_VERSIONS)
        await self._link.execute_text("COMMIT")

    async def replace_views(self, views: Views) -> bool:
        rows = (await self._link.execute(_VIEWS_CHECKSUM, VIEWS)).rows or ()
        if [tuple(row) for row in rows] == [(views.checksum, len(VIEWS))]:
            return False
        try:
            for statement in views.statements:
                await self._link.execute_text(statement)
            await self._link.execute_text(_SET_VIEWS_CHECKSUM.format(views.checksum))
        except asyncmy.MySQLError as error:
            if number_of(error) not in _FORBIDDEN:
                raise
            _log.warning(_LEFT_OUT, ", ".join(VIEWS), error)
            return False
        return True


def _refuse(error: asyncmy.MySQLError, migration: Migration, number: int) -> NoReturn:
    """Name the failed statement, unless the database itself has a problem."""
    if type(translate(error)) is not StoreError:
        raise error
    raise StoreError(
        f"Statement {number} of migration {migration.name} failed. The statements before it are "
        f"applied, and the next attempt continues with it: {error}."
    ) from error


@asynccontextmanager
async def opened(address: Address) -> AsyncIterator[Schema]:
    """The schema, once no other process changes it."""
    try:
        link = await Connector(replace(address, statement_timeout=_STATEMENT_S)).connect()
    except FAILURES as error:
        raise opening(error, address.shown) from error
    try:
        await link.autocommit(True)
        await _check_version(link)
        await link.execute_text(f"SET SESSION lock_wait_timeout = {_PATIENCE_S}")
        await _lock(link, address.database)
        yield _Schema(link)
    except FAILURES as error:
        raise translate(error) from error
    finally:
        # Also releases the lock.
        await link.part()


async def _check_version(link: Link) -> None:
    ((version,),) = (await link.execute("SELECT VERSION()")).rows or ()
    oldest = _OLDEST_MARIADB if "MariaDB" in version else _OLDEST_MYSQL
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < oldest:
        raise StoreUnavailable(
            f"The database is {version}, which does not support SKIP LOCKED. "
            f"Penstock needs version {oldest[0]}.{oldest[1]} or newer."
        )


async def _lock(link: Link, database: str) -> None:
    # Locks are global to the server, and their names have at most 64 characters.
    name = f"penstock_migrate_{hashlib.sha256(database.encode()).hexdigest()[:40]}"
    ((got,),) = (await link.execute("SELECT GET_LOCK(?, ?)", (name, _PATIENCE_S))).rows or ()
    if got != 1:
        raise RetryTransaction(f"no lock in {_PATIENCE_S} s")
