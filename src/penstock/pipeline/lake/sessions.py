"""Temporary Spark settings for reading and writing a lake.

They apply to the whole session, which may be the user's own, so they are restored afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["reading_payloads", "writing"]

_WRITING: Final = {
    # Readable by others too; Spark's default (INT96) is deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The date of a folder is in UTC.
    "spark.sql.session.timeZone": "UTC",
}
#: Limits the rows that Spark decodes, or passes to Python, in one batch: one column of a batch
#: must fit one array of 2 GiB.
_BATCH_BYTES: Final = 256 * 1024 * 1024
_MOST_ROWS: Final = 4_096


@contextmanager
def writing(spark: SparkSession) -> Iterator[None]:
    """Write Parquet that every reader supports, under dates in UTC."""
    with _set(spark, _WRITING):
        yield


@contextmanager
def reading_payloads(spark: SparkSession, largest: int) -> Iterator[None]:
    """Read payloads of up to ``largest`` bytes in batches that fit."""
    rows = str(max(1, min(_MOST_ROWS, _BATCH_BYTES // max(largest, 1))))
    with _set(
        spark,
        {
            "spark.sql.parquet.columnarReaderBatchSize": rows,
            "spark.sql.execution.arrow.maxRecordsPerBatch": rows,
        },
    ):
        yield


@contextmanager
def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, set_before in before.items():
            if set_before is not None:
                spark.conf.set(name, set_before)
