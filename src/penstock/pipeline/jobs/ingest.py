"""``ingest``: publishes the rows of JSON, CSV, Parquet, text or ORC files, each once (P4).

A row is a message; ``ingest_formats`` says what its payload is. Rows that cannot be read go to a
file of rejects. Files are divided into partitions the same way every time, and the write id is
derived from the files and the destination, so that a killed run can simply be repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from penstock.errors import BadInput
from penstock.model.limits import check_name
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.jobs.ingest_formats import FORMATS, format_of, read_json, read_rows
from penstock.pipeline.jobs.json_rows import FIELDS, JsonRows
from penstock.pipeline.jobs.publishing import (
    REJECTS,
    Published,
    Reject,
    Split,
    publish,
    writer_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FORMATS", "ingest"]

#: How files are divided into partitions: by bytes alone, independent of the machine. A CSV row is
#: checked against all columns, even if one of them is the payload.
_SETTINGS: Final = {
    "spark.sql.files.maxPartitionBytes": "134217728",
    "spark.sql.files.openCostInBytes": "4194304",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
}
#: Part of the write id, because an id is valid for the same payloads only.
_VERSION: Final = "2"
_ID_DIGITS: Final = 24
_NAME_DIGITS: Final = 8


def ingest(
    context: JobContext,
    *,
    path: str,
    topic: str,
    format: str | None = None,
    value: str | None = None,
    columns: Mapping[str, str] | None = None,
    ingest_id: str | None = None,
    rejects: str | None = None,
) -> Summary:
    """Publish every row; ``columns`` maps fields of the message, such as priority, to columns.

    Without a format it is that of the files' endings. ``rejects`` is the file for rows that
    cannot be read; by default it is in the working directory, named after the topic and the id.
    """
    check_name(topic, "topic")
    chosen = columns or {}
    if format is not None and format not in FORMATS:
        raise BadInput(f"format must be one of {', '.join(FORMATS)}.", field="format")
    for name in chosen:
        if name == "key":
            raise BadInput(
                "A field key could be two things: use partition_key, which keeps messages in "
                "order, or replace_key, with which a message replaces a waiting one.",
                field="columns",
            )
        if name not in FIELDS:
            raise BadInput(f"The field {name!r} cannot come from a column.", field="columns")
    for key, setting in _SETTINGS.items():
        context.spark.conf.set(key, setting)
    kind = format or format_of(context.spark, path)
    rows, schema, split = _read(context, path, kind, value, chosen)
    write_id = ingest_id or _write_id(rows, topic, value, chosen)
    writer = writer_of(context.server, schema, f"ingest-{write_id}", topic=topic)
    context.note(f"ingest id {write_id}: repeated under it, no row is published twice.")
    context.reach("ingesting", 0)
    file = Path(rejects or f"rejects-{topic}-{write_id[:_NAME_DIGITS]}.jsonl")
    with _rejects_file(file) as reject:
        done = publish(rows, writer, split, reject)
    return _summary(done, topic, path, kind, write_id, file)


def _read(
    context: JobContext, path: str, kind: str, value: str | None, columns: Mapping[str, str]
) -> tuple[DataFrame, StructType, Split]:
    """The rows, the columns of their messages, and the function that makes them messages."""
    if kind != "json":
        rows = read_rows(context.spark, path, kind, value, columns)
        return rows, StructType(rows.schema.fields[:-2]), _readable
    rows, members = read_json(context.spark, path)
    missing = sorted({value, *columns.values()} - {None, *members}, key=str)
    if missing and members:
        raise BadInput(
            f"{path} has no member {missing[0]!r} in its first objects; they have "
            f"{', '.join(sorted(members))}.",
            field="columns",
        )
    split = JsonRows(value, columns)
    schema = StructType.fromDDL(split.schema)
    assert isinstance(schema, StructType)  # Not a single type.
    return rows, schema, split


def _readable(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Split a batch of ``read_rows``; runs in Spark's workers."""
    bad = pc.is_valid(batch.column("text"))
    messages = batch.filter(pc.invert(bad)).drop_columns(["text", "file"])
    rejected = batch.filter(bad)
    why = pa.array(["other columns than the header"] * rejected.num_rows, pa.string())
    columns = [rejected.column("file"), rejected.column("text"), why]
    return messages, pa.RecordBatch.from_arrays(columns, schema=REJECTS)


class _RejectsFile:
    """Writes rejects as JSON lines; the file is created with the first of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file: IO[bytes] | None = None

    def __call__(self, reject: Reject) -> None:
        """Write one."""
        if self.file is None:
            try:
                self.file = self._path.open("wb")
            except OSError as error:
                raise BadInput(
                    f"The rejects cannot be written to {self._path}: {error.strerror}.",
                    field="rejects",
                ) from error
        text = reject.text.decode(errors="backslashreplace")
        row = {"file": reject.file, "error": reject.error, "text": text}
        self.file.write(msgspec.json.encode(row) + b"\n")


@contextmanager
def _rejects_file(path: Path) -> Iterator[_RejectsFile]:
    rejects = _RejectsFile(path)
    try:
        yield rejects
    finally:
        if rejects.file is not None:
            rejects.file.close()


def _summary(
    done: Published, topic: str, path: str, kind: str, write_id: str, file: Path
) -> Summary:
    summary: Summary = {
        "published": done.new,
        "published_before": done.found,
        "rejected": done.rejected,
        "topic": topic,
        "format": kind,
        "ingest_id": write_id,
        "path": path,
    }
    if done.rejected:
        summary["rejects"] = str(file.absolute())
    return summary


def _write_id(rows: DataFrame, topic: str, value: str | None, columns: Mapping[str, str]) -> str:
    """An id that is the same for the same, unchanged files and the same destination."""
    found = rows.select(
        "_metadata.file_path", "_metadata.file_size", "_metadata.file_modification_time"
    ).distinct()
    files = sorted(map(str, found.collect()))
    text = "\n".join([_VERSION, topic, str(value), str(sorted(columns.items())), *files])
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]
