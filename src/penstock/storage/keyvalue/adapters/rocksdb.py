"""The RocksDB adapter (rocksdict in raw mode): one directory, one process, real fsync.

Choices that matter, each with its reason:

- WAL recovery tolerates a torn tail only. An unacknowledged commit may be torn by a crash;
  damage anywhere else refuses to open (X1), where RocksDB's own default would silently
  drop every commit after it.
- Payloads have a column family of their own. Their keys only grow, so their files never
  overlap and compaction moves them without rewriting a byte; mixed with the buckets, which
  are rewritten all the time, every payload was compacted again and again, on the core that
  the queue needs. One batch, one WAL and one sync still hold both.
- Payloads stay in the LSM. Blob files were measured here too: the same commit rate, but
  reads two to five times slower (3.0 against 1.25 µs a payload), and claims read.
- The WAL is the durability (P1). A batch is written first and the WAL synced after it, in two
  calls: the binding holds the interpreter for the whole of a write, but not for a sync, and
  the sync is more than half of the time (171 and 304 µs for 100 payloads of 1 KiB).
- For the same reason a write never waits inside RocksDB: where compaction is behind and
  writers should slow down, it says so, and the pause is made out here.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rocksdict import (
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

from penstock.errors import StoreCorrupt
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Writes
from penstock.storage.keyvalue.adapters.place import read_place
from penstock.storage.keyvalue.adapters.rocksdb_status import (
    is_stall,
    opening_error,
    reading_error,
    writing_error,
)
from penstock.storage.keyvalue.adapters.store_folder import prepare_folder, tighten_files
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX

__all__ = ["RocksDBAdapter", "store_options"]

_WRITE_BUFFER_BYTES: Final = 24 * 1024 * 1024
#: Bounds what an opening after a crash has to read again: a family that fills slowly would
#: otherwise keep old logs alive.
_MAX_WAL_BYTES: Final = 192 * 1024 * 1024
_WRITE_BUFFERS: Final = 3
_BLOCK_CACHE_BYTES: Final = 32 * 1024 * 1024
_READ_AHEAD_BYTES: Final = 1024 * 1024
_BLOOM_BITS: Final = 10
_PAYLOADS: Final = "payloads"
_MARKER: Final = "PENSTOCK"
#: How long to wait where RocksDB would have stalled a write, how often at most (a minute: a
#: compaction that is further behind will not catch up), and how often that is logged.
_STALL_PAUSE_S: Final = 0.001
_MAX_STALL_PAUSES: Final = 60_000
_PAUSES_PER_WARNING: Final = 1_000
_log = logging.getLogger("penstock.storage")


class RocksDBAdapter:
    """An ordered map of bytes to bytes in a RocksDB directory."""

    name = "rocksdb"
    durability: Durability = "fsync"
    persistent = True
    inline = False

    def __init__(self, path: Path) -> None:
        self._path = path
        prepare_folder(path)
        try:
            families = {_PAYLOADS: store_options(), "default": store_options()}
            self._db = Rdict(str(path), store_options(), column_families=families)
            self._payloads = self._db.get_column_family(_PAYLOADS)
            self._payload_family = self._db.get_column_family_handle(_PAYLOADS)
        except Exception as error:
            raise opening_error(path, error) from error
        tighten_files(path)
        self._unsynced = WriteOptions()
        self._unsynced.no_slowdown = True
        self._marker = path / _MARKER
        self._is_marked = self._marker.exists()
        if self._is_marked and next(self.scan(b"", b"\xff"), None) is None:
            self.close()
            raise StoreCorrupt(
                f"The store {path} was written to before and is empty now: files of it are "
                "missing or damaged."
            )

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
            # An iterator that meets damage looks as if it had come to its end.
            cursor.status()
        except Exception as error:
            raise reading_error(error) from error

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        # Whoever reads everything once must not push out what claims read again; the stub of
        # this method forgets its argument.
        options.fill_cache(False)  # type: ignore[call-arg]
        options.set_readahead_size(_READ_AHEAD_BYTES)
        try:
            return list(self._family(start).values(from_key=start, read_opt=options))
        except Exception as error:
            raise reading_error(error) from error

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        if writes or removed:
            self._write_after_stalls(writes, removed)
        if sync:
            self._sync()
            if not self._is_marked:
                self._mark()

    def _write_after_stalls(self, writes: Writes, removed: Sequence[KeyRange]) -> None:
        """Write as soon as compaction lets us; ``ETIMEDOUT`` if it never does."""
        for pauses in range(_MAX_STALL_PAUSES):
            if self._write_unless_stalled(writes, removed):
                return
            if pauses % _PAUSES_PER_WARNING == _PAUSES_PER_WARNING - 1:
                _log.warning(
                    "Compaction of %s is behind: a commit has waited for %.0f s.",
                    self._path,
                    (pauses + 1) * _STALL_PAUSE_S,
                )
            time.sleep(_STALL_PAUSE_S)
        raise OSError(errno.ETIMEDOUT, "RocksDB refused a write until its compaction catches up")

    def _write_unless_stalled(self, writes: Writes, removed: Sequence[KeyRange]) -> bool:
        """Write to the log and the memtable; False if RocksDB wants writers to wait."""
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
        try:
            self._db.write(batch, self._unsynced)
        except Exception as error:
            if is_stall(error):
                return False
            raise writing_error(error) from error
        return True

    def _family(self, key: bytes) -> Rdict:
        return self._payloads if key.startswith(PAYLOAD_PREFIX) else self._db

    def _sync(self) -> None:
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise writing_error(error) from error

    def place(self) -> str:
        return read_place(self._path)

    def close(self) -> None:
        # RocksDB lets go of the directory with the last handle of a family.
        self._payloads.close()
        del self._payloads, self._payload_family
        self._db.close()
        tighten_files(self._path)

    def _mark(self) -> None:
        """Note beside RocksDB's files that there is data in them.

        RocksDB opens a directory whose log was deleted, or whose manifest lost its last
        records, as an empty store. With the mark that is damage, and reported (X1).
        """
        with self._marker.open("wb") as file:
            file.write(b"This directory holds a Penstock store.\n")
            file.flush()
            os.fsync(file.fileno())
        directory = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._is_marked = True


def store_options() -> Options:
    """How Penstock opens RocksDB; benchmarks open their bare reference the same way."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(_WRITE_BUFFERS)
    options.set_max_total_wal_size(_MAX_WAL_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    options.increase_parallelism(2)
    # Flushing and compacting give way to whoever is waiting for a commit.
    env = Env()
    env.lower_high_priority_thread_pool_cpu_priority()
    env.lower_thread_pool_cpu_priority()
    options.set_env(env)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    table.set_bloom_filter(_BLOOM_BITS, block_based=False)
    table.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(table)
    return options
