"""Where a micro-batch of the log ends: limits of entries and of bytes, and waiting for enough."""

from __future__ import annotations

from typing import Final

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from penstock.broker.bulk import READ_BATCH
from penstock.model.clock import Clock
from penstock.model.message import Offset
from penstock.pipeline.format.ranges import offset_after
from penstock.pipeline.format.read_options import SourceOptions
from penstock.pipeline.format.streams import from_offset
from penstock.pipeline.remote import Remote

__all__ = ["TriggerDelay", "bounded", "default_limit"]

#: How many micro-batches ahead the log is split to find the end of the next one. The server limits
#: the number of pieces; above that limit they would be larger.
_PIECES: Final = 10_000


class TriggerDelay:
    """Lets a micro-batch wait until there are ``minOffsetsPerTrigger`` entries, for a while."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        #: As in Kafka's source, the first micro-batch does not wait.
        self._triggered_at: int | None = None

    def waits(self, remote: Remote, start: int, end: int) -> bool:
        """Whether the entries between the offsets are too few yet; otherwise this triggers."""
        least, now = self._options.least_per_trigger, self._clock.now()
        if least is None or start >= end:
            return False
        last, delay_ms = self._triggered_at, self._options.trigger_delay_ms
        if last is not None and now - last < delay_ms and not _has(remote, start, end, least):
            return True
        self._triggered_at = now
        return False


def default_limit(options: SourceOptions) -> ReadLimit:
    """The limit from the options; one of bytes beside one of entries is in the options alone."""
    if options.per_trigger is not None:
        return ReadMaxRows(options.per_trigger)
    if options.bytes_per_trigger is not None:
        return ReadMaxBytes(options.bytes_per_trigger)
    return ReadAllAvailable()


def bounded(remote: Remote, start: int, end: int, limit: ReadLimit, options: SourceOptions) -> int:
    """The end of a micro-batch between two offsets under the limits."""
    match limit:
        case ReadMaxRows(max_rows=most):
            end = _after(remote, start, end, most)
        case ReadMinRows(min_rows=least):
            return end if _has(remote, start, end, least) else start
        case ReadAllAvailable():
            return end
        case _:
            pass
    if options.bytes_per_trigger is None:
        return end
    return _after_bytes(remote, start, end, options)


def _has(remote: Remote, start: int, end: int, least: int) -> bool:
    """Whether there are at least so many entries between the offsets."""
    if end - start < least:
        return False
    return offset_after(remote, start, end, least - 1) < end


def _after(remote: Remote, start: int, end: int, entries: int) -> int:
    """The offset after ``entries`` entries, or ``end``."""
    near = min(end, start + entries * _PIECES)
    bound: int = remote.ask(lambda q: q.log_splits(Offset(start), Offset(near), entries))[1]
    if bound - start <= entries or entries > READ_BATCH:
        return bound
    # A piece can be larger: stores with one row per commit only split between commits.
    page = remote.ask(lambda q: q.read_log(start, limit=entries))
    return min(near, page.next_offset) if page.entries else bound


def _after_bytes(remote: Remote, start: int, end: int, options: SourceOptions) -> int:
    """The offset after the last entry whose payload still fits; at least one entry is read.

    It reads the metadata of the micro-batch, which takes a fraction of reading its payloads.
    """
    remaining, is_first = options.bytes_per_trigger or 0, True
    query = (("payloads", False), ("where", options.where), ("compression", options.compression))
    for batch in from_offset(remote, "/v1/log", query, start, end):
        offsets, sizes = batch.column("offset").to_pylist(), batch.column("size").to_pylist()
        for offset, size in zip(offsets, sizes, strict=True):
            remaining -= size
            if remaining < 0 and not is_first:
                return int(offset)
            is_first = False
    return end
