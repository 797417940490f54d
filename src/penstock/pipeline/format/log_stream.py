"""The table ``log`` as a stream: micro-batches of ranges of offsets, each entry once.

A micro-batch ends where the log ended when it was planned, and Spark stores that in its
checkpoint: a repeated read after a failure returns the same entries (L1, L2). Spark does not store
where the first micro-batch began, so each end says where its micro-batch began too. The server
keeps no state for the stream, so ``commit`` does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from penstock.errors import OtherStore
from penstock.model.clock import Clock, SystemClock
from penstock.model.identity import StoreIdentity, check_position, check_store
from penstock.pipeline.format.error_lines import one_line
from penstock.pipeline.format.lag import measure
from penstock.pipeline.format.log_reader import read_range
from penstock.pipeline.format.positions import EARLIEST, LATEST, lower_bounds
from penstock.pipeline.format.ranges import Limits, Range, check_kept, cut
from penstock.pipeline.format.read_options import SourceOptions, check_stream
from penstock.pipeline.format.triggers import TriggerDelay, bounded, default_limit
from penstock.pipeline.remote import Remote

__all__ = ["LogStream", "noted", "resumed"]

_log: Final = logging.getLogger(__name__)

#: Keys of a position in a checkpoint.
_OFFSET: Final = "offset"
_STORE: Final = "store"
_EPOCH: Final = "epoch"
#: The end of the removed entries at that time. Entries removed later, from the offset on, are lost.
_TRIMMED: Final = "trimmed"
#: Where the micro-batch before the position began.
_BEGAN: Final = "began"
#: Where single topics begin, until the stream is past all of them.
_TOPICS: Final = "topics"


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in a process next to the driver that runs as long as the query; reads in workers."""

    def __init__(
        self, options: SourceOptions, schema: pa.Schema, clock: Clock | None = None
    ) -> None:
        check_stream(options)
        self._options = options
        self._clock = clock or SystemClock()
        self._delay = TriggerDelay(options, self._clock)
        #: Where the last micro-batch ends.
        self._reached: int | None = None
        self._schema = schema
        self._remote: Remote | None = None
        #: Where an availableNow query ends.
        self._target: int | None = None

    # -- planning ----------------------------------------------------------------------

    @one_line
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint starts."""
        remote = self._open()
        store, trimmed = remote.ask(lambda q: q.identity()), _trimmed(remote)
        bounds = lower_bounds(remote, self._options.start)
        topics = {} if bounds.topics is None else {_TOPICS: dict(bounds.topics)}
        return {**noted(store, bounds.offset, trimmed), **topics}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit from ``maxOffsetsPerTrigger`` or ``maxBytesPerTrigger``."""
        return default_limit(self._options)

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the current end of the log."""
        self._target = _locate(self._open(), LATEST)

    @one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends."""
        end = self._next(start, limit)
        self._reached = end[_OFFSET]
        return end

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        remote = self._open()
        store = remote.ask(lambda q: q.identity())
        begin = self._resumed(start, store)
        # Read before the end: entries removed in between are noticed next time.
        trimmed = _trimmed(remote)
        end = _locate(remote, LATEST)
        if self._target is not None:
            # A query that ends does not wait for more entries.
            end = min(end, self._target)
        elif self._delay.waits(remote, begin, end):
            return start
        fail, known = self._options.fail_on_data_loss, start.get(_TRIMMED)
        if end > begin:
            begin = check_kept(remote, begin, fail=fail, known=known)
            # If the target is below the first entry left, the batch is empty and ends there.
            end = max(begin, bounded(remote, begin, end, limit, self._options))
        if end <= begin == start[_OFFSET]:
            # Return the same position: a different one would start an empty micro-batch.
            same = noted(store, begin, known)
            return start if same.items() <= start.items() else same
        topics = _topics_above(start, begin)
        return {**noted(store, max(begin, end), trimmed), _BEGAN: begin, **topics}

    @one_line
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of the log and the lag behind it, for the query's progress report."""
        remote = self._open()
        store, trimmed = remote.ask(lambda q: q.identity()), _trimmed(remote)
        end = _locate(remote, LATEST)
        reached = end if self._reached is None else self._reached
        lag = measure(remote, reached, end, self._clock)
        return {**noted(store, end, trimmed), **lag.to_report()}

    @one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of one micro-batch."""
        options, remote = self._options, self._open()
        store = remote.ask(lambda q: q.identity())
        known = start.get(_TRIMMED)
        if _BEGAN in end and end != start:
            # After a restart, ``start`` of the first micro-batch is a new initial offset.
            start, known = {**start, _OFFSET: end[_BEGAN]}, end.get(_TRIMMED)
        begin, stop = start[_OFFSET], end[_OFFSET]
        if start != end:
            begin = self._resumed(start, store)
            # The end may belong to a store that the server no longer has, and cannot be read.
            stop = self._resumed(end, store)
        if start[_OFFSET] > end[_OFFSET]:
            # The position was above the log's end when the batch was planned, so the batch began
            # at the start of the log. The log may have grown past the position since.
            begin = _locate(remote, EARLIEST)
        if begin >= stop:
            return []
        begin = check_kept(remote, begin, fail=options.fail_on_data_loss, known=known)
        return cut(remote, begin, stop, options, store, _limits(end, stop))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the server does not track the position of a stream."""

    def stop(self) -> None:
        """Close the connection."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def _resumed(self, position: dict[str, Any], store: StoreIdentity) -> int:
        return resumed(self._open(), position, store, fail=self._options.fail_on_data_loss)

    def _open(self) -> Remote:
        """The planner's connection. Spark copies the reader for workers before this is opened."""
        if self._remote is None:
            self._remote = self._options.server.open()
        return self._remote

    # -- reading -----------------------------------------------------------------------

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one range, in order."""
        assert isinstance(partition, Range)
        return read_range(partition, self._options, self._schema, self._options.where)


def noted(store: StoreIdentity, offset: int, trimmed: int | None = None) -> dict[str, Any]:
    """A position as stored in Spark's checkpoint: offset, store, and end of the removed entries."""
    position: dict[str, Any] = {_OFFSET: offset, _STORE: store.store, _EPOCH: store.epoch}
    return position if trimmed is None else {**position, _TRIMMED: trimmed}


def _trimmed(remote: Remote) -> int:
    return int(remote.ask(lambda q: q.log_trimmed()))


def resumed(remote: Remote, position: dict[str, Any], store: StoreIdentity, *, fail: bool) -> int:
    """The offset of a position from a checkpoint, if the log is still the same.

    Raises ``OtherStore`` if it is not, or if the log ends below it. With ``fail`` false, reading
    restarts at the beginning of the log. Checkpoints of older versions have no identity.
    """
    offset: int = position[_OFFSET]
    known = StoreIdentity(position.get(_STORE, store.store), position.get(_EPOCH, store.epoch))
    what = f"The checkpoint of the stream, at offset {offset},"
    try:
        check_store(store, known, what)
        check_position(offset, _locate(remote, LATEST), "The checkpoint of the stream")
    except OtherStore as error:
        if fail:
            raise
        _log.warning("%s Reading restarts at the beginning of the log.", error.detail)
        return _locate(remote, EARLIEST)
    return offset


def _locate(remote: Remote, word: str) -> int:
    return lower_bounds(remote, word).offset


def _topics_above(start: dict[str, Any], begin: int) -> dict[str, Any]:
    """Where single topics begin, if one of them begins above ``begin``."""
    topics = start.get(_TOPICS) or {}
    return {_TOPICS: topics} if max(topics.values(), default=0) > begin else {}


def _limits(end: dict[str, Any], stop: int) -> Limits | None:
    topics = end.get(_TOPICS)
    return None if topics is None else {topic: (low, stop) for topic, low in topics.items()}
