"""The sink: publishes each row of a DataFrame or a stream once.

``chunks`` guarantees that: attempts at the same partition of the same write append to the same
log of chunks. A write is identified by its id. A batch write has a random one, or the option
``writeId``, under which a repeated job publishes nothing twice (``registration``). A micro-batch
is identified by its query and number, which the checkpoint keeps, and is registered in the same
way.

A row is readable as soon as it is published: a write that fails half way leaves the rows it has
published, and the next attempt continues from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.broker.scope import check_text
from penstock.client.options import random_prefix
from penstock.errors import BadInput, PipelineError
from penstock.model.limits import check_name
from penstock.pipeline.format.attempt import Attempt, Counts
from penstock.pipeline.format.error_lines import one_line
from penstock.pipeline.format.options import SERVER_OPTIONS, Given
from penstock.pipeline.format.read_options import READ_OPTIONS
from penstock.pipeline.format.registration import Registration, finish_writes
from penstock.pipeline.format.rows import Columns, check_columns, groups_of
from penstock.pipeline.format.table_options import is_whole_row, written
from penstock.pipeline.remote import Server, check_reachable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "STREAM_OPTIONS",
    "WRITE_OPTIONS",
    "BatchWriter",
    "StreamWriter",
    "Written",
    "batch_writer",
    "stream_writer",
]

_log: Final = logging.getLogger(__name__)

#: Local properties with which Spark identifies a stream to its tasks (``QUERY_ID_KEY`` and
#: ``BATCH_ID_KEY`` in its source). The query's id is in its checkpoint.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
#: A batch id also contains a topic, a partition and a number.
_MAX_WRITE_ID: Final = 200
WRITE_OPTIONS: Final = ("topic", "writeId", "samePartitions", "grows")
#: Options of a stream; the last two are Spark's own, which it passes on.
STREAM_OPTIONS: Final = ("topic", "samePartitions", "checkpointLocation", "queryName")


class Written(WriterCommitMessage):
    """The message of a task to the driver."""

    def __init__(
        self, partition: int, counts: Counts, registration: Registration | None = None
    ) -> None:
        self.partition = partition
        self.counts = counts
        self.registration = registration


class BatchWriter(DataSourceArrowWriter):
    """Publishes a DataFrame."""

    def __init__(
        self,
        server: Server,
        columns: Columns,
        write_id: str,
        registration: Registration | None = None,
    ) -> None:
        self._server = server
        self._columns = columns
        self._write_id = write_id
        self._registration = registration

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a partition; runs in a task."""
        return _write(
            self._server, self._columns, f"w/{self._write_id}", iterator, self._registration
        )

    @one_line
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finish the write and log what was published; the rows are readable already."""
        _say("Write", self._write_id, messages)
        _finish(self._server, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that only some rows are published."""
        _say_half("Write", self._write_id, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes micro-batches."""

    def __init__(self, server: Server, columns: Columns, *, same_partitions: bool = False) -> None:
        self._server = server
        self._columns = columns
        self._same_partitions = same_partitions
        #: The token of this run of the query; tasks get it with the writer.
        self._run = random_prefix()

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a partition of a micro-batch; runs in a task."""
        context = _task()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise PipelineError("Spark did not provide the ids of the query and the micro-batch.")
        registration = Registration(
            f"s/{query}",
            self._run,
            same_partitions=self._same_partitions,
            number=int(batch),
            all_topics=self._columns.has_topics,
        )
        return _write(self._server, self._columns, f"s/{query}/{batch}", iterator, registration)

    @one_line
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what was published and finish the write; the rows are readable already."""
        _say("Micro-batch", batchId, messages)
        _finish(self._server, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that only some rows are published."""
        _say_half("Micro-batch", batchId, messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write.format("penstock")``; checks options and columns (E1)."""
    given, is_insert = _given(options, schema)
    known = (*SERVER_OPTIONS, *WRITE_OPTIONS)
    given.refuse_others((*known, *READ_OPTIONS["log"]) if is_insert else known, "Writing")
    server, columns = _target(given, schema, overwrite)
    write_id = given.text("writeId")
    if write_id is None:
        check_reachable(server)
        # No other run uses this id, so there is nothing to register.
        return BatchWriter(server, columns, random_prefix())
    check_text("writeId", write_id, least=1, most=_MAX_WRITE_ID)
    registration = Registration(
        write_id,
        random_prefix(),
        same_partitions=given.truth("samePartitions", False),
        grows=given.truth("grows", False),
        all_topics=columns.has_topics,
    )
    if registration.grows and not registration.same_partitions:
        raise BadInput("grows requires samePartitions.", field="grows")
    check_reachable(server)
    return BatchWriter(server, columns, write_id, registration)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of ``df.writeStream.format("penstock")``."""
    given, is_insert = _given(options, schema)
    known = (*SERVER_OPTIONS, *STREAM_OPTIONS)
    given.refuse_others((*known, *READ_OPTIONS["log"]) if is_insert else known, "Writing a stream")
    server, columns = _target(given, schema, overwrite)
    return StreamWriter(server, columns, same_partitions=given.truth("samePartitions", False))


def _given(options: Mapping[str, str], schema: StructType) -> tuple[Given, bool]:
    """The options, and whether rows are inserted into a table or a view, which has its own."""
    if not is_whole_row(schema):
        return Given(options), False
    return Given(written(options, schema)), True


def _target(given: Given, schema: StructType, overwrite: bool) -> tuple[Server, Columns]:
    if overwrite:
        raise BadInput("The log only grows: write in append mode.", field="mode")
    if given.choice("table", READ_OPTIONS, "log") != "log":
        raise BadInput("Only the table log takes messages.", field="table")
    topic = given.text("topic") or given.text("subscribe")
    if topic is not None and is_whole_row(schema) and "," in topic:
        topic = None  # The table reads several topics, so rows name theirs.
    if topic is not None:
        check_name(topic, "topic")
    return given.server(), check_columns(schema, topic)


def _write(
    server: Server,
    columns: Columns,
    write_id: str,
    batches: Iterable[pa.RecordBatch],
    registration: Registration | None = None,
) -> Written:
    partition = _task().partitionId()
    with Attempt(server, write_id, partition, registration=registration) as attempt:
        for batch in batches:
            attempt.add(groups_of(batch, columns))
        return Written(partition, attempt.finish(), registration)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("A writer can only publish in a Spark task.")
    return context


def _say(what: str, name: object, messages: Sequence[WriterCommitMessage | None]) -> None:
    counts = _sum(messages)
    _log.info(
        "%s %s: %d rows published, %d had been published before.",
        *(what, name, counts.published, counts.found),
    )
    if counts.strays:
        _log.warning(
            "%s %s: earlier attempts published %d rows that the last ones did not have. A "
            "partition must have the same rows whenever it is computed.",
            *(what, name, counts.strays),
        )


def _say_half(what: str, name: object, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = sum(isinstance(message, Written) for message in messages)
    _log.warning(
        "%s %s failed. %d of %d partitions are published completely, others perhaps in part. Write "
        "it again under the same id: each row is published once.",
        *(what, name, done, len(messages)),
    )


def _finish(server: Server, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Finish a registered write after all of its tasks have ended."""
    tasks = [message for message in messages if isinstance(message, Written)]
    if tasks and tasks[0].registration is not None:
        finish_writes(
            server,
            tasks[0].registration,
            _by_topic(task.counts.topics for task in tasks),
            _by_topic(task.counts.skipped for task in tasks),
        )


def _by_topic(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for counts in counted:
        for topic, rows in counts.items():
            found[topic] = found.get(topic, 0) + rows
    return found


def _sum(messages: Sequence[WriterCommitMessage | None]) -> Counts:
    every = [message.counts for message in messages if isinstance(message, Written)]
    return Counts(
        sum(counts.published for counts in every),
        sum(counts.found for counts in every),
        sum(counts.strays for counts in every),
    )
