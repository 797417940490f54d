"""Connects to the database of a URL, without checking its schema."""

from __future__ import annotations

from typing import Final

from penstock.storage.sql.database import Database, load_module
from penstock.storage.sql.urls import parse

__all__ = ["open_database"]

#: The class of each dialect's adapter.
_ADAPTERS: Final = {"mysql": "MySQL", "postgresql": "PostgreSQL"}


async def open_database(url: str) -> Database:
    """Connect; raises if the address or the server cannot be used."""
    address = parse(url)
    adapter = getattr(load_module(address.scheme, "adapter"), _ADAPTERS[address.scheme])
    database: Database = await adapter.open(address)
    return database
