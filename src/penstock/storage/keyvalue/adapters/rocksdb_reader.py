"""Reads a RocksDB store as it is now, while another process may write to it.

RocksDB reads the manifest and the write-ahead log when the store is opened, and keeps all tables
open, so later commits and compactions do not change what is read. Everything that was acknowledged
before is in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.storage.keyvalue.adapters.mark_file import MarkFile
from penstock.storage.keyvalue.adapters.pieces import removal
from penstock.storage.keyvalue.adapters.read_only import ReadOnly
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter, open_read_only
from penstock.storage.keyvalue.chain import check_links, read_links
from penstock.storage.keyvalue.encoding import prefix_end
from penstock.storage.keyvalue.keys import LINK_PREFIX, PIECES_KEY

__all__ = ["RocksDBReader"]

_NOTHING: Final[frozenset[bytes]] = frozenset()


class RocksDBReader(ReadOnly, RocksDBAdapter):
    """An ordered map of bytes to bytes in a RocksDB directory, which does not change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name_of_store = str(path)
        self._mark_file = MarkFile(path)
        # The mark is read first: commits after it may exist, and none before it may be missing.
        stored = self._mark_file.read()
        self._unfinished = _NOTHING
        self._db, self._payloads = open_read_only(path)
        try:
            links = (value for _, value in self.scan(LINK_PREFIX, prefix_end(LINK_PREFIX)))
            check_links(read_links(links), None if stored is None else stored[0])
            pieces = self.get(PIECES_KEY)
            if pieces is not None:
                # A commit is under way, and the rest of it is not here.
                self._unfinished = frozenset(removal(pieces))
        except BaseException:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        return None if key in self._unfinished else super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(start, end, reverse=reverse):
            if key not in self._unfinished:
                yield key, value

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        return [value for _, value in self.scan(start, end)]

    def close(self) -> None:
        self._payloads.close()
        self._db.close()
