"""Tables as a Spark job gets them, without Spark: planned and read as Spark would, one by one."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.pipeline.format.log_stream import LogStream
from penstock.pipeline.format.source import PenstockSource
from tests.pipeline.hosted import Hosted


def source(server: Hosted, **options: Any) -> PenstockSource:
    return PenstockSource(CaseInsensitiveDict(server.options(**options)))


def reader(server: Hosted, **options: Any) -> DataSourceReader:
    given = source(server, **options)
    return given.reader(given.schema())


def stream(server: Hosted, **options: Any) -> LogStream:
    given = source(server, **options)
    found = given.streamReader(given.schema())
    assert isinstance(found, LogStream)
    return found


def pieces(server: Hosted, **options: Any) -> list[pa.Table]:
    """The rows of every partition."""
    given = source(server, **options)
    schema = to_arrow_schema(given.schema(), timezone="UTC")
    planned = given.reader(given.schema())
    partitions = planned.partitions()
    # The reader and its partitions travel to workers.
    worker = pickle.loads(pickle.dumps(planned))
    return [_table(worker.read(_travelled(one)), schema) for one in partitions]


def read(server: Hosted, **options: Any) -> list[dict[str, Any]]:
    """All rows, in order of partitions."""
    return [row for piece in pieces(server, **options) for row in piece.to_pylist()]


def _travelled(partition: InputPartition) -> InputPartition:
    travelled: InputPartition = pickle.loads(pickle.dumps(partition))
    return travelled


def _table(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    found = list(batches)
    for batch in found:
        # Spark takes no other.
        assert batch.schema.equals(schema)
        batch.validate(full=True)
    return pa.Table.from_batches(found, schema)
