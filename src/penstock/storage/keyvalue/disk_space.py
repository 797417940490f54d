"""The low-water mark of the disk: publishes are refused before a commit runs out of space.

After a commit that the disk refuses, the store has to be reopened. So publishing stops earlier,
while there is still space for claims, acks and keepers, which free space in turn. A publish checks
the disk at most once per second (2 µs).
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import StoreFull
from penstock.storage.keyvalue.adapters import Adapter

__all__ = ["DiskSpace"]

_CHECK_EVERY_MS: Final = 1000
#: The low-water mark is at most one 20th of a disk, so that a small disk stays usable.
_PARTS: Final = 20
_log = logging.getLogger("penstock.storage")


class DiskSpace:
    """Whether the disk has enough space for publishes."""

    __slots__ = ("_adapter", "_checked_at", "_is_low", "_wanted_bytes")

    def __init__(self, adapter: Adapter, wanted_bytes: int) -> None:
        self._adapter = adapter
        self._wanted_bytes = wanted_bytes
        self._checked_at: int | None = None
        self._is_low = False

    def check(self, now: int) -> None:
        """Raise ``StoreFull`` while the free space is below the low-water mark."""
        checked_at = self._checked_at
        if checked_at is None or not 0 <= now - checked_at < _CHECK_EVERY_MS:
            self._checked_at = now
            self._look()
        if self._is_low:
            raise StoreFull(
                "The disk of the store has less free space than min_free_disk_bytes requires.",
                field="min_free_disk_bytes",
                limit=self._wanted_bytes,
            )

    def _look(self) -> None:
        space = self._adapter.space() if self._wanted_bytes else None
        if space is None:
            return
        free, total = space
        is_low = free < min(self._wanted_bytes, total // _PARTS)
        if is_low != self._is_low:
            self._is_low = is_low
            if is_low:
                _log.error("The store's disk has %d bytes left: publishes are refused.", free)
            else:
                _log.warning("The store's disk has %d bytes free: publishes are accepted.", free)
