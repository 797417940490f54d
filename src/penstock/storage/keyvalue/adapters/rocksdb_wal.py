"""Reads RocksDB's write-ahead logs just far enough to find a gap.

A log is a sequence of 32 KiB blocks. A record has a header of seven bytes (checksum, length, type)
and is split at block boundaries. A record is a batch, which begins with its first sequence number
and its number of entries. Sequence numbers have no gaps, so consecutive batches across all logs
join exactly unless something between them is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["endless_log", "logs_after_gap", "set_aside"]

_BLOCK: Final = 32 * 1024
_HEADER: Final = struct.Struct("<IHB")
_BATCH: Final = struct.Struct("<QI")
#: Record types: a whole batch, the first piece of one, and the last.
_FULL: Final = 1
_FIRST: Final = 2
_LAST: Final = 4
#: Record types that RocksDB writes to recycled logs. Penstock does not recycle logs.
_RECYCLED: Final = range(5, 9)


def endless_log(folder: Path) -> Path | None:
    """A log or manifest that contains a record type of recycled logs.

    That is damage: one flipped bit in the type of a record. RocksDB 9.8.4 never reaches the end
    of such a file.
    """
    for path in sorted((*folder.glob("MANIFEST-*"), *folder.glob("*.log"))):
        if any(kind in _RECYCLED for _, _, kind in _records(path.read_bytes())):
            return path
    return None


def logs_after_gap(folder: Path) -> list[Path]:
    """The first log that does not continue its predecessor, and all later logs."""
    logs = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
    expected: int | None = None
    for position, path in enumerate(logs):
        for sequence, count in _batches(path):
            if expected is not None and sequence != expected:
                return logs[position:]
            expected = sequence + count
    return []


def set_aside(paths: list[Path], folder_name: str) -> Path:
    """Move the logs into a subdirectory, where RocksDB does not read them."""
    folder = paths[0].parent / folder_name
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in paths:
        path.rename(folder / path.name)
    return folder


def _batches(path: Path) -> Iterator[tuple[int, int]]:
    """The first sequence number and the count of every batch, up to the first torn record."""
    content = path.read_bytes()
    begun: tuple[int, int] | None = None
    for start, length, kind in _records(content):
        if kind in (_FULL, _FIRST) and length >= _BATCH.size:
            begun = _BATCH.unpack_from(content, start)
        if kind in (_FULL, _LAST) and begun is not None:
            yield begun
            begun = None


def _records(content: bytes) -> Iterator[tuple[int, int, int]]:
    """The start of every record's content, its length and type, up to the first torn record."""
    place = 0
    while place + _HEADER.size <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER.size:
            place += left
            continue
        _, length, kind = _HEADER.unpack_from(content, place)
        start, place = place + _HEADER.size, place + _HEADER.size + length
        if place > len(content) or (kind == 0 and length == 0):
            return
        yield start, length, kind
