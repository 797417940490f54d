"""The SlateDB adapter: one writer on a bucket or a directory, fenced by the object store.

Choices that matter, each with its reason:

- A commit is one write batch and one flush of the write-ahead log, which is one PUT. SlateDB's own
  timer is off. A commit without sync stays in memory until the next one that syncs.
- An object is stored completely or not at all, and its number is never reused: each PUT is
  conditional. So no commit can be missing before another one, and there are no marks.
- Every ``_COMMITS_PER_TABLE`` commits the memtable becomes a table, on a thread of its own. Opening
  replays the log objects since then, one GET each: 500 took 3.7 s at 30 ms latency.
- Scans read ahead: block by block, 10,000 rows took 144 s at 30 ms latency instead of 0.26 s.
- A large range is removed by one record, and its keys are deleted on that thread: ``removals``.
- The writer renews its record on the same thread. A writer that could not renew it for a lease does
  not answer, because another server may be writing by then.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from msgspec.structs import replace

from penstock.errors import NotWriter, StoreError, StoreLocked
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Writes
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.conditional_put import check_conditional_put
from penstock.storage.keyvalue.adapters.slatedb.error_mapping import (
    is_fenced,
    store_error,
    writing_error,
)
from penstock.storage.keyvalue.adapters.slatedb.location import Location
from penstock.storage.keyvalue.adapters.slatedb.object_store import (
    build_store,
    db_path,
    open_writer,
    prepare_directories,
)
from penstock.storage.keyvalue.adapters.slatedb.reads import Reads
from penstock.storage.keyvalue.adapters.slatedb.recent_records import UNKNOWN, RecentRecords
from penstock.storage.keyvalue.adapters.slatedb.removals import Removal, removal_record
from penstock.storage.keyvalue.adapters.slatedb.watching import Watch
from penstock.storage.keyvalue.adapters.slatedb.writer_record import (
    RENEWALS_PER_LEASE,
    WriterRecord,
    encode_writer,
    this_process,
)
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX, WRITER_KEY

__all__ = ["SlateDBAdapter"]

_CACHE_BYTES: Final = 64 * 1024 * 1024
#: After this many commits the memtable becomes a table, but on a local disk not more often than
#: every few seconds: commits are quick there, and so is their replay.
_COMMITS_PER_TABLE: Final = 256
_LOCAL_TABLE_EVERY_S: Final = 10.0
#: Between two batches of keys of a removed range, for other commits.
_REMOVAL_PAUSE_S: Final = 0.01
_OFFSET_BYTES: Final = 8
_WAL: Final = uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL)
_MEMTABLE: Final = uniffi.FlushOptions(flush_type=uniffi.FlushType.MEM_TABLE)
_log = logging.getLogger("penstock.storage")


class SlateDBAdapter(Reads):
    """An ordered map of bytes to bytes in SlateDB, opened for writing."""

    persistent = True
    inline = False
    unsynced: Durability = "memory"
    removed_at_once: int = 1024
    """A range with more keys is removed later, so many at a time.

    Each key takes 10 to 30 µs, and other commits wait meanwhile. The simulation sets it lower.
    """

    def __init__(
        self,
        location: Location,
        *,
        id: str,
        url: str = "",
        on_lost: Callable[[], None] | None = None,
        take_over: bool = False,
    ) -> None:
        """Open the store under the random ``id``; ``StoreLocked`` if another process writes.

        ``url`` is where callers reach this process. ``on_lost`` is called, on another thread, when
        this process is no longer the writer. ``take_over`` skips the check for another writer.
        """
        prepare_directories(location)
        super().__init__(location)
        self.durability: Durability = location.durability
        self.commit_interval_s = location.commit_interval_ms / 1000
        self._timeout_s = location.timeout_ms / 1000
        self._lease_s = location.lease_ms / 1000
        self._record = this_process(id, url, location.lease_ms)
        self._on_lost = on_lost
        self._recent = RecentRecords(_CACHE_BYTES)
        self._lost: NotWriter | None = None
        #: A new writer begins with a table: if servers take over from each other again and again,
        #: none of them makes enough commits, and each would replay those of all before it.
        self._commits = _COMMITS_PER_TABLE
        self._table_every_s = 0.0 if location.is_remote else _LOCAL_TABLE_EVERY_S
        #: When the newest commit began that has renewed the writer record.
        self._renewed_at = -math.inf
        self._table_at = -math.inf
        self._valid_until = 0.0
        self._writing = threading.Lock()
        #: The first key of the oldest removal that is not deleted yet.
        self._removed_until = b""
        self._wake = threading.Event()
        self._closing = False
        store = build_store(location)
        try:
            check_conditional_put(location, store, id)
            if not take_over:
                wait_for_release(location)
            self._db = open_writer(location, store, db_path(location))
            self.handle = self._db
            self.load_removals()
            self.write({}, (), sync=True)
        except (uniffi.Error, TimeoutError, OSError) as error:
            raise self._opening_error(error) from error
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="penstock-slatedb", daemon=True)
        self._thread.start()

    # -- reading -----------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        if self.removals and self.removals.hides(key):
            return None
        value = self._recent.get(key)
        return super().get(key) if value is UNKNOWN else value  # type: ignore[return-value]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.removals:
            return [self.get(key) for key in keys]
        values = [self._recent.get(key) for key in keys]
        unknown = [key for key, value in zip(keys, values, strict=True) if value is UNKNOWN]
        if not unknown:
            return values  # type: ignore[return-value]
        found = dict(zip(unknown, super().get_many(unknown), strict=True))
        return [
            found[key] if value is UNKNOWN else value  # type: ignore[misc]
            for key, value in zip(keys, values, strict=True)
        ]

    def check(self) -> None:
        """Raise ``NotWriter`` if another server may be writing by now."""
        if self._lost:
            raise NotWriter(self._lost.detail)
        if time.monotonic() > self._valid_until:
            raise NotWriter(f"No commit to {self.name_of_store} succeeded for {self._lease_s:g} s.")

    # -- writing -----------------------------------------------------------------------

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        with self._writing:
            began = time.monotonic()
            renews = sync and began - self._renewed_at > self._lease_s / RENEWALS_PER_LEASE / 2
            if renews:
                writes = {**writes, WRITER_KEY: self._renewal()}
            try:
                self._finish_removals(writes)
                batch = uniffi.WriteBatch()
                gone, later = self._delete_ranges(batch, removed, writes)
                for key, value in writes.items():
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, value)
                if writes or gone or later:
                    wait(self._db.write(batch), self._timeout_s)
                    self._recent.update(dict.fromkeys(gone))
                    self._recent.update(writes)
                    if later:
                        self.removals.add(later)
                if sync:
                    wait(self._db.flush_with_options(_WAL), self._timeout_s)
                if renews:
                    self._renewed(began)
            except (uniffi.Error, TimeoutError) as error:
                if is_fenced(error):
                    self._lose(NotWriter(f"Another server writes to {self.name_of_store} now."))
                raise writing_error(self.name_of_store, error) from error
        self._commits += sync
        if later or self._is_table_due():
            self._wake.set()

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        if self.location.is_remote:
            return False
        self.write(writes, removed, sync)
        return True

    # -- removing ranges ---------------------------------------------------------------

    def _delete_ranges(
        self, batch: Any, removed: Sequence[KeyRange], writes: Writes
    ) -> tuple[list[bytes], list[Removal]]:
        """Delete the keys of small ranges; returns these keys, and removals of the large ranges."""
        gone: list[bytes] = []
        large: list[KeyRange] = []
        for start, end in removed:
            keys = self._keys(start, end)
            first = list(islice(keys, self.removed_at_once + 1))
            is_written = any(
                value is not None and start <= key < end for key, value in writes.items()
            )
            if len(first) > self.removed_at_once and not is_written:
                large.append((start, end))
                continue
            for key in chain(first, keys):
                batch.delete(key)
                gone.append(key)
        later = self.removals.new(large)
        for removal in later:
            batch.put(*removal_record(removal))
        return gone, later

    def _keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Every key of a range; of payloads, without reading them, every key that may exist."""
        size = len(PAYLOAD_PREFIX) + _OFFSET_BYTES
        if not (start.startswith(PAYLOAD_PREFIX) and end.startswith(PAYLOAD_PREFIX)):
            return self.stored_keys(start, end)
        if len(start) != size or len(end) != size:
            return self.stored_keys(start, end)
        low, high = (int.from_bytes(key[len(PAYLOAD_PREFIX) :]) for key in (start, end))
        return (PAYLOAD_PREFIX + offset.to_bytes(_OFFSET_BYTES) for offset in range(low, high))

    def _finish_removals(self, writes: Writes) -> None:
        """Finish removals of ranges that are written to again, which hardly ever happens."""
        if not self.removals:
            return
        for key, value in writes.items():
            while value is not None and self.removals.hides(key):
                self._remove_some()

    def _remove_in_background(self) -> None:
        if not self.removals:
            return
        with self._writing:
            self._remove_some()

    def _remove_some(self) -> None:
        """Delete the next keys of the oldest removal. The caller holds the lock."""
        removal = self.removals.oldest
        start = max(removal.start, self._removed_until)
        keys = list(islice(self._keys(start, removal.end), self.removed_at_once))
        batch = uniffi.WriteBatch()
        for key in keys:
            batch.delete(key)
        is_last = len(keys) < self.removed_at_once
        if is_last:
            batch.delete(removal.key)
        wait(self._db.write(batch), self._timeout_s)
        self._recent.update(dict.fromkeys(keys))
        if is_last:
            self.removals.finish(removal)
        self._removed_until = b"" if is_last else keys[-1] + b"\x00"

    # -- the writer record -------------------------------------------------------------

    def _renewal(self) -> bytes:
        self._record = replace(self._record, renewal=self._record.renewal + 1)
        return encode_writer(self._record)

    def _renewed(self, began: float) -> None:
        """A commit that began then has renewed the record: others wait for a lease from there."""
        self._renewed_at = began
        self._valid_until = began + self._lease_s

    def _opening_error(self, error: BaseException) -> StoreError:
        return self._lost or store_error(self.name_of_store, error)

    def _lose(self, error: NotWriter) -> None:
        if self._lost is None:
            self._lost = error
            _log.warning("%s", error.detail)
            if self._on_lost is not None and not self._closing:
                self._on_lost()

    # -- the thread --------------------------------------------------------------------

    def _run(self) -> None:
        pause = self._lease_s / RENEWALS_PER_LEASE
        has_failed = False
        while self._lost is None:
            self._wake.wait(_REMOVAL_PAUSE_S if self.removals and not has_failed else pause)
            self._wake.clear()
            if self._closing:
                return
            has_failed = True
            try:
                if time.monotonic() - self._renewed_at >= pause * 0.9:
                    self.write({}, (), sync=True)
                if self._is_table_due():
                    self._commits, self._table_at = 0, time.monotonic()
                    wait(self._db.flush_with_options(_MEMTABLE), self._timeout_s)
                self._remove_in_background()
                has_failed = False
            except (uniffi.Error, OSError, StoreError) as error:
                # The next commit reports it; ``check`` refuses verbs until one succeeds.
                _log.warning("%s: %s", self.name_of_store, error)

    def _is_table_due(self) -> bool:
        return (
            self._commits >= _COMMITS_PER_TABLE
            and time.monotonic() - self._table_at >= self._table_every_s
        )

    # -- the store ---------------------------------------------------------------------

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        try:
            if self._lost is None:
                released = replace(self._record, released=True)
                self.write({WRITER_KEY: encode_writer(released)}, (), sync=True)
            wait(self._db.shutdown(), self._timeout_s)
        except (uniffi.Error, TimeoutError, OSError) as error:
            if self._lost is None:
                _log.warning("%s was not closed cleanly: %s", self.name_of_store, error)


def wait_for_release(location: Location) -> None:
    """Return when no process writes to the store; ``StoreLocked`` if one does.

    A writer that did not release the store is given one lease to renew its record.
    """
    watch = Watch(location)
    try:
        found: WriterRecord | None = watch.writer()
        if found is None or found.is_gone:
            return
        if not watch.is_silent(found.lease_ms / 1000):
            raise StoreLocked(
                f"The store {location.name} is written by {found}. "
                "To read beside it, add reader=true to the URL.",
                field="url",
            )
    finally:
        watch.close()
