"""Reads a store in files as it is now, while another process may write to it.

The records and the index of payloads are read into memory at once, from the snapshot and the
journals, whose end may be torn. A payload is in a journal or in its file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.errors import StoreCorrupt, StoreUnavailable
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters.files.commit_body import is_payload, offset_of_key
from penstock.storage.keyvalue.adapters.files.held_files import hold_files
from penstock.storage.keyvalue.adapters.files.message_files import MessageFiles
from penstock.storage.keyvalue.adapters.files.payload_region import PayloadRegion
from penstock.storage.keyvalue.adapters.files.recovery import read_store
from penstock.storage.keyvalue.adapters.mark_file import MarkFile
from penstock.storage.keyvalue.adapters.place import read_place
from penstock.storage.keyvalue.adapters.read_only import ReadOnly
from penstock.storage.keyvalue.chain import check_links, read_links
from penstock.storage.keyvalue.encoding import prefix_end
from penstock.storage.keyvalue.keys import LINK_PREFIX, PAYLOAD_PREFIX

__all__ = ["FilesReader"]


class FilesReader(ReadOnly):
    """An ordered map of bytes to bytes in a directory of files, which does not change."""

    name = "files"
    durability: Durability = "fsync"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name_of_store = str(path)
        try:
            self._held = hold_files(path)
        except OSError as error:
            raise StoreUnavailable(f"There is no store at {path}: {error}.") from error
        try:
            self._open()
        except BaseException:
            os.close(self._held)
            raise

    def _open(self) -> None:
        path = self._path
        # The mark is read first: commits after it may exist, and none before it may be missing.
        stored = MarkFile(path).read()
        try:
            found = read_store(path / "journal")
        except FileNotFoundError as error:
            raise StoreUnavailable(f"A checkpoint has removed {error.filename}.") from error
        self._records = found.records
        self._payloads = found.payloads
        self._regions = found.behind
        self._files = MessageFiles(path)
        links = (value for _, value in self.scan(LINK_PREFIX, prefix_end(LINK_PREFIX)))
        check_links(read_links(links), None if stored is None else stored[0])

    def get(self, key: bytes) -> bytes | None:
        if is_payload(key):
            offset = offset_of_key(key)
            return self._payload(offset) if offset in self._payloads else None
        value: bytes | None = self._records.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if start.startswith(PAYLOAD_PREFIX):
            offsets = self._payloads.between(offset_of_key(start), offset_of_key(end))
            for offset in reversed(offsets) if reverse else offsets:
                yield PAYLOAD_PREFIX + offset.to_bytes(8, "big"), self._payload(offset)
            return
        for key in self._records.irange(start, end, (True, False), reverse):
            yield key, self._records[key]

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        return [value for _, value in self.scan(start, end)]

    def _payload(self, offset: int) -> bytes:
        index = bisect_right(self._regions, offset, key=_first)
        found = self._regions[index - 1].read(offset) if index else None
        if found is None:
            found = self._files.read(offset)
        if found is None:
            raise StoreCorrupt(
                f"The payload at offset {offset} is gone: retention has removed it meanwhile, or "
                "the store is damaged."
            )
        return found

    def place(self) -> str:
        return read_place(self._path)

    def close(self) -> None:
        """Let the server remove files again. The last reference to a journal closes it."""
        os.close(self._held)


def _first(region: PayloadRegion) -> int:
    return region.first
