"""Makes the records of the log from its entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.storage.keyvalue.keys import LogKeys, segment_meta_key
from penstock.storage.keyvalue.log import SEGMENT_AGE_MS, SEGMENT_ENTRIES
from penstock.storage.keyvalue.log_records import encode_segment
from penstock.storage.keyvalue.records import Logged, log_value

__all__ = ["LogWriter"]

#: Entries, and bytes of their metadata, in one record of the log.
_MAX_ENTRIES: Final = 256
_MAX_BYTES: Final = 256 * 1024


class _Part:
    """The entries of one tenant that the next record of the log has."""

    def __init__(self, tenant: str) -> None:
        self.keys = LogKeys(tenant)
        self.entries: list[Logged] = []
        self.size = 0
        self.listed = 0
        """The newest segment that lists the tenant."""


class LogWriter:
    """Appends entries in the order of their offsets, in segments as the engine makes them.

    Segments are counted by entries: in a store that was in a database offsets are far apart.
    """

    def __init__(self) -> None:
        self._parts: dict[str, _Part] = {}
        self._number = 0
        self._start = self._started_at = self._count = self._latest = 0

    def append(self, tenant: str, logged: Logged) -> Iterator[tuple[bytes, bytes]]:
        """The records that are complete with this entry."""
        message, metadata = logged
        self._latest = max(self._latest, message.published_at)
        if (
            not self._number
            or self._count >= SEGMENT_ENTRIES
            or self._latest - self._started_at >= SEGMENT_AGE_MS
        ):
            yield from self._open_segment(message.offset)
        part = self._parts.get(tenant)
        if part is None:
            part = self._parts[tenant] = _Part(tenant)
        if part.listed != self._number:
            part.listed = self._number
            yield part.keys.listing(self._number), b""
        part.entries.append(logged)
        part.size += len(metadata)
        self._count += 1
        if len(part.entries) >= _MAX_ENTRIES or part.size >= _MAX_BYTES:
            yield self._record(part)

    def flush(self) -> Iterator[tuple[bytes, bytes]]:
        """The records of the entries so far."""
        for part in self._parts.values():
            if part.entries:
                yield self._record(part)

    def _open_segment(self, start: int) -> Iterator[tuple[bytes, bytes]]:
        yield from self.flush()
        self._number += 1
        # No later than a later entry of an earlier segment.
        self._start, self._started_at, self._count = start, self._latest, 0
        yield segment_meta_key(self._number), encode_segment(start, self._started_at)

    def _record(self, part: _Part) -> tuple[bytes, bytes]:
        entries, part.entries, part.size = part.entries, [], 0
        return part.keys.entry(self._number, entries[0][0].offset - self._start), log_value(entries)
