"""Packs the entries of a log into segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.model.message import Message
from penstock.storage.sql.deliveries import INDEX_BITS
from penstock.storage.sql.segments import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_ENTRIES,
    EntryMetadata,
    Segment,
)
from penstock.storage.sql.transfer.numbering import Numbering

__all__ = ["SegmentWriter"]


class _Part:
    """The segment that is being filled with a tenant's entries."""

    def __init__(self, tenant: int) -> None:
        self.tenant = tenant
        self.numbering = Numbering()
        #: Drawn positions that no entry has passed yet.
        self.positions: deque[int] = deque()
        self.number = 0
        self.published_at = 0
        self.size = 0
        self.metadata: list[EntryMetadata] = []
        self.payloads: list[bytes] = []


class SegmentWriter:
    """Appends entries in the order of their old offsets, tenant by tenant or mixed."""

    def __init__(self, first: int) -> None:
        #: The last number that was given to a segment or a position.
        self.last = max(0, first - 1)
        self._parts: dict[int, _Part] = {}

    def add_tenant(self, tenant: int) -> Numbering:
        """Begin the log of a tenant."""
        part = self._parts[tenant] = _Part(tenant)
        return part.numbering

    def reserve(self, tenant: int, position: int) -> None:
        """Note a drawn position, which needs a number between those of its neighbours."""
        self._parts[tenant].positions.append(position)

    def append(
        self, tenant: int, message: Message, payload: bytes, replaces: int | None
    ) -> tuple[int, list[tuple[str, Sequence[Any]]]]:
        """Returns the new offset of the entry, and the rows that are complete."""
        part = self._parts[tenant]
        rows: list[tuple[str, Sequence[Any]]] = []
        while part.positions and part.positions[0] < message.offset:
            rows += self._close(part)
            self._give_position(part)
        metadata = _metadata(message, replaces)
        size = metadata.total_bytes
        if part.metadata and (
            part.size + size > MAX_SEGMENT_BYTES
            or len(part.metadata) >= MAX_SEGMENT_ENTRIES
            or (replaces is None and message.published_at != part.published_at)
        ):
            rows += self._close(part)
        if not part.metadata:
            self.last += 1
            part.number, part.published_at, part.size = self.last, message.published_at, 0
        offset = part.number << INDEX_BITS | len(part.metadata)
        part.metadata.append(metadata)
        part.payloads.append(payload)
        part.size += size
        part.numbering.add(message.offset, offset)
        return offset, rows

    def flush(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """The rows of what was appended, and numbers for the positions behind it."""
        for part in self._parts.values():
            yield from self._close(part)
            while part.positions:
                self._give_position(part)

    def _give_position(self, part: _Part) -> None:
        self.last += 1
        part.numbering.add(part.positions.popleft(), self.last << INDEX_BITS)

    def _close(self, part: _Part) -> list[tuple[str, Sequence[Any]]]:
        if not part.metadata:
            return []
        row = (
            part.number,
            part.tenant,
            part.published_at,
            len(part.metadata),
            Segment.encode(part.metadata),
            b"".join(part.payloads),
        )
        part.metadata, part.payloads = [], []
        return [("penstock_log", row)]


def _metadata(message: Message, replaces: int | None) -> EntryMetadata:
    published_at = message.published_at
    return EntryMetadata(
        message.topic,
        message.priority,
        message.size,
        message.checksum,
        None if message.deliver_at == published_at else message.deliver_at,
        message.expires_at,
        message.partition_key,
        message.key,
        message.content_type,
        dict(message.headers) if message.headers else None,
        replaces,
        None if replaces is None else published_at,
        message.max_attempts,
    )
