"""The offsets of all payloads of a store, in order: eight bytes per payload."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

__all__ = ["PayloadIndex"]


class PayloadIndex:
    """A sorted set of offsets. New ones are almost always the highest."""

    __slots__ = ("_offsets",)

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._offsets = array("Q", offsets)

    def __contains__(self, offset: int) -> bool:
        index = bisect_left(self._offsets, offset)
        return index < len(self._offsets) and self._offsets[index] == offset

    def __len__(self) -> int:
        return len(self._offsets)

    def extend(self, offsets: Iterable[int]) -> None:
        """Add offsets, in order, that are higher than all others."""
        self._offsets.extend(offsets)

    def add(self, offset: int) -> None:
        offsets = self._offsets
        if not offsets or offset > offsets[-1]:
            offsets.append(offset)
        elif offset not in self:
            offsets.insert(bisect_left(offsets, offset), offset)

    def between(self, low: int, high: int) -> array[int]:
        """The offsets with low <= offset < high."""
        return self._offsets[bisect_left(self._offsets, low) : bisect_left(self._offsets, high)]

    def remove_between(self, low: int, high: int) -> array[int]:
        """Remove the offsets with low <= offset < high, and return them."""
        start, end = bisect_left(self._offsets, low), bisect_left(self._offsets, high)
        removed = self._offsets[start:end]
        del self._offsets[start:end]
        return removed

    def copy(self) -> array[int]:
        return self._offsets[:]
