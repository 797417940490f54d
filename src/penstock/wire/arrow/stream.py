"""Writes an Arrow IPC stream piece by piece. Every batch says where its reader continues."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from penstock.errors import BadInput

__all__ = ["COMPRESSIONS", "StreamWriter"]

#: By the name in a request.
COMPRESSIONS: Final[Mapping[str, str | None]] = {"zstd": "zstd", "lz4": "lz4", "none": None}


class StreamWriter:
    """Writes record batches as the bytes of a stream."""

    def __init__(self, schema: pa.Schema, compression: str) -> None:
        if compression not in COMPRESSIONS:
            raise BadInput("compression must be zstd, lz4 or none.", field="compression")
        self.compresses = COMPRESSIONS[compression] is not None
        """Whether writing takes long enough for a thread."""
        options = pa.ipc.IpcWriteOptions(compression=COMPRESSIONS[compression])
        self._pieces = _Pieces()
        self._sink = pa.PythonFile(self._pieces, mode="w")
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)

    def write(
        self, batch: pa.RecordBatch, mark: Mapping[str, str], data: bytes = b""
    ) -> list[bytes]:
        """The bytes that this batch adds to the stream, in parts; ``mark`` is its custom metadata.

        ``data`` are the bytes of its largest column, if they are in one piece. Where they go into
        the stream unchanged, they are a part of their own and not copied.
        """
        self._pieces.know(data)
        self._writer.write_batch(batch, custom_metadata=dict(mark))
        return self._pieces.take()

    def finish(self) -> list[bytes]:
        """The bytes that end the stream."""
        self._writer.close()
        return self._pieces.take()


class _Pieces(io.RawIOBase):
    """A file that collects the buffers written to it."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._known = b""
        self._address = 0

    def know(self, data: bytes) -> None:
        """Return these bytes uncopied if they are written."""
        self._known = data
        self._address = pa.py_buffer(data).address

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # Bytes, or a buffer of Arrow that does not change while it is held.
        size = len(data)
        if type(data) is pa.Buffer and (data.address, size) == (self._address, len(self._known)):
            data = self._known
        self._pieces.append(data)
        return size

    def take(self) -> list[bytes]:
        """All parts since the last call: known data on its own, everything between joined."""
        parts: list[bytes] = []
        for known, group in groupby(self._pieces, key=lambda piece: piece is self._known):
            pieces = list(group)
            parts += pieces if known else [b"".join(pieces)]
        self._pieces.clear()
        self._known = b""
        # An empty part would end a chunked reply.
        return [part for part in parts if part]
