"""What the writer's adapter of SlateDB and readers share: reads, and where the store is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from penstock.storage.keyvalue.adapters import Mark
from penstock.storage.keyvalue.adapters.place import read_place
from penstock.storage.keyvalue.adapters.slatedb import binding
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.error_mapping import store_error
from penstock.storage.keyvalue.adapters.slatedb.location import Location
from penstock.storage.keyvalue.adapters.slatedb.removals import RECORDS, Removals

__all__ = ["Reads"]

_READ_AHEAD_BYTES: Final = 1024 * 1024
#: Rows per call of the binding: few at first, because many scans need one pair only.
_FIRST_ROWS: Final = 8
_MOST_ROWS: Final = 512
#: A scan takes 50 µs and 2 µs per row, a get 14 µs.
_SCANNED_KEYS: Final = 8
_NUMBER_BYTES: Final = 8


def _scan_options(*, reverse: bool, caching: bool) -> Any:
    order = uniffi.IterationOrder
    return uniffi.ScanOptions(
        durability_filter=uniffi.DurabilityLevel.MEMORY,
        dirty=False,
        read_ahead_bytes=_READ_AHEAD_BYTES,
        cache_blocks=caching,
        max_fetch_tasks=4,
        order=order.DESCENDING if reverse else order.ASCENDING,
    )


_FORWARD: Final = _scan_options(reverse=False, caching=True)
_REVERSE: Final = _scan_options(reverse=True, caching=True)
#: A bulk read must not evict blocks that claims read again.
_BULK: Final = _scan_options(reverse=False, caching=False)


def _are_dense(keys: Sequence[bytes]) -> bool:
    """Whether the keys are numbers in a row, such as offsets, which a scan reads faster."""
    if len(keys) < _SCANNED_KEYS:
        return False
    low, high = min(keys), max(keys)
    if len(low) != len(high) or low[:-_NUMBER_BYTES] != high[:-_NUMBER_BYTES]:
        return False
    span = int.from_bytes(high[-_NUMBER_BYTES:]) - int.from_bytes(low[-_NUMBER_BYTES:])
    return span < 2 * len(keys)


class Reads:
    """The base of both adapters."""

    name = "slatedb"
    has_marks = False
    #: The binding's writer or reader; set by the subclass.
    handle: Any

    def __init__(self, location: Location) -> None:
        self.location = location
        self.name_of_store = location.name
        self.remote_place = f"bucket={location.kind}:{location.bucket} path={quote(location.path)}"
        self._read_s = location.timeout_ms / 1000
        self.removals = Removals()

    def place(self) -> str:
        if self.location.is_remote:
            return self.remote_place
        return read_place(Path(self.location.path))

    def space(self) -> tuple[int, int] | None:
        return None

    def mark(self, mark: Mark) -> None:
        """Does nothing: see ``has_marks``."""

    def read_mark(self) -> Mark | None:
        return None

    def load_removals(self) -> None:
        """Hide what was removed and is not deleted yet; once the handle is open."""
        self.removals.load(self._stored(*RECORDS, _FORWARD, _FIRST_ROWS))

    def get(self, key: bytes) -> bytes | None:
        if self.removals and self.removals.hides(key):
            return None
        try:
            value: bytes | None = wait(self.handle.get(key), self._read_s)
        except (uniffi.Error, TimeoutError) as error:
            raise store_error(self.name_of_store, error) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not _are_dense(keys):
            return [self.get(key) for key in keys]
        low, high = min(keys), max(keys)
        found = dict(self._rows(low, high + b"\x00", _FORWARD, _MOST_ROWS))
        return [found.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._rows(start, end, _REVERSE if reverse else _FORWARD, _FIRST_ROWS)

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        return [value for _, value in self._rows(start, end, _BULK, _MOST_ROWS)]

    def _rows(
        self, start: bytes, end: bytes, options: Any, count: int
    ) -> Iterator[tuple[bytes, bytes]]:
        if not self.removals:
            yield from self._stored(start, end, options, count)
            return
        for low, high in self.removals.visible(start, end, reverse=options is _REVERSE):
            yield from self._stored(low, high, options, count)

    def stored_keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """The keys of a range, hidden ones included."""
        for key, _ in self._stored(start, end, _BULK, _FIRST_ROWS):
            yield key

    def _stored(
        self, start: bytes, end: bytes, options: Any, count: int
    ) -> Iterator[tuple[bytes, bytes]]:
        if start >= end:
            return
        rows = uniffi.KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)
        try:
            cursor = wait(self.handle.scan_with_options(rows, options), self._read_s)
            while True:
                pairs = wait(binding.next_pairs(cursor, count), self._read_s)
                yield from pairs
                if len(pairs) < count:
                    return
                count = min(4 * count, _MOST_ROWS)
        except (uniffi.Error, TimeoutError) as error:
            raise store_error(self.name_of_store, error) from error
