"""Reads the lake by its manifest: committed files only, with the types they were written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.pipeline.format.schemas import spark_schema, stored_log_schema, table_schema
from penstock.pipeline.lake.commits import File, Table
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import MESSAGES
from penstock.pipeline.lake.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ARROW_SCHEMAS", "PARTITIONS", "SCHEMAS", "read_files", "read_lake"]

_DATE: Final = pa.field("date", pa.date32())
#: The partition columns, whose values are in the path.
PARTITIONS: Final[dict[Table, tuple[str, ...]]] = {
    "messages": ("date", "topic"),
    "history": ("date",),
}
_LOG: Final = stored_log_schema()
#: The columns of each table, partition columns last.
ARROW_SCHEMAS: Final[dict[Table, pa.Schema]] = {
    "messages": pa.schema(
        [*(field for field in _LOG if field.name != "topic"), _DATE, _LOG.field("topic")]
    ),
    "history": pa.schema([*table_schema("history", payload=False), _DATE]),
}
SCHEMAS: Final[dict[Table, StructType]] = {
    table: spark_schema(schema) for table, schema in ARROW_SCHEMAS.items()
}


def read_lake(spark: SparkSession, files: Files, table: Table = MESSAGES) -> DataFrame:
    """A table of the lake according to its current manifest."""
    manifest = Manifest(files)
    return read_files(spark, files, manifest.refresh().of(table), table)


def read_files(
    spark: SparkSession, files: Files, chosen: Sequence[File], table: Table, **options: str
) -> DataFrame:
    """Read these files, all of one table."""
    if not chosen:
        return spark.createDataFrame([], SCHEMAS[table])
    reader = spark.read.schema(SCHEMAS[table]).options(basePath=files.uri(table), **options)
    return reader.parquet(*[files.uri(file.path) for file in chosen])
