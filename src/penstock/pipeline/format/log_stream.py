"""The table ``log`` as a stream: micro-batches of ranges of offsets, each entry once.

A micro-batch ends where the log ended when it was planned, and Spark stores that in its
checkpoint: a repeated read after a failure returns the same entries (L1, L2). The server keeps
no state for the stream, so ``commit`` does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.broker.bulk import READ_BATCH
from penstock.errors import OtherStore
from penstock.model.identity import StoreIdentity, check_position, check_store
from penstock.model.message import Offset
from penstock.pipeline.format.log_reader import read_range
from penstock.pipeline.format.options import EARLIEST, LATEST, SourceOptions
from penstock.pipeline.format.ranges import Range, check_kept, cut, locate, usual_entries
from penstock.pipeline.remote import Remote

__all__ = ["LogStream", "limited", "noted", "resumed"]

_log: Final = logging.getLogger(__name__)

#: Keys of a position in a checkpoint.
_OFFSET: Final = "offset"
_STORE: Final = "store"
_EPOCH: Final = "epoch"
#: The end of the removed entries at that time. Entries removed later, from the offset on, are lost.
_TRIMMED: Final = "trimmed"
#: How many micro-batches ahead the log is split to find the end of the next one. The server limits
#: the number of pieces; above that limit they would be larger.
_PIECES: Final = 10_000


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in a process next to the driver that runs as long as the query; reads in workers."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        options.refuse("endingOffsets", why="is for read; a stream ends with its query")
        self._options = options
        self._schema = schema
        self._remote: Remote | None = None
        #: Where an availableNow query ends.
        self._target: int | None = None

    # -- planning ----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint starts."""
        remote = self._open()
        store, trimmed = remote.ask(lambda q: q.identity()), _trimmed(remote)
        return noted(store, locate(remote, self._options.start), trimmed)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit from ``maxOffsetsPerTrigger``."""
        most = self._options.per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the current end of the log."""
        self._target = locate(self._open(), LATEST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends."""
        remote = self._open()
        store = remote.ask(lambda q: q.identity())
        begin = self._resumed(start, store)
        # Read before the end: entries removed in between are noticed next time.
        trimmed = _trimmed(remote)
        end = locate(remote, LATEST)
        if self._target is not None:
            end = min(end, self._target)
        fail, known = self._options.fail_on_data_loss, start.get(_TRIMMED)
        if end > begin:
            begin = check_kept(remote, begin, fail=fail, known=known)
            # If the target is below the first entry left, the batch is empty and ends there.
            end = max(begin, limited(remote, begin, end, limit))
        if end <= begin == start[_OFFSET]:
            # Return the same position: a different one would start an empty micro-batch.
            return noted(store, begin, known)
        return noted(store, max(begin, end), trimmed)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of the log, for the query's progress report."""
        remote = self._open()
        store, trimmed = remote.ask(lambda q: q.identity()), _trimmed(remote)
        return noted(store, locate(remote, LATEST), trimmed)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of one micro-batch."""
        options, remote = self._options, self._open()
        store = remote.ask(lambda q: q.identity())
        begin, stop = start[_OFFSET], end[_OFFSET]
        if start != end:
            begin = self._resumed(start, store)
            # The end may belong to a store that the server no longer has, and cannot be read.
            stop = self._resumed(end, store)
        if start[_OFFSET] > end[_OFFSET]:
            # The position was above the log's end when the batch was planned, so the batch began
            # at the start of the log. The log may have grown past the position since.
            begin = locate(remote, EARLIEST)
        if begin >= stop:
            return []
        fail, known = options.fail_on_data_loss, start.get(_TRIMMED)
        begin = check_kept(remote, begin, fail=fail, known=known)
        entries = options.per_partition
        if entries is None:
            entries = usual_entries(remote, begin, stop, payload=options.payload)
        return cut(remote, begin, stop, entries, store)

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
        check_position(offset, locate(remote, LATEST), "The checkpoint of the stream")
    except OtherStore as error:
        if fail:
            raise
        _log.warning("%s Reading restarts at the beginning of the log.", error.detail)
        return locate(remote, EARLIEST)
    return offset


def limited(remote: Remote, start: int, end: int, limit: ReadLimit) -> int:
    """The end of a micro-batch between two offsets under a limit of entries."""
    match limit:
        case ReadMaxRows(max_rows=most):
            return _after(remote, start, end, most)
        case ReadMinRows(min_rows=least):
            pieces = remote.ask(lambda q: q.log_splits(Offset(start), Offset(end), least))
            return end if len(pieces) > 2 else start
        case _:
            return end


def _after(remote: Remote, start: int, end: int, entries: int) -> int:
    """The offset after ``entries`` entries, or ``end``."""
    near = min(end, start + entries * _PIECES)
    bound: int = remote.ask(lambda q: q.log_splits(Offset(start), Offset(near), entries))[1]
    if bound - start <= entries or entries > READ_BATCH:
        return bound
    # A piece can be larger: stores with one row per commit only split between commits.
    page = remote.ask(lambda q: q.read_log(start, limit=entries))
    return min(near, page.next_offset) if page.entries else bound
