"""Opens key-value stores for copies, by URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.errors import StoreUnavailable
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.opening import open_adapter
from penstock.storage.keyvalue.transfer.stores import KeyValueSource, KeyValueTarget

__all__ = ["open_source", "open_target"]


async def open_source(url: str) -> KeyValueSource:
    """Open the store exclusively; ``StoreLocked`` if another process has it."""
    parts = urlsplit(url)
    _refuse_missing(parts)
    return await KeyValueSource.open(await open_adapter(parts, EngineOptions()))


async def open_target(url: str) -> KeyValueTarget:
    """Open or create the store to copy into."""
    return KeyValueTarget(await open_adapter(urlsplit(url), EngineOptions()))


def _refuse_missing(url: SplitResult) -> None:
    """Opening a store creates it, and reading must not."""
    if url.scheme in ("files", "rocksdb", "slatedb+file") and not Path(unquote(url.path)).exists():
        raise StoreUnavailable(f"There is no store at {url.geturl()}.", field="url")
