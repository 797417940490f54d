"""Writes a stream to a Delta table, or to anything with transactions, each micro-batch once.

A micro-batch and the number of it are one transaction of the table: ``txnAppId`` is the id of the
query, which its checkpoint keeps, and ``txnVersion`` is the number of the batch. A batch that the
query runs again after a kill is in the table already, so it is not written. Together with a source
whose batches are the same after a restart, as Penstock's are, every row is in the table once.

The rows of a micro-batch are written by the driver, through the ``deltalake`` library. A function
of the caller can take its place: it gets the id of the query and the number of the micro-batch,
and commits them with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from penstock.errors import BadInput, PipelineError
from penstock.extras import importing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Table", "WriteBatch", "exactly_once", "write_batch"]

#: The local property with which Spark identifies the query.
_QUERY: Final = "sql.streaming.queryId"


#: Writes the rows of a micro-batch: ``write(frame, query, number)``. It must commit the number with
#: the rows, and do nothing if this or a later number of the query is there.
WriteBatch: TypeAlias = "Callable[[DataFrame, str, int], object]"


class Table(Struct, frozen=True, kw_only=True):
    """The target of a stream."""

    path: str
    """A folder, or a URI such as ``s3://bucket/orders``."""
    merge_on: tuple[str, ...] = ()
    """Columns that identify a row, which replaces the row that the table has; empty: rows are
    appended."""
    partition_by: tuple[str, ...] = ()
    """The partition columns of a table that does not exist yet."""
    storage_options: Mapping[str, str] = {}
    """Credentials and settings of the object store, as ``deltalake`` takes them."""


def exactly_once(
    stream: DataFrame,
    table: str | Table | WriteBatch,
    *,
    merge_on: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """A writer of the stream that puts every row into a Delta table once.

    The caller sets ``checkpointLocation`` and a trigger, and starts it:
    ``exactly_once(orders, "/lake/orders").option("checkpointLocation", folder).start()``.
    ``table`` may also be a function that writes a micro-batch.
    """
    if not stream.isStreaming:
        raise BadInput("This is not a stream: use readStream.", field="stream")
    if callable(table):
        return stream.writeStream.foreachBatch(partial(_call, table))
    if isinstance(table, str):
        table = Table(
            path=table,
            merge_on=tuple(merge_on),
            partition_by=tuple(partition_by),
            storage_options=storage_options or {},
        )
    if not table.path:
        raise BadInput("The path of the table is empty.", field="table")
    missing = sorted({*table.merge_on, *table.partition_by} - set(stream.columns))
    if missing:
        raise BadInput(
            f"The stream has no column {missing[0]!r}; it has {', '.join(stream.columns)}.",
            field="merge_on" if missing[0] in table.merge_on else "partition_by",
        )
    with importing("delta", "deltalake"):
        import deltalake  # noqa: F401, PLC0415  (to fail before the stream starts)
    return stream.writeStream.foreachBatch(partial(_write, table))


def _write(table: Table, frame: DataFrame, number: int) -> None:
    write_batch(table, frame, _query(frame), number)


def _call(write: WriteBatch, frame: DataFrame, number: int) -> None:
    write(frame, _query(frame), number)


def _query(frame: DataFrame) -> str:
    """The id of the query, which its checkpoint keeps."""
    query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY)
    if not query:
        raise PipelineError("Spark did not provide the id of the query.")
    return str(query)


def write_batch(table: Table, frame: DataFrame, query: str, number: int) -> bool:
    """Write a micro-batch of a query; returns False if the table has it already."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    options = dict(table.storage_options) or None
    try:
        delta = None
        if DeltaTable.is_deltatable(table.path, options):
            delta = DeltaTable(table.path, storage_options=options)
            last = delta.transaction_version(query)
            if last is not None and last >= number:
                return False
        rows: Any = frame.toArrow()
        once = CommitProperties(app_transactions=[Transaction(query, number)])
        if delta is not None and table.merge_on:
            on = " AND ".join(f'target."{name}" = source."{name}"' for name in table.merge_on)
            merger = delta.merge(
                rows, on, source_alias="source", target_alias="target", commit_properties=once
            )
            merger.when_matched_update_all().when_not_matched_insert_all().execute()
        else:
            write_deltalake(
                table.path,
                rows,
                mode="append",
                partition_by=list(table.partition_by) or None,
                storage_options=options,
                commit_properties=once,
            )
    except DeltaError as error:
        raise PipelineError(
            f"Micro-batch {number} cannot be written to {table.path}: {error}"
        ) from error
    return True
