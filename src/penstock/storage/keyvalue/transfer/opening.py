"""Opens key-value stores for copies, by URL."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from penstock.errors import StoreUnavailable
from penstock.model.secrets import mask_password
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.opening import open_adapter, store_exists
from penstock.storage.keyvalue.transfer.stores import KeyValueSource, KeyValueTarget

__all__ = ["open_source", "open_target"]


async def open_source(url: str) -> KeyValueSource:
    """Open the store exclusively; ``StoreLocked`` if another process has it."""
    parts = urlsplit(url)
    if not await asyncio.to_thread(store_exists, parts):
        raise StoreUnavailable(f"There is no store at {mask_password(url)}.", field="url")
    return await KeyValueSource.open(await open_adapter(parts, EngineOptions()))


async def open_target(url: str) -> KeyValueTarget:
    """Open or create the store to copy into."""
    return KeyValueTarget(await open_adapter(urlsplit(url), EngineOptions()))
