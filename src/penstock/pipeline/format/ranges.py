"""Ranges of offsets: which part of the log to read, in how many pieces.

The end of a read is fixed when it is planned, and nothing appears below it afterwards (L2). If
retention has removed part of the range, ``failOnDataLoss`` decides whether the read fails before
the job starts or continues without that part.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, TypeAlias

from pyspark.sql.datasource import InputPartition

from penstock.broker.bulk import READ_BATCH
from penstock.client import ClientOptions
from penstock.errors import OffsetsGone
from penstock.model.identity import StoreIdentity, check_store
from penstock.model.message import Offset
from penstock.pipeline.format.positions import Bounds
from penstock.pipeline.format.read_options import SourceOptions
from penstock.pipeline.remote import Remote

__all__ = [
    "PLANNING",
    "Range",
    "check_kept",
    "check_range",
    "cut",
    "entry_sizes",
    "limits_of",
    "offset_after",
]

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


#: Topics with the first offset to read and the end; None: the whole range for all topics.
Limits: TypeAlias = Mapping[str, tuple[int, int]]


class Range(InputPartition):
    """The entries from an offset to below another, of the store it was planned on."""

    def __init__(
        self,
        start: int,
        end: int,
        store: StoreIdentity | None = None,
        trimmed: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.start = start
        self.end = end
        self.store = store
        self.trimmed = trimmed
        """``log_trimmed`` when it was planned."""
        self.limits = limits
        """Where single topics begin and end."""


def limits_of(start: Bounds, end: Bounds) -> Limits | None:
    """The bounds of single topics; None if all topics are read between the same offsets."""
    topics = {**(start.topics or {}), **(end.topics or {})}
    if not topics:
        return None
    lows, highs = start.topics or {}, end.topics or {}
    return {
        topic: (lows.get(topic, start.offset), highs.get(topic, end.offset)) for topic in topics
    }


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


def cut(
    remote: Remote,
    start: int,
    end: int,
    options: SourceOptions,
    store: StoreIdentity,
    limits: Limits | None = None,
) -> list[Range]:
    """The ranges that one task each reads; none if there is nothing between.

    ``store`` is the identity that the server had before ``start`` and ``end`` were looked up.
    """
    if start >= end:
        return []
    trimmed = int(remote.ask(lambda q: q.log_trimmed()))
    bounds = _bounds(remote, start, end, options)
    return [Range(low, high, store, trimmed, limits) for low, high in pairwise(bounds)]


def _bounds(remote: Remote, start: int, end: int, options: SourceOptions) -> list[int]:
    entries = options.per_partition
    if entries is None:
        entries = _usual_entries(remote, start, end, payload=options.payload)
    most = options.most_per_partition
    if most is not None:
        entries = min(entries, most)
    least = options.least_partitions
    if least is not None:
        entries = min(entries, max(1, (end - start) // least))
    bounds = _splits(remote, start, end, entries)
    # The offsets of a store may have gaps, so a piece may have fewer entries than offsets.
    while least is not None and len(bounds) <= least and entries > 1:
        entries = max(1, entries // 2)
        bounds = _splits(remote, start, end, entries)
    if most is None:
        return bounds
    exact = [start]
    for bound in bounds[1:]:
        while bound - exact[-1] > most:
            exact.append(offset_after(remote, exact[-1], bound, most))
        if exact[-1] < bound:
            exact.append(bound)
    return exact


def _splits(remote: Remote, start: int, end: int, entries: int) -> list[int]:
    found = remote.ask(lambda q: q.log_splits(Offset(start), Offset(end), entries))
    return [int(bound) for bound in found]


def offset_after(remote: Remote, start: int, end: int, entries: int) -> int:
    """The offset after so many entries, counted one by one, or ``end``."""
    position, remaining = start, entries
    while position < end and remaining:
        limit = min(READ_BATCH, remaining)
        page = remote.ask(lambda q, start=position, limit=limit: q.read_log(start, limit=limit))  # type: ignore[misc]
        if not page.entries or page.next_offset <= position:
            return end
        remaining -= len(page.entries)
        position = int(page.next_offset)
    return min(end, position)


def _usual_entries(remote: Remote, start: int, end: int, *, payload: bool) -> int:
    """How many entries make a partition, estimated from the size of a sample."""
    if start >= end or not payload:
        return _PARTITION_BYTES // _ENTRY_BYTES
    sizes = entry_sizes(remote, start) + entry_sizes(remote, (start + end) // 2)
    mean = sum(sizes) // max(1, len(sizes)) + _ENTRY_BYTES
    return max(_LEAST_ENTRIES, _PARTITION_BYTES // mean)


def entry_sizes(remote: Remote, start: int) -> list[int]:
    """The payload bytes of a sample of entries from an offset on."""
    page = remote.ask(lambda q: q.read_log(start, limit=_SAMPLE))
    return [entry.message.size for entry in page.entries]
