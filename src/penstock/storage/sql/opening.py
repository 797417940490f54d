"""Opening the SQL engine by its URL, with the dialect of its scheme."""

from __future__ import annotations

from urllib.parse import SplitResult

from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.sql.connecting import open_database
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.migrations import check

__all__ = ["open_mysql", "open_postgresql"]


async def open_postgresql(url: SplitResult, options: EngineOptions) -> Engine:
    """``postgresql://user:password@host:port/database``."""
    return await _open(url, options)


async def open_mysql(url: SplitResult, options: EngineOptions) -> Engine:
    """``mysql://user:password@host:port/database``."""
    return await _open(url, options)


async def _open(url: SplitResult, options: EngineOptions) -> Engine:
    database = await open_database(url.geturl())
    try:
        await check(database)
        return await SqlEngine.open(database, options)
    except BaseException:
        await database.close()
        raise
