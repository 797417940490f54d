"""``postgresql://…`` and ``mysql://…``: open the SQL engine over a migrated database."""

from __future__ import annotations

from urllib.parse import SplitResult

from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.sql.database import Database
from penstock.storage.sql.dialects import load_module
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.migrations import check
from penstock.storage.sql.urls import parse

__all__ = ["open_mysql", "open_postgresql"]


async def open_postgresql(url: SplitResult, options: EngineOptions) -> Engine:
    """``postgresql://user:password@host:port/database``."""
    return await _open(url, options, "PostgreSQL")


async def open_mysql(url: SplitResult, options: EngineOptions) -> Engine:
    """``mysql://user:password@host:port/database``."""
    return await _open(url, options, "MySQL")


async def _open(url: SplitResult, options: EngineOptions, name: str) -> Engine:
    address = parse(url.geturl())
    adapter = load_module(address.scheme, "adapter")
    database: Database = await getattr(adapter, name).open(address)
    try:
        await check(database)
        return await SqlEngine.open(database, options)
    except BaseException:
        await database.close()
        raise
