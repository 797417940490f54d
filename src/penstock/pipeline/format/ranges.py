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
from penstock.model.identity import StoreIdentity, check_store
from penstock.model.message import Offset
from penstock.pipeline.format.options import EARLIEST, LATEST, Position
from penstock.pipeline.remote import Remote

__all__ = ["PLANNING", "Range", "check_kept", "check_range", "cut", "locate", "usual_entries"]

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
    """The entries from an offset to below another, of the store it was planned on."""

    def __init__(
        self,
        start: int,
        end: int,
        store: StoreIdentity | None = None,
        trimmed: int | None = None,
    ) -> None:
        self.start = start
        self.end = end
        self.store = store
        self.trimmed = trimmed
        """``log_trimmed`` when it was planned."""


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


def check_kept(remote: Remote, start: int, *, fail: bool, known: int | None = None) -> int:
    """The offset at which reading from ``start`` can begin; ``OffsetsGone`` if entries are gone.

    ``known`` is ``log_trimmed`` when the reader recorded ``start``. Retention also removes entries
    above older ones that are still referenced, for example by a failed delivery. So the log may
    begin below ``start`` and lack entries above it. Without ``known``, such entries are assumed to
    have been missing at that time.
    """
    # Not every offset has an entry: a log that begins above ``start`` need not have lost any.
    trimmed: int = remote.ask(lambda q: q.log_trimmed())
    first: int = remote.ask(lambda q: q.log_start())
    if start >= trimmed or (start >= first and (known is None or trimmed <= known)):
        return start
    gone = OffsetsGone(
        f"Reading starts at offset {start}, but retention has removed entries up to "
        f"{trimmed - 1}; the log begins at {first}.",
        field="startingOffsets",
    )
    if fail:
        raise gone
    _log.warning("%s Reading continues there.", gone.detail)
    return max(start, first)


def check_range(remote: Remote, part: Range) -> None:
    """Raise ``OtherStore`` if the server has another store than the range was planned on (A1).

    Call it after the entries were read: a server that is restarted on another store between
    planning and reading has other entries at the same offsets.
    """
    if part.store is not None:
        what = f"The range of offsets {part.start} to {part.end}"
        check_store(remote.ask(lambda q: q.identity()), part.store, what)


def cut(remote: Remote, start: int, end: int, entries: int, store: StoreIdentity) -> list[Range]:
    """The ranges that one task each reads; none if there is nothing between.

    ``store`` is the identity that the server had before ``start`` and ``end`` were looked up.
    """
    if start >= end:
        return []
    trimmed = int(remote.ask(lambda q: q.log_trimmed()))
    bounds = remote.ask(lambda q: q.log_splits(Offset(start), Offset(end), entries))
    return [Range(low, high, store, trimmed) for low, high in pairwise(bounds)]


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
