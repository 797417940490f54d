"""Publishes a DataFrame through the sink, and returns how many rows were new.

Spark's own ``write`` runs the same tasks, but does not return their results. A job that is
repeated has to report what it added, and where the rows are that it could not publish.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct
from pyspark import StorageLevel

from penstock.pipeline.format.sink import BatchWriter, Written, batch_writer
from penstock.pipeline.remote import Server
from penstock.pipeline.tables import server_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["REJECTS", "Published", "Reject", "Split", "publish", "writer_of"]

#: A function of a batch: its messages, and the rows that are none.
Split = Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]]

#: A row that cannot be published: its file, its text, and why.
REJECTS: Final = pa.schema([("file", pa.string()), ("text", pa.binary()), ("error", pa.string())])
_RESULTS: Final = pa.schema([*REJECTS, ("written", pa.binary())])
_RESULTS_OF_SPARK: Final = "file string, text binary, error string, written binary"


class Reject(Struct, frozen=True):
    """A row that was not published."""

    file: str
    text: bytes
    error: str


class Published(Struct, frozen=True):
    """The result of publishing a DataFrame."""

    new: int
    """Rows that this run published."""
    found: int
    """Rows that an earlier run, or an earlier attempt of this one, had published."""
    rejected: int


def writer_of(
    server: Server, schema: StructType, write_id: str, *, topic: str | None, grows: bool = False
) -> BatchWriter:
    """The sink of a write that may be repeated under its id, in the same partitions."""
    options = {
        **server_options(server),
        "writeId": write_id,
        "samePartitions": "true",
        "grows": str(grows).lower(),
    }
    if topic is not None:
        options["topic"] = topic
    return batch_writer(options, schema, False)


def publish(
    rows: DataFrame,
    writer: BatchWriter,
    split: Split | None = None,
    reject: Callable[[Reject], object] = lambda _: None,
) -> Published:
    """Publish the rows, pass those that are no messages to ``reject``, and finish the write."""
    results = rows.mapInArrow(_task(writer, split), _RESULTS_OF_SPARK)
    # Kept on disk: the tasks run in parallel once, and their rejects are then read one by one.
    results = results.persist(StorageLevel.DISK_ONLY)
    try:
        found = results.where("written IS NOT NULL").select("written").collect()
        # Pickled by the tasks of this job.
        written: list[Written] = [pickle.loads(row["written"]) for row in found]  # noqa: S301
        rejected = 0
        for row in results.where("error IS NOT NULL").toLocalIterator():
            reject(Reject(row["file"] or "", bytes(row["text"] or b""), row["error"]))
            rejected += 1
    finally:
        results.unpersist()
    writer.commit(written)
    return Published(
        sum(one.counts.published for one in written),
        sum(one.counts.found for one in written),
        rejected,
    )


def _task(
    writer: BatchWriter, split: Split | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that runs in Spark's workers."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rejects: list[pa.RecordBatch] = []

        def messages() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if split is None:
                    yield batch
                    continue
                accepted, rejected = split(batch)
                if rejected.num_rows:
                    rejects.append(rejected)
                yield accepted

        written = writer.write(messages())
        for rejected in rejects:
            nothing = pa.nulls(rejected.num_rows, pa.binary())
            yield pa.RecordBatch.from_arrays([*rejected.columns, nothing], schema=_RESULTS)
        row: list[list[Any]] = [[None], [None], [None], [pickle.dumps(written)]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(cell, field.type) for cell, field in zip(row, _RESULTS, strict=True)],
            schema=_RESULTS,
        )

    return task
