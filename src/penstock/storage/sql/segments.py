"""Segments: the log, as rows that hold one publish each (L1, P3).

A segment is appended as a whole and never changes. The database assigns its number, which only
grows; an offset is that number and an index in the segment. The metadata of its entries are one
column, their payloads another, so that metadata is read without payloads. Segments are small
enough that reading one for a single message costs little.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksums
from penstock.model.message import NO_HEADERS, HeaderValue, Message, MessageId
from penstock.storage.sql.database import Session
from penstock.storage.sql.deliveries import INDEX_BITS, seal, segment_of, unseal

__all__ = ["MAX_SEGMENT_BYTES", "MAX_SEGMENT_ENTRIES", "EntryMetadata", "Segment", "Segments"]

#: Bytes of payloads and headers after which a new segment starts; a single message may be larger.
MAX_SEGMENT_BYTES: Final = 128 * 1024
#: An index has 14 bits. A larger segment makes a claim of a few of its entries read too much.
MAX_SEGMENT_ENTRIES: Final = 4_096
#: Bytes of cached segments. Messages just published are claimed next, and entries never change, so
#: the cache needs no validation.
_REMEMBERED_BYTES: Final = 32 * 1024 * 1024


class EntryMetadata(Struct, frozen=True, array_like=True, gc=False):
    """The metadata of one entry, without the parts that follow from its offset."""

    topic: str
    priority: int
    size: int
    checksum: int
    deliver_at: int | None = None
    """None: immediately."""
    expires_at: int | None = None
    partition_key: str | None = None
    key: str | None = None
    content_type: str | None = None
    headers: dict[str, HeaderValue] | None = None
    id: int | None = None
    """The message that this entry replaces; None for a new message."""
    published_at: int | None = None
    """When that message was published."""
    max_attempts: int | None = None

    @property
    def header_bytes(self) -> int:
        """The approximate size of its headers."""
        headers = self.headers
        if not headers:
            return 0
        try:
            return sum(map(len, headers)) + sum(map(len, headers.values()))  # type: ignore[arg-type]
        except TypeError:  # Not all of them are text.
            return sum(len(name) + len(str(value)) for name, value in headers.items())

    @property
    def total_bytes(self) -> int:
        """The size of its payload, and about that of its headers."""
        return self.size + self.header_bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[EntryMetadata]).decode


class Segment:
    """One segment, with or without its payloads."""

    __slots__ = ("_payloads", "_starts", "metadata", "number", "published_at", "tenant")

    def __init__(
        self,
        number: int,
        tenant: int,
        published_at: int,
        metadata: Sequence[EntryMetadata],
        payloads: bytes | None,
    ) -> None:
        self.number = number
        self.tenant = tenant
        self.published_at = published_at
        self.metadata = metadata
        self._payloads = payloads
        self._starts: list[int] | None = None

    @staticmethod
    def encode(metadata: Sequence[EntryMetadata]) -> bytes:
        """The metadata in their stored form."""
        return seal(_encode(metadata))

    @classmethod
    def read(
        cls, number: int, tenant: int, published_at: int, metadata: bytes, payloads: bytes | None
    ) -> Segment:
        """Decode a stored segment."""
        what = f"segment {number} of the log"
        try:
            decoded = _decode(unseal(metadata, what))
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"The metadata of {what} cannot be read.") from error
        return cls(number, tenant, published_at, decoded, payloads)

    @property
    def has_payloads(self) -> bool:
        """Whether the payloads were read too."""
        return self._payloads is not None

    @property
    def weight(self) -> int:
        """Its approximate size in memory, in bytes."""
        headers = sum([entry.header_bytes for entry in self.metadata if entry.headers])
        return 200 * len(self.metadata) + headers + len(self._payloads or b"")

    @property
    def payload_bytes(self) -> int:
        """The size of its payloads, which need not have been read."""
        if self._payloads is not None:
            return len(self._payloads)
        return sum([entry.size for entry in self.metadata])

    def message(self, index: int) -> Message:
        """The metadata of an entry."""
        entry_metadata = self.metadata[index]
        # Id and offset are the same number; wrapping it twice would cost time per message.
        offset: Any = self.number << INDEX_BITS | index
        published_at = (
            self.published_at
            if entry_metadata.published_at is None
            else entry_metadata.published_at
        )
        return Message(
            offset if entry_metadata.id is None else MessageId(entry_metadata.id),
            offset,
            entry_metadata.topic,
            entry_metadata.priority,
            published_at,
            published_at if entry_metadata.deliver_at is None else entry_metadata.deliver_at,
            entry_metadata.expires_at,
            entry_metadata.size,
            entry_metadata.checksum,
            entry_metadata.partition_key,
            entry_metadata.key,
            entry_metadata.content_type,
            NO_HEADERS if entry_metadata.headers is None else entry_metadata.headers,
            entry_metadata.max_attempts,
        )

    def payload(self, index: int) -> bytes:
        """The payload of an entry, verified (P3, X1)."""
        return self._payloads_of((index,))[0]

    def _payloads_of(self, indices: Sequence[int]) -> list[bytes]:
        """The payloads of entries, verified together, which takes half the time."""
        if self._starts is None:
            self._starts = [0, *accumulate([one.size for one in self.metadata])]
        assert self._payloads is not None
        data, starts = self._payloads, self._starts
        payloads = [data[starts[index] : starts[index + 1]] for index in indices]
        expected = [self.metadata[index].checksum for index in indices]
        found = checksums(payloads, repeat(0))
        if found != expected:
            wrong = next(i for i, one in enumerate(found) if one != expected[i])
            offset = self.number << INDEX_BITS | indices[wrong]
            raise StoreCorrupt(f"The checksum of the payload at offset {offset} is wrong.")
        return payloads

    def read_entries(self, indices: Sequence[int]) -> list[tuple[Message, bytes]]:
        """Entries with their payloads, verified (P3, X1)."""
        payloads = self._payloads_of(indices)
        return list(zip(map(self.message, indices), payloads, strict=True))


class Segments:
    """Reads segments, and caches those used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Segment] = OrderedDict()
        self._weight = 0

    def remember(self, segment: Segment) -> None:
        """Cache a committed segment."""
        old = self._known.pop(segment.number, None)
        if old is not None:
            self._weight -= old.weight
        self._known[segment.number] = segment
        self._weight += segment.weight
        while self._weight > _REMEMBERED_BYTES:
            _, dropped = self._known.popitem(last=False)
            self._weight -= dropped.weight

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop segments that retention removed."""
        for number in numbers:
            segment = self._known.pop(number, None)
            if segment is not None:
                self._weight -= segment.weight

    def clear(self) -> None:
        """Drop all segments."""
        self._known.clear()
        self._weight = 0

    def forget_published(self, before: int) -> None:
        """Drop segments published by then: another server may have removed them."""
        self.forget([n for n, s in self._known.items() if s.published_at <= before])

    def payload_bytes(self, numbers: Iterable[int], unknown: int) -> int:
        """How many bytes the payloads of segments have; ``unknown`` for each not cached."""
        known = self._known
        return sum(known[one].payload_bytes if one in known else unknown for one in numbers)

    async def read(
        self,
        session: Session,
        tenant: int,
        numbers: Iterable[int],
        *,
        payloads: bool = False,
        remember: bool = True,
    ) -> dict[int, Segment]:
        """The segments of these numbers that the tenant has (T1), cached with ``remember``."""
        found: dict[int, Segment] = {}
        missing: list[int] = []
        for number in set(numbers):
            known = self._known.get(number)
            if known is None or (payloads and not known.has_payloads):
                missing.append(number)
            elif known.tenant == tenant:
                self._known.move_to_end(number)
                found[number] = known
        if missing:
            statement = "read_segments" if payloads else "read_metadata"
            rows = await session.fetch(statement, tenant=tenant, numbers=sorted(missing))
            for number, published_at, metadata, *rest in rows:
                segment = Segment.read(
                    number, tenant, published_at, metadata, rest[0] if payloads else None
                )
                if remember:
                    self.remember(segment)
                found[number] = segment
        return found

    async def messages(
        self, session: Session, tenant: int, offsets: Iterable[int], *, remember: bool = True
    ) -> dict[int, Message]:
        """The entries at these offsets, by offset; missing ones are left out."""
        wanted = [(offset, *segment_of(offset)) for offset in offsets]
        numbers = {number for _, number, _ in wanted}
        segments = await self.read(session, tenant, numbers, remember=remember)
        return {
            offset: segments[number].message(index)
            for offset, number, index in wanted
            if number in segments and index < len(segments[number].metadata)
        }
