"""``postgresql://…`` and ``mysql://…``: the SQL engine over a database with our schema in it."""

from __future__ import annotations

from importlib import import_module
from urllib.parse import SplitResult

from penstock.errors import BadUrl
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.sql.database import Database
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.migrations import check
from penstock.storage.sql.urls import Address, parse

__all__ = ["open_mysql", "open_postgresql"]


async def open_postgresql(url: SplitResult, options: EngineOptions) -> Engine:
    """``postgresql://user:password@host:port/database``."""
    return await _open(url, options, "postgresql", "PostgreSQL", "postgres")


async def open_mysql(url: SplitResult, options: EngineOptions) -> Engine:
    """``mysql://user:password@host:port/database``."""
    return await _open(url, options, "mysql", "MySQL", "mysql")


async def _open(
    url: SplitResult, options: EngineOptions, dialect: str, name: str, extra: str
) -> Engine:
    address = parse(url.geturl())
    database = await _connect(address, dialect, name, extra)
    try:
        await check(database)
        return await SqlEngine.open(database, options)
    except BaseException:
        await database.close()
        raise


async def _connect(address: Address, dialect: str, name: str, extra: str) -> Database:
    try:
        # Only who opens such a store needs the driver.
        adapter = import_module(f"penstock.storage.sql.{dialect}.adapter")
    except ImportError as error:
        raise BadUrl(
            f"The driver of {name} is not installed: pip install 'penstock[{extra}]'.", field="url"
        ) from error
    database: Database = await getattr(adapter, name).open(address)
    return database
