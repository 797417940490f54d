"""Reads the lake by its manifest: committed files only, with the types they were written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.pipeline.lake.commits import File, Table
from penstock.pipeline.lake.data_files import read_paths
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import MESSAGES
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.lake.schemas import ARROW_SCHEMAS, SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_files", "read_lake"]


def read_lake(
    spark: SparkSession,
    files: Files,
    table: Table = MESSAGES,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """A table of the lake according to its current manifest."""
    manifest = Manifest(files)
    return read_files(spark, files, manifest.refresh().of(table), table, columns)


def read_files(
    spark: SparkSession,
    files: Files,
    chosen: Sequence[File],
    table: Table,
    columns: Sequence[str] | None = None,
    *,
    lenient: bool = False,
    named: bool = False,
) -> DataFrame:
    """Read these files, all of one table; by default all columns.

    ``lenient`` skips what is damaged or missing: fewer rows, which the caller has to detect.
    ``named`` adds the column ``FILE``.
    """
    names = list(columns or ARROW_SCHEMAS[table].names)
    if not chosen:
        return spark.createDataFrame([], SCHEMAS[table]).select(*names)
    schema = pa.schema([ARROW_SCHEMAS[table].field(name) for name in names])
    rows = read_paths(
        spark,
        files,
        {file.path: file.bytes for file in chosen},
        table,
        schema,
        lenient=lenient,
        largest=max(file.largest for file in chosen) if "value" in names else 0,
    )
    return rows if named else rows.select(*names)
