"""``format("penstock")``: selects the reader or writer for the options.

Errors in the options are raised when a DataFrame is loaded, errors of the server when it is
planned; Spark shows them with their advice.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import BadInput
from penstock.pipeline.format.claims import consumer_schema
from penstock.pipeline.format.error_lines import one_line
from penstock.pipeline.format.log_reader import LogReader
from penstock.pipeline.format.log_stream import LogStream
from penstock.pipeline.format.options import Given, is_consumer
from penstock.pipeline.format.read_options import SourceOptions, source_options
from penstock.pipeline.format.schemas import check_schema, read_schema, spark_schema
from penstock.pipeline.format.state_reader import DeliveriesReader, HistoryReader
from penstock.pipeline.format.table_options import declared, with_options, written

__all__ = ["PenstockSource"]


class PenstockSource(DataSource):
    """Penstock for Spark: four tables, a stream of the log, a consumer, two sinks."""

    #: Settings of the session; see ``penstock.pipeline.register``.
    session: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        options.update(self.session)

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "penstock"

    @one_line
    def schema(self) -> StructType:
        """The columns of the table; a consumed queue has those of the log and two more."""
        table = declared(self.options)
        given = Given(self.options if table is None else {**table, **self.session})
        if is_consumer(given):
            columns = spark_schema(consumer_schema(payload=given.truth("payload", True)))
        else:
            columns = spark_schema(read_schema(source_options(given.options)))
        return columns if table is None else with_options(columns, table)

    @one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """A table in batch mode."""
        given = Given(written(self.options, schema))
        if is_consumer(given):
            raise BadInput(
                "A queue is consumed with readStream; to browse it, use table=deliveries.",
                field="queue",
            )
        options = source_options(given.options)
        columns = check_schema(schema, options)
        match options.table:
            case "log":
                return LogReader(options, columns)
            case "history":
                return HistoryReader(options, columns)
            case _:
                return DeliveriesReader(options, columns)

    # Not one_line: Spark then shows a NameError of its own, and this error in its traceback.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The log, or a queue to consume."""
        given = Given(written(self.options, schema))
        if is_consumer(given):
            from penstock.pipeline.format.consumer import queue_stream  # noqa: PLC0415  (some need it)

            return queue_stream(given.options)
        options = _streamed(source_options(given.options))
        return LogStream(options, check_schema(schema, options))

    @one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publishes rows as messages."""
        from penstock.pipeline.format.sink import batch_writer  # noqa: PLC0415  (readers have none)

        return batch_writer(self.options, schema, overwrite)

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Publishes rows of micro-batches as messages, each once."""
        from penstock.pipeline.format.sink import stream_writer  # noqa: PLC0415  (readers have none)

        return stream_writer(self.options, schema, overwrite)


def _streamed(options: SourceOptions) -> SourceOptions:
    if options.table != "log":
        raise BadInput(
            f"The table {options.table} is for read. readStream supports the log, or with queue=… "
            "and no table, a queue to consume.",
            field="table",
        )
    return options
