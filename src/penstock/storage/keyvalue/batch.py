"""A batch: the writes of one commit, which can also be read in key order.

Verbs put records into a plain dict, because that is fastest and most batches are never scanned. The
first scan that needs them sorts the keys, one record type at a time, and each key once. So the cost
of a scan depends on what it yields and not on how much is staged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct
from sortedcontainers import SortedList

from penstock.storage.keyvalue.adapters import KeyRange

__all__ = ["Batch"]

#: The leading bytes of a key that distinguish record types. Payloads and attempts, which make up
#: most of a batch, are never scanned, so their keys are never sorted.
_TYPE_BYTES = 2
#: Keys that a scan fetches at a time: few at first, because many scans need one pair only.
_FIRST_KEYS = 8
_MOST_KEYS = 256


class Batch(Struct, eq=False):
    """Records to put and delete, and ranges to remove before that.

    Every commit has one, so this is a Struct, which C code constructs.
    """

    writes: dict[bytes, bytes | None] = {}
    sync: bool = False
    #: Removed ranges, in order, disjoint and not adjacent.
    _starts: list[bytes] = []
    _ends: list[bytes] = []
    #: Sorted keys by record type, and the keys added since.
    _ordered: dict[bytes, SortedList[bytes]] = {}
    _unordered: dict[bytes, list[bytes]] = {}
    #: How many keys of ``writes`` are in one of the two; a dict appends new keys at its end.
    _seen: int = 0

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return sum(map(len, filter(None, self.writes.values())))

    def __bool__(self) -> bool:
        return bool(self.writes or self._starts)

    # -- removed ranges ----------------------------------------------------------------

    @property
    def removed(self) -> Sequence[KeyRange]:
        """The ranges to remove, in order, disjoint and not adjacent."""
        return list(zip(self._starts, self._ends, strict=True)) if self._starts else ()

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Remove the current contents of the range; later puts into it stay."""
        if start >= end:
            return
        for key in list(self._keys_between(start, end)):
            del self.writes[key]
            self._ordered[key[:_TYPE_BYTES]].remove(key)
            self._seen -= 1
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def removes(self, key: bytes) -> bool:
        """Whether the key is in a removed range."""
        if not self._starts:
            return False
        index = bisect_right(self._starts, key) - 1
        return index >= 0 and key < self._ends[index]

    def kept(self, start: bytes, end: bytes) -> list[KeyRange]:
        """The parts of a range that are not removed, in order."""
        parts: list[KeyRange] = []
        index = bisect_right(self._ends, start)
        while start < end:
            if index == len(self._starts) or self._starts[index] >= end:
                parts.append((start, end))
                break
            if start < self._starts[index]:
                parts.append((start, self._starts[index]))
            start = self._ends[index]
            index += 1
        return parts

    # -- keys in order -----------------------------------------------------------------

    def has_between(self, start: bytes, end: bytes) -> bool:
        """Whether a key with start <= key < end is put or deleted."""
        return bool(self.writes) and next(self._keys_between(start, end), None) is not None

    def keys(self, start: bytes, end: bytes, *, reverse: bool) -> Iterator[bytes]:
        """The keys with start <= key < end that are put or deleted, in order.

        The batch may change during the iteration. A key that is put meanwhile may be missed.
        """
        count = _FIRST_KEYS
        while keys := list(islice(self._keys_between(start, end, reverse=reverse), count)):
            yield from keys
            if reverse:
                end = keys[-1]
            else:
                start = keys[-1] + b"\x00"  # The first key after it.
            count = min(2 * count, _MOST_KEYS)

    def _keys_between(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """As ``keys``, but the batch must not change during the iteration."""
        if start >= end:
            return
        self._notice()
        low, high = start[:_TYPE_BYTES], end[:_TYPE_BYTES]
        types = [low] if low == high else sorted(self._types(low, high), reverse=reverse)
        for record_type in types:
            ordered = self._in_order(record_type)
            if ordered is not None:
                yield from ordered.irange(start, end, (True, False), reverse)

    def _types(self, low: bytes, high: bytes) -> set[bytes]:
        return {item for item in (*self._ordered, *self._unordered) if low <= item <= high}

    def _notice(self) -> None:
        """Collect the keys that were put since the last scan."""
        new = len(self.writes) - self._seen
        if new:
            unordered = self._unordered
            for key in islice(reversed(self.writes), new):
                record_type = key[:_TYPE_BYTES]
                if record_type in unordered:
                    unordered[record_type].append(key)
                else:
                    unordered[record_type] = [key]
            self._seen += new

    def _in_order(self, record_type: bytes) -> SortedList[bytes] | None:
        new = self._unordered.pop(record_type, None)
        ordered = self._ordered.get(record_type)
        if new is not None:
            if ordered is None:
                ordered = self._ordered[record_type] = SortedList(new)
            else:
                ordered.update(new)
        return ordered
