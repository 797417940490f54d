"""``ingest``: publishes the rows of Parquet, CSV or JSON files to a topic, each once (P4).

A row is a message. One column may be its payload; otherwise the whole row is, as JSON. Files are
divided into partitions the same way every time, and the write id is derived from the files and
the destination, so that a killed run can simply be repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.errors import BadInput
from penstock.model.limits import check_name
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.tables import server_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FORMATS", "ingest"]

FORMATS: Final = ("parquet", "json", "csv", "text", "orc")
#: How files are divided into partitions: by bytes alone, independent of the machine.
_CUTS: Final = {
    "spark.sql.files.maxPartitionBytes": "134217728",
    "spark.sql.files.openCostInBytes": "4194304",
    "spark.sql.files.minPartitionNum": "1",
}
_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"csv": {"header": "true"}}
_MESSAGE_COLUMNS: Final = ("partition_key", "replace_key", "priority", "headers")


def ingest(
    context: JobContext,
    *,
    path: str,
    topic: str,
    format: str = "parquet",
    value: str | None = None,
    columns: Mapping[str, str] | None = None,
    ingest_id: str | None = None,
) -> Summary:
    """Publish every row; ``columns`` maps fields of the message, such as priority, to columns."""
    check_name(topic, "topic")
    if format not in FORMATS:
        raise BadInput(f"format must be one of {', '.join(FORMATS)}.", field="format")
    for name in columns or {}:
        if name == "key":
            raise BadInput(
                "A field key could be two things: use partition_key, which keeps messages in "
                "order, or replace_key, with which a message replaces a waiting one.",
                field="columns",
            )
        if name not in _MESSAGE_COLUMNS:
            raise BadInput(f"The field {name!r} cannot come from a column.", field="columns")
    for key, cut in _CUTS.items():
        context.spark.conf.set(key, cut)
    try:
        rows = context.spark.read.format(format).options(**_OPTIONS.get(format, {})).load(path)
    except AnalysisException as error:
        raise BadInput(f"{path} cannot be read: {error.getMessage()}", field="path") from error
    missing = sorted({value, *(columns or {}).values()} - {None, *rows.columns}, key=str)
    if missing:
        raise BadInput(
            f"{path} has no column {missing[0]!r}; it has {', '.join(rows.columns)}.",
            field="columns",
        )
    write_id = ingest_id or _write_id(rows, topic, value, columns or {})
    messages = _messages(rows, value, columns or {})
    context.reach("ingesting", 0)
    messages.write.format("penstock").options(
        **server_options(context.server),
        topic=topic,
        writeId=f"ingest-{write_id}",
        samePartitions="true",  # Guaranteed by ``_CUTS`` on any machine.
    ).mode("append").save()
    return {"rows": rows.count(), "topic": topic, "ingest_id": write_id, "path": path}


def _messages(rows: DataFrame, value: str | None, columns: Mapping[str, str]) -> DataFrame:
    if value is None:
        payload, kind = F.to_json(F.struct("*")).cast("binary"), "application/json"
    else:
        payload, kind = F.col(value).cast("binary"), None
    return rows.select(
        payload.alias("value"),
        F.lit(kind).cast("string").alias("content_type"),
        *[F.col(column).alias(name) for name, column in columns.items()],
    )


def _write_id(rows: DataFrame, topic: str, value: str | None, columns: Mapping[str, str]) -> str:
    """An id that is the same for the same, unchanged files and the same destination."""
    found = rows.select(
        "_metadata.file_path", "_metadata.file_size", "_metadata.file_modification_time"
    ).distinct()
    files = sorted(map(str, found.collect()))
    text = "\n".join([topic, str(value), str(sorted(columns.items())), *files])
    return hashlib.sha256(text.encode()).hexdigest()[:24]
