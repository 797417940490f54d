"""Large range removals: one record hides a range at once, and its records are removed in batches.

SlateDB has no range delete, so removing a range means deleting each of its keys. In one batch with
the commit, the 300,000 records of a deleted queue would keep all other commits waiting for seconds.
Instead the commit stores a *removal* record. From then on no read shows what the range has (S3),
and the writer deletes the keys between later commits. A writer that opens the store continues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.adapters import KeyRange
from penstock.storage.keyvalue.encoding import prefix_end, seal, unseal
from penstock.storage.keyvalue.keys import REMOVAL_PREFIX

__all__ = ["RECORDS", "Removal", "Removals", "removal_record"]

#: Where the removal records are.
RECORDS: Final[KeyRange] = (REMOVAL_PREFIX, prefix_end(REMOVAL_PREFIX))
_NUMBER_BYTES: Final = 8


class Removal(Struct, frozen=True):
    """A range that is removed, but whose keys are not all deleted yet."""

    number: int
    start: bytes
    end: bytes

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return REMOVAL_PREFIX + self.number.to_bytes(_NUMBER_BYTES, "big")


def removal_record(removal: Removal) -> tuple[bytes, bytes]:
    """Key and value of its record."""
    return removal.key, seal(msgspec.msgpack.encode((removal.start, removal.end)))


def _decode(key: bytes, value: bytes) -> Removal:
    try:
        start, end = msgspec.msgpack.decode(unseal(value, "removal"), type=tuple[bytes, bytes])
    except msgspec.DecodeError as error:
        raise StoreCorrupt("A removal record cannot be decoded.") from error
    return Removal(int.from_bytes(key[len(REMOVAL_PREFIX) :], "big"), start, end)


class Removals:
    """The removals of a store that are not finished.

    One thread changes them; others may read meanwhile.
    """

    def __init__(self) -> None:
        self._all: tuple[Removal, ...] = ()
        #: The same ranges without overlaps, in order: starts and ends.
        self._merged: tuple[list[bytes], list[bytes]] = ([], [])

    def __bool__(self) -> bool:
        return bool(self._all)

    def load(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace all by those of the records."""
        self._replace(tuple(_decode(key, value) for key, value in pairs))

    def new(self, ranges: Iterable[KeyRange]) -> list[Removal]:
        """Removals of the ranges under new numbers, which are not added yet."""
        first = self._all[-1].number + 1 if self._all else 0
        return [Removal(first + n, start, end) for n, (start, end) in enumerate(ranges)]

    def add(self, removals: Iterable[Removal]) -> None:
        """Hide their ranges."""
        self._replace((*self._all, *removals))

    def finish(self, removal: Removal) -> None:
        """Its keys are deleted."""
        self._replace(tuple(other for other in self._all if other != removal))

    @property
    def oldest(self) -> Removal:
        """The one to be finished first."""
        return self._all[0]

    def hides(self, key: bytes) -> bool:
        """Whether a removed range contains the key."""
        starts, ends = self._merged
        index = bisect_right(starts, key) - 1
        return index >= 0 and key < ends[index]

    def visible(self, start: bytes, end: bytes, *, reverse: bool = False) -> list[KeyRange]:
        """The parts of a range that no removal hides, in the order of a scan."""
        parts: list[KeyRange] = []
        for low, high in zip(*self._merged, strict=True):
            if high <= start or low >= end:
                continue
            if start < low:
                parts.append((start, low))
            start = high
        if start < end:
            parts.append((start, end))
        return parts[::-1] if reverse else parts

    def _replace(self, removals: tuple[Removal, ...]) -> None:
        starts: list[bytes] = []
        ends: list[bytes] = []
        for one in sorted(removals, key=lambda removal: removal.start):
            if ends and one.start <= ends[-1]:
                ends[-1] = max(ends[-1], one.end)
            else:
                starts.append(one.start)
                ends.append(one.end)
        self._all, self._merged = removals, (starts, ends)
