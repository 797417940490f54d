"""The files adapter: records in memory and in a journal, payloads in one file per message.

Choices that matter, each with its reason:

- A commit is one frame of the journal and one fdatasync. A file per message that is created and
  synced before the reply takes milliseconds each; a hundred messages in one frame take one sync.
- Message files are written behind the journal and never synced one by one. A checkpoint waits for
  them, syncs the file system once, and only then removes the journal that has their payloads.
- Records are in memory, in an ordered map; payloads are not. A store of this kind needs memory for
  every message that it keeps: ``BYTES_PER_MESSAGE``.
- The directories of queues are derived from the records, on the thread that writes message files.
"""

from __future__ import annotations

import logging
import os
import threading
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Final

from sortedcontainers import SortedDict

from penstock.errors import StoreCorrupt, StoreUnavailable
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes
from penstock.storage.keyvalue.adapters.files.checkpoint import Checkpoint, sync_file_system
from penstock.storage.keyvalue.adapters.files.commit_body import (
    CommitHead,
    encode_commit,
    is_payload,
    offset_of_key,
    split_commit,
)
from penstock.storage.keyvalue.adapters.files.journal import Journal
from penstock.storage.keyvalue.adapters.files.message_files import MessageFiles
from penstock.storage.keyvalue.adapters.files.payload_index import PayloadIndex
from penstock.storage.keyvalue.adapters.files.payload_region import JournalSource, PayloadRegion
from penstock.storage.keyvalue.adapters.files.queue_folders import SHOWN_PREFIXES, QueueFolders
from penstock.storage.keyvalue.adapters.files.recovery import read_store
from penstock.storage.keyvalue.adapters.files.snapshot import write_snapshot
from penstock.storage.keyvalue.adapters.files.tree import create_store, lay_out, open_journal
from penstock.storage.keyvalue.adapters.files.write_behind import WriteBehind
from penstock.storage.keyvalue.adapters.mark_file import MarkFile
from penstock.storage.keyvalue.adapters.place import read_place
from penstock.storage.keyvalue.adapters.store_folder import lock_folder, prepare_folder
from penstock.storage.keyvalue.chain import check_links, read_links
from penstock.storage.keyvalue.encoding import prefix_end
from penstock.storage.keyvalue.keys import LINK_PREFIX, PAYLOAD_PREFIX

__all__ = ["BYTES_PER_MESSAGE", "MAX_MESSAGES", "FilesAdapter"]

#: Memory per message of the log with one waiting delivery, measured.
BYTES_PER_MESSAGE: Final = 320
#: For how many messages this kind of store is meant: a third of a gigabyte of memory.
MAX_MESSAGES: Final = 1_000_000
#: A checkpoint is due when the journal is larger than this, and larger than the last snapshot, so
#: that snapshots at most double what is written.
CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
_SCANNED: Final = 64
_log = logging.getLogger("penstock.storage")


class FilesAdapter:
    """An ordered map of bytes to bytes in a directory of files."""

    name = "files"
    durability: Durability = "fsync"
    unsynced: Durability = "os"
    persistent = True
    inline = False
    has_marks = True
    commit_interval_s = 0.0

    def __init__(self, path: Path, *, salvaging: bool = False) -> None:
        """Open the store. ``salvaging`` keeps everything before the first damage."""
        self._path = path
        self._folder = path / "journal"
        prepare_folder(path)
        if (path / "CURRENT").exists():
            raise StoreUnavailable(f"The directory {path} holds a RocksDB store.", field="url")
        self._lock = lock_folder(path, required=True)
        self._mark_file = MarkFile(path)
        #: Guards the records and the index of payloads, which a commit changes as a whole.
        self._map_lock = threading.Lock()
        self._files = MessageFiles(path)
        self._folders = QueueFolders(path, self._files)
        self._behind = WriteBehind(path, self._files, self._folders)
        self._checkpoint: Checkpoint | None = None
        self._snapshot_bytes = 0
        try:
            self._open(salvaging)
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self, salvaging: bool) -> None:
        if not self._mark_file.exists and not salvaging:
            create_store(self._path)
            self._mark_file.write(None)
        found = read_store(self._folder, salvaging=salvaging)
        self._records: SortedDict[bytes, bytes] = found.records
        self._payloads: PayloadIndex = found.payloads
        stored = None if salvaging else self._mark_file.read()
        self._last_mark = None if stored is None else stored[0]
        if not salvaging:
            links = (value for _, value in self.scan(LINK_PREFIX, prefix_end(LINK_PREFIX)))
            check_links(read_links(links), self._last_mark)
        # Nothing was changed until here: a store that is refused stays as it is.
        lay_out(self._path)
        self._journal = open_journal(self._folder, found, salvaging=salvaging)
        self._first = found.first
        self._source = JournalSource(self._journal.path)
        for region in found.behind:
            self._behind.add(region)
        rebuild = None
        if not found.is_clean or not (self._path / "queues").is_dir():
            rebuild = partial(
                self._folders.rebuild,
                self._with_prefix,
                self._has_payload,
                self._behind.write_early,
            )
        self._is_clean = found.is_clean
        self._behind.start(self.get, rebuild)

    # -- reading ---------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        if is_payload(key):
            return self._payload(offset_of_key(key))
        with self._map_lock:
            value: bytes | None = self._records.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if start.startswith(PAYLOAD_PREFIX):
            yield from self._scan_payloads(start, end, reverse)
            return
        # In slices, because the caller may run a write between two pairs.
        bounds = (True, False)
        while True:
            with self._map_lock:
                keys = islice(self._records.irange(start, end, bounds, reverse), _SCANNED)
                pairs = [(key, self._records[key]) for key in keys]
            yield from pairs
            if len(pairs) < _SCANNED:
                return
            if reverse:
                end = pairs[-1][0]
            else:
                start, bounds = pairs[-1][0], (False, False)

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        return [value for _, value in self.scan(start, end)]

    def _scan_payloads(
        self, start: bytes, end: bytes, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._map_lock:
            offsets = self._payloads.between(offset_of_key(start), offset_of_key(end))
        for offset in reversed(offsets) if reverse else offsets:
            payload = self._payload(offset)
            if payload is not None:
                yield PAYLOAD_PREFIX + offset.to_bytes(8, "big"), payload

    def _payload(self, offset: int) -> bytes | None:
        if not self._has_payload(offset):
            return None
        payload = self._behind.read(offset)
        # A region is dropped after its files are complete, so one of the two has the payload.
        return self._files.read(offset) if payload is None else payload

    def _has_payload(self, offset: int) -> bool:
        with self._map_lock:
            return offset in self._payloads

    def _with_prefix(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.scan(prefix, prefix_end(prefix))

    # -- writing ---------------------------------------------------------------------------

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        self._behind.wait_for_room()
        if self._is_checkpoint_due():
            self._begin_checkpoint()
        self._write(writes, removed, sync)

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        if not self._behind.has_room or self._is_checkpoint_due():
            return False
        self._write(writes, removed, sync)
        return True

    def _write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        if not writes and not removed:
            if sync:
                self._journal.sync()
            return
        self._is_clean = False
        head, payloads = split_commit(writes, removed)
        body, payloads_at = encode_commit(head, payloads)
        start = self._journal.append(body) + payloads_at
        if sync:
            self._journal.sync()
        region = None
        if payloads:
            ends = array("Q", accumulate(head.sizes))
            region = PayloadRegion(self._source, start, array("Q", head.offsets), ends)
        self._apply(head, region)

    def _apply(self, head: CommitHead, region: PayloadRegion | None) -> None:
        """Change the records, and hand payloads and former values to the other thread."""
        records, payloads = self._records, self._payloads
        gone: list[array[int]] = []
        changed: list[tuple[bytes, bytes | None]] = []
        with self._map_lock:
            for low, high in head.removed:
                if low.startswith(PAYLOAD_PREFIX):
                    gone.append(payloads.remove_between(offset_of_key(low), offset_of_key(high)))
                    continue
                for key in list(records.irange(low, high, (True, False))):
                    former = records.pop(key)
                    if key.startswith(SHOWN_PREFIXES):
                        changed.append((key, former))
            for offset in head.offsets:
                payloads.add(offset)
            for key, value in head.writes.items():
                if key.startswith(SHOWN_PREFIXES):
                    changed.append((key, records.get(key)))
                if value is None:
                    records.pop(key, None)
                else:
                    records[key] = value
            # Inside the lock: a payload that is in the index has a region or a file.
            self._behind.add(region, gone, changed)

    # -- checkpoints -----------------------------------------------------------------------

    def _is_checkpoint_due(self) -> bool:
        if self._journal.size < max(CHECKPOINT_BYTES, self._snapshot_bytes):
            return False
        return self._checkpoint is None or self._checkpoint.is_over

    def _begin_checkpoint(self) -> None:
        """Begin a new journal, and write the state at this point as a snapshot on a thread."""
        self._take_over_checkpoint()
        self._journal.sync()
        end = self._journal.end
        journal = Journal.create(self._folder, self._journal.number + 1, end)
        self._journal.close()
        self._journal = journal
        self._source = JournalSource(journal.path)
        with self._map_lock:
            # A million records take some 20 ms; writing them takes seconds.
            records, offsets = dict(self._records), self._payloads.copy()
        ticket = self._behind.ticket
        self._checkpoint = Checkpoint(
            self._path,
            journal.number,
            lambda: self._behind.wait_for(ticket),
            lambda: write_snapshot(self._folder, journal.number, end, records, offsets),
        )
        self._checkpoint.start()

    def _take_over_checkpoint(self) -> None:
        if self._checkpoint is not None and (size := self._checkpoint.wait()) is not None:
            self._snapshot_bytes = size

    def flush(self) -> None:
        """Wait until every message file is written and every delivery is shown."""
        self._behind.flush()

    def close(self) -> None:
        """Complete the tree, write a snapshot, and unlock the directory.

        If that fails, for example because the disk is full, the journal has everything; so the
        failure is logged and not raised.
        """
        try:
            if self._checkpoint is not None:
                self._checkpoint.wait()
            if not self._journal.is_broken:
                self._journal.sync()
                self._complete()
        except (OSError, StoreCorrupt) as error:
            _log.warning("%s was closed without a snapshot: %s", self._path, error)
        finally:
            self._behind.close()
            self._journal.close()
            os.close(self._lock)

    def _complete(self) -> None:
        self._behind.flush()
        if self._is_clean:
            return
        self._behind.remove_kept()
        sync_file_system(self._path)
        end, number = self._journal.end, self._journal.number + 1
        journal = Journal.create(self._folder, number, end)
        self._journal.close()
        self._journal = journal
        write_snapshot(self._folder, number, end, self._records, self._payloads.copy(), clean=True)
        Checkpoint.remove_older(self._folder, number)
        self._is_clean = True

    # -- the rest --------------------------------------------------------------------------

    def check(self) -> None:
        """The directory is locked for as long as the store is open."""

    def place(self) -> str:
        return read_place(self._path)

    def space(self) -> tuple[int, int] | None:
        """Free space without what is still to be written; inodes count in proportion."""
        try:
            facts = os.statvfs(self._path)
        except OSError:
            return None  # The next commit will report the error.
        total = facts.f_blocks * facts.f_frsize
        free = facts.f_bavail * facts.f_frsize - self._behind.behind_bytes
        if facts.f_files:
            free = min(free, total * facts.f_favail // facts.f_files)
        return max(free, 0), total

    def mark(self, mark: Mark) -> None:
        self._mark_file.write(mark)
        self._last_mark = mark

    def read_mark(self) -> Mark | None:
        return self._last_mark
