"""Ranges of offsets: which part of the log to read, in how many pieces.

The end of a read is fixed when it is planned, and nothing appears below it afterwards (L2). If
retention has removed part of the range, ``failOnDataLoss`` decides whether the read fails before
the job starts or continues without that part.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from penstock.client import ClientOptions
from penstock.errors import OffsetsGone
from penstock.model.message import Offset
from penstock.pipeline.format.options import EARLIEST, LATEST, Position
from penstock.pipeline.remote import Remote

__all__ = ["PLANNING", "Range", "check_kept", "cut", "locate", "usual_entries"]

_log: Final = logging.getLogger(__name__)

#: A user waits for the plan of a query: retry long enough for a server to restart, but report
#: one that is unreachable soon.
PLANNING: Final = ClientOptions(retry_ms=5_000)
#: Bytes per partition: enough to amortize starting a task, few enough that the last task to end
#: does not keep the others waiting.
_PARTITION_BYTES: Final = 32 * 1024 * 1024
#: The rough size of an entry without its payload.
_ENTRY_BYTES: Final = 128
#: Entries sampled to estimate the size of entries.
_SAMPLE: Final = 100
_LEAST_ENTRIES: Final = 1_000


class Range(InputPartition):
    """The entries from ``start`` to below ``end``."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


def locate(remote: Remote, position: Position) -> int:
    """The current offset of a position."""
    match position:
        case int():
            return position
        case str() if position == EARLIEST:
            return remote.ask(lambda q: q.log_start())
        case str():
            assert position == LATEST
            return remote.ask(lambda q: q.log_end())


def check_kept(remote: Remote, start: int, *, fail: bool) -> int:
    """The offset to start reading at; raises ``OffsetsGone`` if ``start`` was removed."""
    # Offsets have gaps: a log that starts above ``start`` has not necessarily lost entries.
    trimmed: int = remote.ask(lambda q: q.log_trimmed())
    first: int = remote.ask(lambda q: q.log_start())
    if start >= min(trimmed, first):
        return start
    gone = OffsetsGone(
        f"Reading starts at offset {start}, but retention has removed entries up to "
        f"{trimmed - 1}; the log begins at {first}.",
        field="startingOffsets",
    )
    if fail:
        raise gone
    _log.warning("%s Reading continues from there.", gone.detail)
    return first


def cut(remote: Remote, start: int, end: int, entries: int) -> list[Range]:
    """One range per task; empty if there is nothing in between."""
    if start >= end:
        return []
    bounds = remote.ask(lambda q: q.log_splits(Offset(start), Offset(end), entries))
    return [Range(low, high) for low, high in pairwise(bounds)]


def usual_entries(remote: Remote, start: int, end: int, *, payload: bool) -> int:
    """How many entries make a partition, estimated from the size of a sample."""
    if start >= end or not payload:
        return _PARTITION_BYTES // _ENTRY_BYTES
    sizes = _sizes(remote, start) + _sizes(remote, (start + end) // 2)
    mean = sum(sizes) // max(1, len(sizes)) + _ENTRY_BYTES
    return max(_LEAST_ENTRIES, _PARTITION_BYTES // mean)


def _sizes(remote: Remote, start: int) -> list[int]:
    page = remote.ask(lambda q: q.read_log(start, limit=_SAMPLE))
    return [entry.message.size for entry in page.entries]
