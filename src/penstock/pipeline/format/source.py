"""``format("penstock")``: selects the reader or writer for the options.

Errors in the options are raised when a DataFrame is loaded, errors of the server when it is
planned; Spark shows them with their advice.
"""

from __future__ import annotations

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
from penstock.pipeline.format.log_reader import LogReader
from penstock.pipeline.format.log_stream import LogStream
from penstock.pipeline.format.options import Given, SourceOptions, is_consumer, source_options
from penstock.pipeline.format.schemas import check_schema, spark_schema, table_schema
from penstock.pipeline.format.state_reader import DeliveriesReader, HistoryReader

__all__ = ["PenstockSource"]


class PenstockSource(DataSource):
    """Penstock for Spark: four tables, a stream of the log, a consumer, two sinks."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns of the table; a consumed queue has those of the log and two more."""
        given = Given(self.options)
        if is_consumer(given):
            return spark_schema(consumer_schema(payload=given.truth("payload", True)))
        options = source_options(self.options)
        return spark_schema(table_schema(options.table, payload=options.payload))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A table in batch mode."""
        if is_consumer(Given(self.options)):
            raise BadInput(
                "A queue is consumed with readStream; to browse it, use table=deliveries.",
                field="queue",
            )
        options = source_options(self.options)
        columns = check_schema(schema, options)
        match options.table:
            case "log":
                return LogReader(options, columns)
            case "history":
                return HistoryReader(options, columns)
            case _:
                return DeliveriesReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The log, or a queue to consume."""
        if is_consumer(Given(self.options)):
            from penstock.pipeline.format.consumer import queue_stream  # noqa: PLC0415  (some need it)

            return queue_stream(self.options)
        options = _streamed(source_options(self.options))
        return LogStream(options, check_schema(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publishes rows as messages."""
        from penstock.pipeline.format.sink import batch_writer  # noqa: PLC0415  (readers have none)

        return batch_writer(self.options, schema, overwrite)

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
