"""An Arrow IPC stream, written piece by piece. Every batch says where its reader goes on."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from penstock.errors import BadInput

__all__ = ["COMPRESSIONS", "StreamWriter"]

#: By the name that a caller asks for it with.
COMPRESSIONS: Final[Mapping[str, str | None]] = {"zstd": "zstd", "lz4": "lz4", "none": None}


class StreamWriter:
    """Record batches to the bytes of a stream."""

    def __init__(self, schema: pa.Schema, compression: str) -> None:
        if compression not in COMPRESSIONS:
            raise BadInput("compression is zstd, lz4 or none.", field="compression")
        self.compresses = COMPRESSIONS[compression] is not None
        """Whether writing is worth a thread of its own."""
        options = pa.ipc.IpcWriteOptions(compression=COMPRESSIONS[compression])
        self._pieces = _Pieces()
        self._sink = pa.PythonFile(self._pieces, mode="w")
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)

    def write(
        self, batch: pa.RecordBatch, mark: Mapping[str, str], data: bytes = b""
    ) -> list[bytes]:
        """What this batch adds to the stream, in parts; ``mark`` is its custom metadata.

        ``data`` is what the largest of its columns was made of, if that is one value: where it
        goes into the stream as it is, it is a part, and not copied.
        """
        self._pieces.know(data)
        self._writer.write_batch(batch, custom_metadata=dict(mark))
        return self._pieces.take()

    def finish(self) -> list[bytes]:
        """What ends the stream."""
        self._writer.close()
        return self._pieces.take()


class _Pieces(io.RawIOBase):
    """A file that hands over what was written to it."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._known = b""
        self._address = 0

    def know(self, data: bytes) -> None:
        """If these very bytes are written, take them as they are."""
        self._known = data
        self._address = pa.py_buffer(data).address

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # Bytes, or a buffer of Arrow's that stays as it is for as long as it is held.
        size = len(data)
        if type(data) is pa.Buffer and (data.address, size) == (self._address, len(self._known)):
            data = self._known
        self._pieces.append(data)
        return size

    def take(self) -> list[bytes]:
        """Everything since the last time: what is known for itself, what is between in one."""
        parts: list[bytes] = []
        for known, group in groupby(self._pieces, key=lambda piece: piece is self._known):
            pieces = list(group)
            parts += pieces if known else [b"".join(pieces)]
        self._pieces.clear()
        self._known = b""
        # An empty part would end a reply that comes in chunks.
        return [part for part in parts if part]
