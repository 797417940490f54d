"""An Arrow IPC stream, written piece by piece. Every batch says where its reader goes on."""

from __future__ import annotations

import io
from collections.abc import Mapping
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

    def write(self, batch: pa.RecordBatch, mark: Mapping[str, str]) -> bytes:
        """The bytes that this batch adds to the stream, ``mark`` being its custom metadata."""
        self._writer.write_batch(batch, custom_metadata=dict(mark))
        return self._pieces.take()

    def finish(self) -> bytes:
        """The bytes that end the stream."""
        self._writer.close()
        return self._pieces.take()


class _Pieces(io.RawIOBase):
    """A file that hands over what was written to it."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # Bytes, or a buffer of Arrow's that stays as it is for as long as it is held.
        self._pieces.append(data)
        return len(data)

    def take(self) -> bytes:
        """Everything since the last time."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken
