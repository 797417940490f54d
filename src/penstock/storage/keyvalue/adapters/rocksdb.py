"""The RocksDB adapter (rocksdict in raw mode): one directory, one process, real fsync.

Choices that matter, each with its reason:

- A store is read before it is opened for writing. Opening replays the write-ahead logs into
  tables and deletes them, but a store that is refused (X1) must not be changed.
- WAL recovery tolerates a torn tail only. A crash may tear an unacknowledged commit; with damage
  anywhere else the store does not open (X1), where RocksDB's own default would silently
  drop every later commit. RocksDB does not notice logs that are missing or truncated
  at a record boundary, so it tracks the sizes of synced logs in its manifest
  (``track_and_verify_wals_in_manifest``), and the chain of commits covers the rest.
- Payloads have their own column family. Their keys only grow, so their files never
  overlap and compaction moves them without rewriting a byte. Mixed with the buckets, which
  are rewritten constantly, every payload was compacted repeatedly, on the core that
  the queue needs. One batch, one WAL and one sync still cover both.
- Payloads stay in the LSM tree. Blob files were measured too: the same commit rate, but
  reads two to five times slower (3.0 against 1.25 µs per payload), and claims read.
- The WAL provides durability (P1). A batch is written first and the WAL is then synced by a
  second call: the binding holds the GIL for the whole of a write but not for a sync, and
  the sync is more than half of the time (171 and 304 µs for 100 payloads of 1 KiB).
- For the same reason a write never waits inside RocksDB: if compaction is behind, RocksDB
  refuses the write and the adapter sleeps.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from penstock.errors import CommitsMissing, StoreCorrupt
from penstock.extras import importing
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes
from penstock.storage.keyvalue.adapters.mark_file import Manifest, MarkFile, current_manifest
from penstock.storage.keyvalue.adapters.pieces import MAX_WHOLE_BYTES, cut, removal
from penstock.storage.keyvalue.adapters.place import read_place
from penstock.storage.keyvalue.adapters.rocksdb_status import (
    is_stall,
    opening_error,
    reading_error,
    writing_error,
)
from penstock.storage.keyvalue.adapters.rocksdb_wal import endless_log, logs_after_gap, set_aside
from penstock.storage.keyvalue.adapters.store_folder import (
    lock_folder,
    prepare_folder,
    tighten_files,
)
from penstock.storage.keyvalue.chain import UnsyncedGap, check_links, read_links
from penstock.storage.keyvalue.encoding import prefix_end
from penstock.storage.keyvalue.keys import LINK_PREFIX, PAYLOAD_PREFIX, PIECES_KEY

with importing("rocksdb", "rocksdict"):
    from rocksdict import (
        AccessType,
        BlockBasedIndexType,
        BlockBasedOptions,
        Cache,
        DBCompressionType,
        DBRecoveryMode,
        Env,
        Options,
        Rdict,
        ReadOptions,
        WriteBatch,
        WriteOptions,
    )

__all__ = ["RocksDBAdapter", "open_read_only", "store_options"]

_WRITE_BUFFER_BYTES: Final = 24 * 1024 * 1024
#: Limits how much log is replayed when opening after a crash: a family that fills slowly would
#: otherwise pin old logs.
_MAX_WAL_BYTES: Final = 192 * 1024 * 1024
_WRITE_BUFFERS: Final = 3
_BLOCK_CACHE_BYTES: Final = 32 * 1024 * 1024
_READ_AHEAD_BYTES: Final = 1024 * 1024
_BLOOM_BITS: Final = 10
#: Of the indexes and filters of files.
_INDEX_PART_BYTES: Final = 16 * 1024
_PAYLOADS: Final = "payloads"
#: The binding has no method for this setting, so it is loaded from an options file.
_OPTIONS_FILE: Final = """\
[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
"""
#: The pause when RocksDB would stall a write, the most pauses (one minute: a compaction further
#: behind will not catch up), and the pauses per logged warning.
_STALL_PAUSE_S: Final = 0.001
_MAX_STALL_PAUSES: Final = 60_000
_PAUSES_PER_WARNING: Final = 1_000
_log = logging.getLogger("penstock.storage")


class RocksDBAdapter:
    """An ordered map of bytes to bytes in a RocksDB directory."""

    name = "rocksdb"
    durability: Durability = "fsync"
    unsynced: Durability = "os"
    persistent = True
    has_marks = True
    commit_interval_s = 0.0
    inline = False

    def __init__(self, path: Path, *, salvaging: bool = False) -> None:
        """Open the store. ``salvaging`` skips the checks for missing commits."""
        self._path = path
        prepare_folder(path)
        self._lock = lock_folder(path)
        self._mark_file = MarkFile(path)
        try:
            if not (path / "CURRENT").exists() and any(path.glob("*.sst")):
                # RocksDB would create a new store here, and delete the tables.
                raise _emptied(path)
            if log := endless_log(path):
                raise StoreCorrupt(f"The file {log} of the store is damaged.")
            self._last_mark = None if salvaging else self._inspect()
            self._open(salvaging)
        except BaseException:
            os.close(self._lock)
            raise
        tighten_files(path)
        self._unsynced = WriteOptions()
        self._unsynced.no_slowdown = True
        self._is_marked = self._mark_file.exists
        self._remove_pieces()

    def _inspect(self) -> Mark | None:
        """Check that no commit is missing, without changing the store; returns the mark.

        The one exception is what a power loss can leave behind: write-ahead logs that follow a gap
        of unsynced commits are set aside.
        """
        stored = self._mark_file.read()
        mark = None if stored is None else stored[0]
        if not (self._path / "CURRENT").exists():
            if self._mark_file.exists:
                raise _emptied(self._path)
            return None
        if stored is not None:
            _check_manifest(self._path, stored[1])
        try:
            values = _read_links(self._path)
        except StoreCorrupt:
            if self._mark_file.exists:
                raise
            return None  # A crash during creation may cause this; opening the store decides.
        if values is None and self._mark_file.exists:
            raise _emptied(self._path)
        try:
            check_links(read_links(values or ()), mark)
        except UnsyncedGap:
            logs = logs_after_gap(self._path)
            if not logs:
                raise
            folder = set_aside(logs, f"unsynced-{logs[0].stem}")
            _log.warning(
                "Unsynced commits of %s were lost, but the file system kept later ones; "
                "these were moved to %s.",
                self._path,
                folder,
            )
            check_links(read_links(_read_links(self._path) or ()), mark)
        return mark

    def _open(self, salvaging: bool) -> None:
        try:
            options = store_options(salvaging=salvaging)
            self._db = Rdict(str(self._path), options, column_families=_families())
            self._payloads = self._db.get_column_family(_PAYLOADS)
            self._payload_family = self._db.get_column_family_handle(_PAYLOADS)
        except Exception as error:
            raise opening_error(self._path, error) from error

    def _remove_pieces(self) -> None:
        """Remove the pieces of a commit that a crash interrupted."""
        value = self.get(PIECES_KEY)
        if value is not None:
            self.write(removal(value), (), sync=True)

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._family(key).get(key)
        except Exception as error:
            raise reading_error(error) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        try:
            values: list[bytes | None] = self._family(keys[0]).get(  # type: ignore[assignment]
                list(keys)
            )
        except Exception as error:
            raise reading_error(error) from error
        return values

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        try:
            cursor = self._family(start).iter(options)
            if reverse:
                cursor.seek_to_last()
            else:
                cursor.seek(start)
            while cursor.valid():
                key: bytes = cursor.key()
                # The binding does not pass a lower bound on to RocksDB.
                if reverse and key < start:
                    return
                yield key, cursor.value()
                if reverse:
                    cursor.prev()
                else:
                    cursor.next()
            # An iterator that hits damage looks as if it had reached the end.
            cursor.status()
        except Exception as error:
            raise reading_error(error) from error

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        # A bulk read must not evict blocks that claims read again. The binding's type stub lacks
        # the argument.
        options.fill_cache(False)  # type: ignore[call-arg]
        options.set_readahead_size(_READ_AHEAD_BYTES)
        try:
            return list(self._family(start).values(from_key=start, read_opt=options))
        except Exception as error:
            raise reading_error(error) from error

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        if writes or removed:
            batch = self._batch(writes, removed)
            if batch.size_in_bytes() > MAX_WHOLE_BYTES and not removed:
                pieces, writes = cut(writes)
                for piece in pieces:
                    self._write_after_stalls(self._batch(piece, ()), piece, ())
                batch = self._batch(writes, ())
            self._write_after_stalls(batch, writes, removed)
        if sync:
            self._sync()

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        if (writes or removed) and not self._write_unless_stalled(self._batch(writes, removed)):
            return False
        if sync:
            self._sync()
        return True

    def _write_after_stalls(
        self, batch: WriteBatch, writes: Writes, removed: Sequence[KeyRange]
    ) -> None:
        """Write, pausing while RocksDB stalls; ``ETIMEDOUT`` if the stall does not end."""
        for pauses in range(_MAX_STALL_PAUSES):
            if self._write_unless_stalled(batch):
                return
            if pauses % _PAUSES_PER_WARNING == _PAUSES_PER_WARNING - 1:
                _log.warning(
                    "Compaction of %s is behind: a commit has waited for %.0f s.",
                    self._path,
                    (pauses + 1) * _STALL_PAUSE_S,
                )
            time.sleep(_STALL_PAUSE_S)
            batch = self._batch(writes, removed)  # The binding empties a batch that it writes.
        raise OSError(errno.ETIMEDOUT, "RocksDB stalled a write because compaction is behind")

    def _write_unless_stalled(self, batch: WriteBatch) -> bool:
        """Write to the WAL and the memtable; False if RocksDB would stall the write."""
        try:
            self._db.write(batch, self._unsynced)
        except Exception as error:
            if is_stall(error):
                return False
            raise writing_error(error) from error
        return True

    def _batch(self, writes: Writes, removed: Sequence[KeyRange]) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        family = self._payload_family
        for low, high in removed:
            batch.delete_range(low, high, family if low.startswith(PAYLOAD_PREFIX) else None)
        put, delete = batch.put, batch.delete
        for key, value in writes.items():
            payload = key.startswith(PAYLOAD_PREFIX)
            if value is None:
                delete(key, family if payload else None)
            elif payload:
                put(key, value, family)
            else:
                put(key, value)
        return batch

    def _family(self, key: bytes) -> Rdict:
        return self._payloads if key.startswith(PAYLOAD_PREFIX) else self._db

    def _sync(self) -> None:
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise writing_error(error) from error
        if not self._is_marked:
            # RocksDB would open a directory whose log was deleted as an empty store.
            self._mark_file.write(None)
            self._is_marked = True

    def place(self) -> str:
        return read_place(self._path)

    def check(self) -> None:
        """The directory is locked for as long as the store is open."""

    def close(self) -> None:
        """Close RocksDB and unlock the directory.

        Closing writes tables. If that fails (a full disk, damage in an old table), everything is
        still in the write-ahead log, so the failure is logged and not raised.
        """
        try:
            for family in (self._payloads, self._db):
                try:
                    family.close()
                except Exception as error:  # noqa: BLE001  (the binding raises nothing else)
                    _log.warning("RocksDB did not close %s cleanly: %s", self._path, error)
            # RocksDB releases the directory with the last handle of a family, and after an error in
            # close() only when the handle itself is deleted.
            del self._payloads, self._payload_family, self._db, family
            tighten_files(self._path)
            if self._last_mark is not None:
                self._mark_file.write(self._last_mark)  # The manifest has grown.
        except OSError as error:
            _log.warning("The mark of %s could not be written at close: %s", self._path, error)
        finally:
            os.close(self._lock)

    def space(self) -> tuple[int, int] | None:
        try:
            facts = os.statvfs(self._path)
        except OSError:
            return None  # The next commit will report the error.
        return facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize

    def mark(self, mark: Mark) -> None:
        self._mark_file.write(mark)
        self._last_mark = mark
        self._is_marked = True

    def read_mark(self) -> Mark | None:
        return self._last_mark


def store_options(*, salvaging: bool = False) -> Options:
    """The options that Penstock opens RocksDB with; benchmarks use them for their baseline.

    ``salvaging`` accepts logs that are missing or truncated.
    """
    options = Options(raw_mode=True) if salvaging else _verifying_options()
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(_WRITE_BUFFERS)
    options.set_max_total_wal_size(_MAX_WAL_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    options.increase_parallelism(2)
    # Flushes and compactions yield the CPU to commits.
    env = Env()
    env.lower_high_priority_thread_pool_cpu_priority()
    env.lower_thread_pool_cpu_priority()
    options.set_env(env)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    table.set_bloom_filter(_BLOOM_BITS, block_based=False)
    table.set_cache_index_and_filter_blocks(True)
    # In parts: the cache is split into shards of 512 KiB, and the filter of a file of 64 MiB is
    # larger, so every read of a record loaded it again.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_INDEX_PART_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(table)
    return options


def open_read_only(path: Path) -> tuple[Rdict, Rdict]:
    """Open the directory as it is now, without its lock: all records, and the payloads."""
    try:
        access = AccessType.read_only(False)
        db = Rdict(str(path), store_options(), column_families=_families(), access_type=access)
        return db, db.get_column_family(_PAYLOADS)
    except Exception as error:
        raise opening_error(path, error) from error


def _families() -> dict[str, Options]:
    return {_PAYLOADS: store_options(), "default": store_options()}


def _verifying_options() -> Options:
    """Options that make RocksDB check its write-ahead logs against its manifest."""
    with TemporaryDirectory(prefix="penstock-options-") as folder:
        (Path(folder) / "OPTIONS-000001").write_text(_OPTIONS_FILE)
        (Path(folder) / "rocksdict-config.json").write_text(
            '{"raw_mode":true,"prefix_extractors":{}}'
        )
        options, _ = Options.load_latest(folder)
    return options


def _read_links(path: Path) -> list[bytes] | None:
    """The links of a store, read without changing it; None if it has no records."""
    try:
        # RocksDB 9.8.4 crashes if it reads a tracked store without verifying it.
        db = Rdict(str(path), store_options(), access_type=AccessType.read_only(False))
        try:
            bounds = ReadOptions()
            bounds.set_iterate_upper_bound(prefix_end(LINK_PREFIX))
            cursor = db.iter(bounds)
            cursor.seek(LINK_PREFIX)
            values: list[bytes] = []
            while cursor.valid():
                values.append(cursor.value())
                cursor.next()
            cursor.status()
            return values if values or next(iter(db.keys()), None) is not None else None
        finally:
            db.close()
    except Exception as error:
        raise opening_error(path, error) from error


def _check_manifest(path: Path, marked: Manifest) -> None:
    """Refuse a manifest that is older or shorter than it was when the mark was written."""
    manifest = current_manifest(path)
    if manifest is not None and manifest < marked:
        raise CommitsMissing(
            f"The manifest of {path} is older or shorter than it was when the last commit was "
            "marked."
        )


def _emptied(path: Path) -> StoreCorrupt:
    return StoreCorrupt(
        f"The store {path} contained data before and is empty now: some of its files are missing "
        "or damaged."
    )
