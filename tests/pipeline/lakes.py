"""What is in a lake, as tests look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.pipeline.lake.commits import Lake
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.layout import TABLES, is_data
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.lake.reader import read_lake
from tests.pipeline.hosted import Hosted


def lake_of(folder: Path) -> Lake:
    """What the manifest says."""
    return Manifest(LocalFiles(folder)).refresh()


def messages(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """Every message of the lake, by its manifest, in order of offset."""
    rows = read_lake(spark, LocalFiles(folder)).orderBy("offset").collect()
    return [row.asDict(recursive=True) for row in rows]


def log(server: Hosted) -> list[tuple[int, int, str, bytes | None]]:
    """What the broker itself says the log has: offset, id, topic, payload."""
    entries = server.ask(lambda q: q.read_log(0, payloads=True)).entries
    return [(one.message.offset, one.message.id, one.message.topic, one.payload) for one in entries]


def archived(spark: SparkSession, folder: Path) -> list[tuple[int, int, str, bytes | None]]:
    """The same of the lake."""
    return [
        (row["offset"], row["id"], row["topic"], bytes(row["value"]))
        for row in messages(spark, folder)
    ]


def data_files(folder: Path) -> list[str]:
    """The data files, below the lake, whether a commit names them or not."""
    found = [path for table in TABLES for path in (folder / table).rglob("*.parquet")]
    paths = [path.relative_to(folder).as_posix() for path in found]
    return sorted(path for path in paths if is_data(path))


def left_over(folder: Path) -> list[str]:
    """Data files that no version of a table has."""
    known: set[str] = set()
    for table in TABLES:
        newest = DeltaTable(folder / table).version()
        for version in range(newest + 1):
            actions = pa.table(DeltaTable(folder / table, version=version).get_add_actions())
            known.update(f"{table}/{path}" for path in actions.column("path").to_pylist())
    return sorted(set(data_files(folder)) - known)
