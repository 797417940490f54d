"""The memory adapter: an ordered map in this process, lost when the process ends.

For tests, for experiments, and for the worker's inline mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes

__all__ = ["MemoryAdapter"]


class MemoryAdapter:
    """An ordered map of bytes to bytes, in memory."""

    name = "memory"
    durability: Durability = "memory"
    unsynced: Durability = "memory"
    persistent = False
    has_marks = False
    commit_interval_s = 0.0
    inline = True

    def __init__(self) -> None:
        self._map: SortedDict[bytes, bytes] = SortedDict()

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._map.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._map.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        # In slices, because the caller may run a write between two pairs.
        bounds = (True, False)
        while True:
            keys = self._map.irange(start, end, bounds, reverse)
            slice_ = [(key, self._map[key]) for key, _ in zip(keys, range(64), strict=False)]
            yield from slice_
            if len(slice_) < 64:
                return
            if reverse:
                end, bounds = slice_[-1][0], (True, False)
            else:
                start, bounds = slice_[-1][0], (False, False)

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        return [self._map[key] for key in self._map.irange(start, end, (True, False))]

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        self.write(writes, removed, sync)
        return True

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        del sync  # The durability is ``memory``: nothing survives the process.
        for low, high in removed:
            for key in list(self._map.irange(low, high, (True, False))):
                del self._map[key]
        for key, value in writes.items():
            if value is None:
                self._map.pop(key, None)
            else:
                self._map[key] = value

    def check(self) -> None:
        """No other process can have the store."""

    def place(self) -> str:
        return ""

    def space(self) -> tuple[int, int] | None:
        return None

    def mark(self, mark: Mark) -> None:
        """Does nothing: no commit survives the process."""

    def read_mark(self) -> Mark | None:
        return None

    def close(self) -> None:
        """Nothing to release."""
