"""Opens stores in databases for copies, by URL."""

from __future__ import annotations

from penstock.storage.sql.connecting import open_database
from penstock.storage.sql.migrations import check, migrate
from penstock.storage.sql.transfer.stores import SqlSource, SqlTarget

__all__ = ["open_source", "open_target"]


async def open_source(url: str) -> SqlSource:
    """Open the store; ``StoreLocked`` while a server has it open."""
    database = await open_database(url)
    try:
        await check(database)
        return await SqlSource.open(database)
    except BaseException:
        await database.close()
        raise


async def open_target(url: str) -> SqlTarget:
    """Open the database to copy into, and create its tables."""
    await migrate(url, unfinished=True)
    return SqlTarget(await open_database(url))
