"""Reads the lake by its manifest: committed files only, with the types they were written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.pipeline.lake.commits import File, Table
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import MESSAGES
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.lake.schemas import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_files", "read_lake"]


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
