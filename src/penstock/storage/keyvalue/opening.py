"""Opens a key-value store by URL: RocksDB, SlateDB, files or memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote

from msgspec.structs import replace

from penstock.errors import BadUrl
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.adapters.files.adapter import (
    BYTES_PER_MESSAGE,
    MAX_MESSAGES,
    FilesAdapter,
)
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine

if TYPE_CHECKING:
    from penstock.storage.keyvalue.adapters.slatedb.location import Location

__all__ = [
    "open_adapter",
    "open_files",
    "open_memory",
    "open_rocksdb",
    "open_slatedb",
    "store_exists",
]


async def open_adapter(url: SplitResult, options: EngineOptions) -> Adapter:
    """The ordered store of ``rocksdb:``, ``files:`` or ``slatedb+…``, opened for writing."""
    if url.scheme == "files":
        return FilesAdapter(_path(url))
    if url.scheme == "rocksdb":
        return _open_rocksdb_adapter(url)
    from penstock.storage.keyvalue.adapters.slatedb.location import (  # noqa: PLC0415
        parse_location,
    )

    location = parse_location(url)
    if location.reader:
        raise BadUrl(
            f"{location.name} with reader=true is only for reading; leave the setting out.",
            field="url",
        )
    return await _open_slatedb_adapter(location, options)


def store_exists(url: SplitResult) -> bool:
    """Whether there is a store: opening it would create it, and reading must not. Blocks."""
    if not url.scheme.startswith("slatedb+"):
        return _path(url).exists()
    from penstock.storage.keyvalue.adapters.slatedb.location import (  # noqa: PLC0415
        parse_location,
    )
    from penstock.storage.keyvalue.adapters.slatedb.watching import has_store  # noqa: PLC0415

    return has_store(parse_location(url))


async def open_rocksdb(url: SplitResult, options: EngineOptions) -> Engine:
    """``rocksdb:///absolute/path`` or ``rocksdb:relative/path``."""
    return await KeyValueEngine.open(_open_rocksdb_adapter(url), options)


def _open_rocksdb_adapter(url: SplitResult) -> Adapter:
    path = _path(url)
    # Imported here so that programs without RocksDB stores do not load RocksDB.
    from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter  # noqa: PLC0415

    return RocksDBAdapter(path)


async def open_files(url: SplitResult, options: EngineOptions) -> Engine:
    """``files:///absolute/path`` or ``files:relative/path``."""
    path = _path(url)
    engine = await KeyValueEngine.open(FilesAdapter(path), options)
    engine.capabilities = replace(
        engine.capabilities,
        bytes_per_message=BYTES_PER_MESSAGE,
        meant_for_messages=MAX_MESSAGES,
        inbox_root=path,
    )
    return engine


def _path(url: SplitResult) -> Path:
    path = unquote(url.path)
    sound = path.isprintable() and "\0" not in path
    if url.netloc or not path or url.query or url.fragment or not sound:
        raise BadUrl(
            f"{url.geturl()!r} is not {url.scheme}:///path (three slashes before an absolute "
            "path).",
            field="url",
        )
    return Path(path)


async def open_memory(url: SplitResult, options: EngineOptions) -> Engine:
    """``memory://``: a store that is lost when the process ends."""
    if url.netloc or url.path not in ("", "/") or url.query or url.fragment:
        raise BadUrl(f"{url.geturl()!r} is not memory://.", field="url")
    return await KeyValueEngine.open(MemoryAdapter(), options)


async def open_slatedb(url: SplitResult, options: EngineOptions) -> Engine:
    """``slatedb+s3://bucket/path``, ``slatedb+file:///path`` and alike."""
    # Imported here so that programs without SlateDB stores do not load SlateDB.
    from penstock.storage.keyvalue.adapters.slatedb.location import (  # noqa: PLC0415
        parse_location,
    )

    location = parse_location(url)
    if options.server_url is not None or location.reader:
        from penstock.storage.keyvalue.standby import FailoverEngine  # noqa: PLC0415

        return await FailoverEngine.open(location, options, options.server_url or "")
    return await KeyValueEngine.open(await _open_slatedb_adapter(location, options), options)


async def _open_slatedb_adapter(location: Location, options: EngineOptions) -> Adapter:
    from penstock.storage.keyvalue.adapters.slatedb.adapter import SlateDBAdapter  # noqa: PLC0415

    return await asyncio.to_thread(SlateDBAdapter, location, id=options.random(8).hex())
