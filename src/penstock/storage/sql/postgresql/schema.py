"""Changing the schema on PostgreSQL: all missing migrations, or none of them.

One transaction contains all changes, and an advisory lock excludes other processes until it ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg

from penstock.errors import StoreError
from penstock.storage.sql.migrations import VIEWS, Applied, Functions, Migration, Schema, Views
from penstock.storage.sql.postgresql.error_mapping import FAILURES, opening, translate
from penstock.storage.sql.statements import load
from penstock.storage.sql.urls import Address

__all__ = ["opened"]

#: The key of the advisory lock; the same in every Penstock.
_LOCK: Final = 0x70656E73746F636B
#: Running servers hold locks for milliseconds, and another migration rarely takes long.
_SETTINGS: Final = {
    "application_name": "penstock migrate",
    "lock_timeout": "60s",
}
_CLOSE_S: Final = 5
_TABLE: Final = """
CREATE TABLE penstock_migration (
    number     integer PRIMARY KEY,
    name       text COLLATE "C" NOT NULL,
    checksum   text COLLATE "C" NOT NULL,
    applied_at bigint NOT NULL
)
"""
_INSERT: Final = """
INSERT INTO penstock_migration (number, name, checksum, applied_at)
VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
"""
#: The comment on a function records the checksum of the file that created it.
_CHECKSUM: Final = load("postgresql")["functions_checksum"]
_SET_CHECKSUM: Final = "COMMENT ON FUNCTION penstock_write IS '{}'"
#: The comments on the views do the same.
_CURRENT_VIEWS: Final = """
SELECT count(*) FROM unnest($1::text[]) AS views (name)
WHERE obj_description(to_regclass(name), 'pg_class') = $2
"""
_SET_VIEW_CHECKSUM: Final = "COMMENT ON VIEW {} IS '{}'"
#: Makes running servers read the catalog again, and with it the schema number.
_RAISE_VERSIONS: Final = "UPDATE penstock_tenant SET version = version + 1"


class _Schema(Schema):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def applied(self) -> list[Applied]:
        # Search first: a replica has the table, and must not be written to.
        if await self._connection.fetchval("SELECT to_regclass('penstock_migration')") is None:
            await self._connection.execute(_TABLE)
        rows = await self._connection.fetch(
            "SELECT number, name, checksum FROM penstock_migration ORDER BY number"
        )
        return [Applied(*row) for row in rows]

    async def apply(self, migration: Migration, done: int | None) -> None:
        assert done is None
        for number, statement in enumerate(migration.statements, 1):
            try:
                await self._connection.execute(statement)
            except asyncpg.PostgresError as error:
                found = translate(error, committing=False)
                if type(found) is not StoreError:
                    raise
                raise StoreError(
                    f"Statement {number} of migration {migration.name} failed, so nothing was "
                    f"changed: {error}."
                ) from error
        await self._connection.execute(
            _INSERT, migration.number, migration.name, migration.checksum
        )
        await self._connection.execute(_RAISE_VERSIONS)

    async def replace_functions(self, functions: Functions) -> bool:
        if await self._connection.fetchval(_CHECKSUM) == functions.checksum:
            return False
        for statement in functions.statements:
            await self._connection.execute(statement)
        await self._connection.execute(_SET_CHECKSUM.format(functions.checksum))
        return True

    async def replace_views(self, views: Views) -> bool:
        current = await self._connection.fetchval(_CURRENT_VIEWS, VIEWS, views.checksum)
        if current == len(VIEWS):
            return False
        for statement in views.statements:
            await self._connection.execute(statement)
        for name in VIEWS:
            await self._connection.execute(_SET_VIEW_CHECKSUM.format(name, views.checksum))
        return True


@asynccontextmanager
async def opened(address: Address) -> AsyncIterator[Schema]:
    """The schema, once no other process changes it; committed at the end."""
    try:
        connection = await asyncpg.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=address.database,
            ssl=address.tls(),
            timeout=address.connect_timeout,
            server_settings=_SETTINGS,
        )
    except FAILURES as error:
        raise opening(error, address.shown) from error
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            yield _Schema(connection)
    except FAILURES as error:
        raise translate(error, committing=False) from error
    finally:
        # If it cannot close properly, the driver drops the connection and raises.
        with suppress(*FAILURES):
            await connection.close(timeout=_CLOSE_S)
