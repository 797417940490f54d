"""The low-water mark of the disk: publishes are refused before a commit runs out of space.

A commit that the disk refuses ends service until the store is reopened, so publishing stops
earlier, while there is still space for the commits of claims, acks and keepers, which in turn free
space. Routing, assigning and replaying add deliveries by the million, and stop at half of the mark:
until then a queue that is behind may continue, because it keeps the log from being removed.

The free space is read at most once a second, by the first call (2 µs); near the mark every call
reads it, because callers can write hundreds of megabytes in a second.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import StoreFull
from penstock.storage.keyvalue.adapters import Adapter

__all__ = ["DiskSpace"]

_CHECK_EVERY_MS: Final = 1000
#: Free space below this multiple of the low-water mark counts as near.
_NEAR: Final = 4
#: The low-water mark is at most this fraction of the disk, so that a small disk can be used at all.
_PARTS: Final = 20
_log = logging.getLogger("penstock.storage")


class DiskSpace:
    """Whether the disk has enough space for publishes."""

    __slots__ = ("_adapter", "_checked_at", "_is_low", "_is_near", "_is_used_up", "_wanted_bytes")

    def __init__(self, adapter: Adapter, wanted_bytes: int) -> None:
        self._adapter = adapter
        self._wanted_bytes = wanted_bytes
        self._checked_at = -_CHECK_EVERY_MS
        self._is_near = False
        self._is_low = False
        self._is_used_up = False

    def check(self, now: int) -> None:
        """Raise ``StoreFull`` while less space is free than a publish requires."""
        if self._is_near or not 0 <= now - self._checked_at < _CHECK_EVERY_MS:
            self._look(now)
        if self._is_low:
            raise StoreFull(
                "The disk of the store has less free space than min_free_disk_bytes requires.",
                field="min_free_disk_bytes",
                limit=self._wanted_bytes,
            )

    def check_bulk(self, now: int) -> None:
        """Raise ``StoreFull`` while too little space is free to add deliveries of the log."""
        if self.is_used_up(now):
            raise StoreFull(
                "The disk of the store has less than half of the free space that "
                "min_free_disk_bytes requires.",
                field="min_free_disk_bytes",
                limit=self._wanted_bytes,
            )

    def is_used_up(self, now: int) -> bool:
        """Whether less than half of the low-water mark is free."""
        if self._is_near or not 0 <= now - self._checked_at < _CHECK_EVERY_MS:
            self._look(now)
        return self._is_used_up

    def _look(self, now: int) -> None:
        self._checked_at = now
        space = self._adapter.space() if self._wanted_bytes else None
        if space is None:
            return
        free, total = space
        mark = min(self._wanted_bytes, total // _PARTS)
        is_low = free < mark
        self._is_near = free < _NEAR * mark
        self._is_used_up = free < mark // 2
        if is_low != self._is_low:
            self._is_low = is_low
            if is_low:
                _log.error("The store's disk has %d bytes left: publishes are refused.", free)
            else:
                _log.warning("The store's disk has %d bytes free: publishes are accepted.", free)
