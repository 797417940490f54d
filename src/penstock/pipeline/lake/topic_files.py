"""Writes the data files of topic tables, in Spark's Python processes.

The rows of a file of the lake are sorted by topic, so a task has few files open at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark import TaskContext

from penstock.pipeline.lake.data_files import explaining, split
from penstock.pipeline.lake.parquet_store import ParquetStore
from penstock.pipeline.lake.payload_columns import payload_columns
from penstock.pipeline.lake.topic_delta import TopicFile
from penstock.pipeline.lake.topic_schema import MESSAGE_FIELDS, RESERVED

__all__ = ["FILES", "WANTED", "TopicTarget", "TopicWriter", "file_of", "write_table"]

#: The columns of ``messages`` that a topic table is made of.
WANTED: Final = ("topic", "offset", "id", "timestamp", "key", "partition_key", "value")
#: The result of a task.
FILES: Final = "topic string, path string, rows bigint, bytes bigint, statistics string"
_FILES_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("statistics", pa.string()),
    ]
)
#: Files that a task has open; one more closes the oldest.
_MOST_OPEN: Final = 32
_GROUP_ROWS: Final = 100_000
_GROUP_BYTES: Final = 32 * 1024 * 1024
#: Longer texts have no bounds in the log.
_LONGEST: Final = 64


class TopicTarget(Struct, frozen=True):
    """A topic whose messages from ``start`` on are written for a version of its table."""

    start: int
    version: int
    schema_type: str
    schema: str


class TopicWriter:
    """Writes the batches of one task; they have the columns ``WANTED``."""

    def __init__(self, store: ParquetStore, targets: Mapping[str, TopicTarget]) -> None:
        self._store = store
        self._targets = targets

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write, and yield the files."""
        found = list(explaining(self._store, self._write)(batches))
        yield pa.RecordBatch.from_pylist(found, schema=_FILES_SCHEMA)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        context = TaskContext.get()
        assert context is not None, "this runs in a task"
        number, files = 0, dict[str, _OpenFile]()
        for batch in batches:
            for (topic,), found in split(batch, ("topic",)):
                target = self._targets[str(topic)]
                rows = found.filter(pc.greater_equal(found.column("offset"), target.start))
                if not rows.num_rows:
                    continue
                table = typed(rows, target)
                file = files.pop(str(topic), None)
                if file is None:
                    name = f"{target.version}-{context.taskAttemptId()}-{number}.parquet"
                    file = _OpenFile(self._store, str(topic), name, table.schema)
                    number += 1
                files[str(topic)] = file
                file.add(table)
                if len(files) > _MOST_OPEN:
                    yield files.pop(next(iter(files))).close()
        for file in files.values():
            yield file.close()


def typed(rows: pa.RecordBatch, target: TopicTarget) -> pa.Table:
    """The rows of a topic as rows of its table."""
    payloads = rows.column("value").to_pylist()
    columns = payload_columns(target.schema_type, target.schema, RESERVED)
    arrays, fits = columns.arrays(payloads)
    unfit = [None if fit else payload for fit, payload in zip(fits, payloads, strict=True)]
    names = ("offset", "id", "timestamp", "key", "partition_key")
    first = [
        rows.column(name).cast(field.type)
        for name, field in zip(names, MESSAGE_FIELDS, strict=False)
    ]
    schema = pa.schema([*MESSAGE_FIELDS, *columns.fields])
    return pa.Table.from_arrays([*first, pa.array(unfit, pa.binary()), *arrays], schema=schema)


class _OpenFile:
    """A file of one topic."""

    def __init__(self, store: ParquetStore, topic: str, name: str, schema: pa.Schema) -> None:
        self._topic = topic
        self._name = name
        self._stream = store.create(f"topics/{topic}/{name}")
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd")
        self._bounds = _Bounds()
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._rows += table.num_rows
        rows = sum(one.num_rows for one in self._waiting)
        if rows >= _GROUP_ROWS or sum(one.nbytes for one in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._bounds.add(table)
            self._writer.write_table(table)
            self._waiting = []

    def close(self) -> dict[str, Any]:
        self._flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        return {
            "topic": self._topic,
            "path": self._name,
            "rows": self._rows,
            "bytes": size,
            "statistics": msgspec.json.encode(self._bounds.statistics()).decode(),
        }


class _Bounds:
    """The lowest and highest values of plain columns, for readers that skip files."""

    def __init__(self) -> None:
        self._bounds: dict[str, tuple[Any, Any] | None] = {}
        self._nulls: dict[str, int] = {}

    def add(self, table: pa.Table) -> None:
        for field in table.schema:
            if not _is_plain(field.type):
                continue
            column = table.column(field.name)
            self._nulls[field.name] = self._nulls.get(field.name, 0) + column.null_count
            if column.null_count == len(column):
                continue
            found = pc.min_max(column).as_py()
            low, high = self._bounds.get(field.name) or (found["min"], found["max"])
            self._bounds[field.name] = min(low, found["min"]), max(high, found["max"])

    def statistics(self) -> dict[str, Any]:
        shown = {
            name: bounds
            for name, bounds in self._bounds.items()
            if bounds is not None and all(_is_short(one) for one in bounds)
        }
        return {
            "minValues": {name: _plain(low) for name, (low, _) in shown.items()},
            # The log has milliseconds: round up.
            "maxValues": {name: _plain(high, up=True) for name, (_, high) in shown.items()},
            "nullCount": self._nulls,
        }


def _is_plain(type_: pa.DataType) -> bool:
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    is_time = pa.types.is_timestamp(type_) or pa.types.is_date(type_)
    return bool(is_number or is_time or pa.types.is_string(type_))


def _is_short(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else len(str(value)) <= _LONGEST


def _plain(value: Any, *, up: bool = False) -> Any:
    if isinstance(value, datetime):
        # Text with milliseconds; the next one, so that no value is above it.
        ms = value.microsecond // 1000 + (1 if up and value.microsecond % 1000 else 0)
        whole = value.replace(microsecond=0).timestamp() + ms / 1000
        return datetime.fromtimestamp(whole, value.tzinfo).isoformat(timespec="milliseconds")
    return value.isoformat() if isinstance(value, date) else value


def file_of(row: Mapping[str, Any]) -> TopicFile:
    """A file from the result of a task."""
    return TopicFile(row["path"], row["rows"], row["bytes"], msgspec.json.decode(row["statistics"]))


def write_table(store: ParquetStore, topic: str, name: str, table: pa.Table) -> TopicFile:
    """Write one file of a topic."""
    file = _OpenFile(store, topic, name, table.schema)
    file.add(table)
    return file_of(file.close())
