"""A write-through cache of recently written records, deletions included.

Claims and settles read back what the last publishes wrote. A call of SlateDB's binding takes 14 µs;
this takes less than one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.storage.keyvalue.adapters import Writes

__all__ = ["UNKNOWN", "RecentRecords"]


class _Unknown:
    """The type of ``UNKNOWN``."""


#: The cache does not know the key. None means that the record was deleted.
UNKNOWN: Final = _Unknown()
#: What an entry costs besides its key and value.
_ENTRY_BYTES: Final = 150


class RecentRecords:
    """The newest value of recently written keys.

    One thread writes. Other threads may read at the same time; they get the old or the new value.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: OrderedDict[bytes, bytes | None] = OrderedDict()

    def get(self, key: bytes) -> bytes | _Unknown | None:
        return self._values.get(key, UNKNOWN)

    def update(self, writes: Writes) -> None:
        """Remember a batch that has been written, and forget the oldest records."""
        values = self._values
        for key, value in writes.items():
            if key in values:
                # Kept until it is replaced: a reader must not find an older value in the store.
                self._bytes += _size(value) - _size(values[key])
                values[key] = value
                values.move_to_end(key)
            else:
                values[key] = value
                self._bytes += _ENTRY_BYTES + len(key) + _size(value)
        while self._bytes > self._max_bytes:
            key, value = values.popitem(last=False)
            self._bytes -= _ENTRY_BYTES + len(key) + _size(value)


def _size(value: bytes | None) -> int:
    return 0 if value is None else len(value)
