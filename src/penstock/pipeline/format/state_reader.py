"""The tables ``deliveries``, ``failed`` and ``history``: the states of messages and their history.

Deliveries are read by queue and state, one task each. They change while they are read, so the
table is exact only if the store is idle; otherwise each part is as of when its task ran.
Histories are read by ranges of offsets, like the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.model.delivery import QueueStats
from penstock.model.states import State
from penstock.pipeline.format.error_lines import one_line
from penstock.pipeline.format.log_reader import plan_ranges
from penstock.pipeline.format.ranges import PLANNING, Range
from penstock.pipeline.format.read_options import SourceOptions
from penstock.pipeline.format.schemas import to_table
from penstock.pipeline.format.streams import Query, ahead, from_offset, walk_cursor
from penstock.pipeline.remote import Remote

__all__ = ["DeliveriesReader", "HistoryReader"]


class Shelf(InputPartition):
    """The deliveries of one queue in one state."""

    def __init__(self, queue: str, state: str) -> None:
        self.queue = queue
        self.state = state


class DeliveriesReader(DataSourceReader):
    """The deliveries of one queue or of all, in any state or only failed."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    @one_line
    def partitions(self) -> Sequence[InputPartition]:
        """One task per queue and state with deliveries."""
        states = (State.FAILED,) if self._options.table == "failed" else tuple(State)
        with self._options.server.open(PLANNING) as remote:
            return [
                Shelf(queue, state.value)
                for queue, stats in _queues(remote, self._options.queue)
                for state in states
                if getattr(stats, state.value)
            ]

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The deliveries of one queue in one state, in the queue's order."""
        if not isinstance(partition, Shelf):
            return iter(())
        options, schema = self._options, self._schema
        queue = partition.queue
        query: Query = (
            ("state", partition.state),
            ("payloads", options.payload),
            ("where", options.where),
            ("compression", options.compression),
        )

        def batches() -> Iterator[pa.RecordBatch]:
            with options.server.open() as remote:
                for batch in walk_cursor(remote, f"/v1/queues/{queue}/deliveries", query):
                    names = pa.repeat(pa.scalar(queue), batch.num_rows)
                    yield to_table(batch.append_column("queue", names), schema)

        return ahead(batches)


def _queues(remote: Remote, queue: str | None) -> Iterator[tuple[str, QueueStats]]:
    """Names and statistics; raises if the named queue does not exist."""
    names = [queue] if queue is not None else [one.name for one in remote.ask(lambda q: q.queues())]
    for name in names:
        yield name, _stats(remote, name)


def _stats(remote: Remote, queue: str) -> QueueStats:
    return remote.ask(lambda q: q.stats(queue))


class HistoryReader(DataSourceReader):
    """Every transition of the messages in a range of the log, in one queue or in all."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    @one_line
    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of offsets, like those of the log."""
        queue = self._options.queue
        with self._options.server.open(PLANNING) as remote:
            if queue is not None:
                remote.ask(lambda q: q.queue(queue))
            return plan_ranges(remote, self._options)

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The transitions of the messages of one range."""
        if not isinstance(partition, Range):
            return iter(())
        options, schema, part = self._options, self._schema, partition
        path = "/v1/history" if options.queue is None else f"/v1/queues/{options.queue}/history"
        query: Query = (("compression", options.compression),)

        def batches() -> Iterator[pa.RecordBatch]:
            with options.server.open() as remote:
                for batch in from_offset(remote, path, query, part.start, part.end):
                    yield to_table(batch, schema)

        return ahead(batches)
