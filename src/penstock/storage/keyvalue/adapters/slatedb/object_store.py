"""Builds what the adapter opens: the object store, SlateDB's settings, writers and readers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from penstock.errors import StoreUnavailable
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.error_mapping import store_error
from penstock.storage.keyvalue.adapters.slatedb.location import SCHEMES, Location

__all__ = ["DB_PATH", "HELD_POLL_MS", "build_store", "open_reader", "open_writer"]

#: The name of the SlateDB in a directory; in a bucket it is the path of the URL.
DB_PATH: Final = "store"
_MIB: Final = 1024 * 1024
#: SlateDB retries without a limit by default. The client of the object store below it
#: retries ten times, within about 3 s.
_RETRIES: Final = 0
_CONNECT_TIMEOUT: Final = "2s"
#: One request may take half of ``timeout_ms``, and at least this. A table is uploaded in parts of
#: 10 MiB, four at a time: at 2 s, a line of 100 Mbit/s would never complete one.
_LEAST_REQUEST_MS: Final = 2000
#: More than the default of 8: Penstock flushes the memtable by number of commits, so tables are
#: small, and a writer must not wait for the compactor's next turn.
_L0_TABLES: Final = 64
_WRITER: Final = {
    # Penstock flushes at every commit, so SlateDB needs no timer.
    "flush_interval": None,
    "manifest_poll_interval": "5s",
    "manifest_update_timeout": "10s",
    "l0_max_ssts": _L0_TABLES,
    "l0_max_ssts_per_key": _L0_TABLES,
    "compactor_options.poll_interval": "5s",
    "compactor_options.object_store_max_retries": _RETRIES,
    "garbage_collector_options.object_store_max_retries": _RETRIES,
    "object_store_max_retries": _RETRIES,
}
#: A view that does not follow the writer. The garbage collector keeps its objects for 5 minutes.
FROZEN_POLL_MS: Final = 3_600_000
#: As long as a backup may take. Its checkpoint lasts twice as long, unless it is closed before.
HELD_POLL_MS: Final = 6 * 3_600_000


def build_store(location: Location) -> Any:
    """The object store of a location. Sends no request."""
    kind = getattr(uniffi.ObjectStoreType, SCHEMES[location.kind])
    try:
        builder = uniffi.ObjectStoreBuilder.from_env(kind)
        if location.kind == "file":
            builder.with_config("local_path", location.path)
        else:
            builder.with_config("timeout", f"{max(location.timeout_ms // 2, _LEAST_REQUEST_MS)}ms")
            builder.with_config("connect_timeout", _CONNECT_TIMEOUT)
        for key, value in location.config:
            builder.with_config(key, value)
        return builder.build()
    except uniffi.Error as error:
        raise store_error(location.name, error) from error


def db_path(location: Location) -> str:
    """The path of the SlateDB in its object store."""
    return location.path if location.is_remote else DB_PATH


def prepare_directories(location: Location) -> None:
    """Create the directory of a store in files, and that of the cache, for their owner only."""
    if not location.is_remote:
        _prepare(Path(location.path), "store")
    if location.cache_path is not None:
        # SlateDB would do without a cache that cannot be used.
        _prepare(Path(location.cache_path), "cache")


def _prepare(path: Path, name: str) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"Cannot create the {name} directory {path}: {error.strerror}.", field="url"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StoreUnavailable(f"The {name} directory {path} is not writable.", field="url")


def open_writer(location: Location, store: Any, path: str, **changes: object) -> Any:
    """Open for writing, which fences every earlier writer."""
    settings = uniffi.Settings.default()
    values: dict[str, object] = {**_WRITER, **changes}
    if location.cache_path is not None:
        values["object_store_cache_options.root_folder"] = location.cache_path
        values["object_store_cache_options.max_cache_size_bytes"] = location.cache_mib * _MIB
        values["object_store_cache_options.cache_on_flush"] = True
    for key, value in values.items():
        settings.set(key, json.dumps(value))
    builder = uniffi.DbBuilder(path, store)
    builder.with_settings(settings)
    return wait(builder.build(), location.timeout_ms / 1000)


def open_reader(
    location: Location, store: Any, poll_ms: int = FROZEN_POLL_MS, *, held: bool = False
) -> Any:
    """Open for reading without touching the writer, following it every ``poll_ms``.

    With ``held`` the reader has a checkpoint, so that no object is removed that it reads.
    """
    builder = uniffi.DbReaderBuilder(db_path(location), store)
    builder.with_options(
        uniffi.ReaderOptions(
            manifest_poll_interval_ms=poll_ms,
            checkpoint_lifetime_ms=2 * poll_ms + 60_000,
            max_memtable_bytes=64 * _MIB,
            skip_wal_replay=False,
            object_store_max_retries=_RETRIES,
        )
    )
    modes = uniffi.ReaderMode
    builder.with_reader_mode(modes.MANAGED_CHECKPOINT() if held else modes.FOLLOW_LATEST())
    return wait(builder.build(), location.timeout_ms / 1000)
