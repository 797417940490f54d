"""The declared size of an Arrow IPC stream: rows, and bytes after decompression.

It is read from the metadata of the messages before anything is decompressed, so that a stream of
a few kilobytes cannot become gigabytes. Arrow allocates exactly what is declared and refuses a
buffer that decompresses to anything else, so the declared sizes are a bound.

Only the part of the flatbuffers format that this needs is parsed (Message.fbs of Arrow).
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import BadInput, TooLarge

__all__ = ["declared_bytes"]

#: Messages per stream: a schema, dictionaries, and batches of one row.
_MAX_MESSAGES: Final = 20_000
_CONTINUATION: Final = 0xFFFFFFFF
#: Of the enumeration MetadataVersion: V5, which Arrow has written since 1.0. Older versions store
#: the codec elsewhere, so the sizes read here would be those of compressed bytes.
_VERSION: Final = 4
#: Of the union MessageHeader.
_DICTIONARY: Final = 2
_BATCH: Final = 3
#: The declared size of a buffer that was not worth compressing.
_NOT_COMPRESSED: Final = -1

_u16: Final = struct.Struct("<H")
_i32: Final = struct.Struct("<i")
_u32: Final = struct.Struct("<I")
_i64: Final = struct.Struct("<q")
_buffer: Final = struct.Struct("<qq")


def declared_bytes(body: bytes, *, rows: int, size: int) -> int:
    """The size of a stream after decompression; ``TooLarge`` beyond ``rows`` or ``size``."""
    try:
        return _Sizes(body, rows, size).read()
    except (struct.error, IndexError) as error:
        raise BadInput("The Arrow stream cannot be read: it ends early.", field="body") from error


class _Sizes:
    def __init__(self, body: bytes, rows: int, size: int) -> None:
        self._body = body
        self._max_rows = rows
        self._max_size = size
        self._rows = 0
        self._size = 0

    def read(self) -> int:
        position = 0
        for _ in range(_MAX_MESSAGES):
            if position >= len(self._body):
                return self._size
            length = _u32.unpack_from(self._body, position)[0]
            position += 4
            if length == _CONTINUATION:
                length = _u32.unpack_from(self._body, position)[0]
                position += 4
            if not length:
                return self._size
            position = self._message(position, length)
        raise TooLarge(
            f"An Arrow stream has at most {_MAX_MESSAGES} messages.",
            field="body",
            limit=_MAX_MESSAGES,
        )

    def _message(self, begin: int, length: int) -> int:
        """Count one message; returns the position after it."""
        content = begin + length
        table = self._reference(begin)
        version_at = self._field(table, 0)
        if not version_at or _u16.unpack_from(self._body, version_at)[0] != _VERSION:
            raise BadInput(
                "The Arrow stream is older than Arrow 1.0; write it with a newer library.",
                field="body",
            )
        kind_at, header_at = self._field(table, 1), self._field(table, 2)
        size_at = self._field(table, 3)
        size = _i64.unpack_from(self._body, size_at)[0] if size_at else 0
        if size < 0 or content + size > len(self._body):
            raise BadInput("The Arrow stream cannot be read: it ends early.", field="body")
        kind = self._body[kind_at] if kind_at else 0
        if header_at and kind in (_DICTIONARY, _BATCH):
            batch = self._reference(header_at)
            if kind == _DICTIONARY:
                self._check_not_delta(batch)
                inner = self._field(batch, 1)
                batch = self._reference(inner) if inner else 0
            if batch:
                self._batch(batch, content, content + size, counted=kind == _BATCH)
        return content + size

    def _check_not_delta(self, table: int) -> None:
        """Refuse a dictionary that adds to an earlier one.

        Arrow copies the whole dictionary for every batch that follows such an addition, and each
        batch keeps its copy: 8 MiB and a hundred additions of one byte would take 800 MiB.
        """
        delta_at = self._field(table, 2)
        if delta_at and self._body[delta_at]:
            raise BadInput(
                "The Arrow stream has a delta dictionary; write it without dictionary deltas.",
                field="body",
            )

    def _batch(self, table: int, content: int, end: int, *, counted: bool) -> None:
        rows_at = self._field(table, 0)
        if counted and rows_at:
            self._rows += _i64.unpack_from(self._body, rows_at)[0]
            if not 0 <= self._rows <= self._max_rows:
                raise TooLarge(
                    f"A batch has more than {self._max_rows} messages.",
                    field="messages",
                    limit=self._max_rows,
                )
        buffers_at = self._field(table, 2)
        if not buffers_at:
            return
        compressed = bool(self._field(table, 3))
        vector = self._reference(buffers_at)
        count = _u32.unpack_from(self._body, vector)[0]
        # All descriptors are in the metadata, whose size bounds their number.
        for index in range(min(count, (content - vector) // _buffer.size + 1)):
            offset, length = _buffer.unpack_from(self._body, vector + 4 + index * _buffer.size)
            if offset < 0 or length < 0 or content + offset + length > end:
                raise BadInput("A buffer of the Arrow stream lies outside of it.", field="body")
            if compressed and length:
                declared = _i64.unpack_from(self._body, content + offset)[0]
                length = length if declared == _NOT_COMPRESSED else declared
            self._add(length)

    def _add(self, size: int) -> None:
        self._size += size
        if size < 0 or self._size > self._max_size:
            raise TooLarge(
                f"The Arrow stream has more than {self._max_size} bytes after decompression.",
                field="body",
                limit=self._max_size,
            )

    def _field(self, table: int, number: int) -> int:
        """The position of a field of a table; 0 if it is missing."""
        vtable = table - _i32.unpack_from(self._body, table)[0]
        if not 0 <= vtable < len(self._body):
            raise IndexError(vtable)
        place = 4 + 2 * number
        if place + 2 > _u16.unpack_from(self._body, vtable)[0]:
            return 0
        offset = _u16.unpack_from(self._body, vtable + place)[0]
        return table + offset if offset else 0

    def _reference(self, position: int) -> int:
        """The target of the offset at a position."""
        found: int = position + _u32.unpack_from(self._body, position)[0]
        return found
