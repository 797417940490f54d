"""Settings of Spark's that reading and writing a lake depends on, for as long as it takes.

They are the session's, not an operation's, and the session may be a user's own: so they are put
back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["reading_payloads", "writing"]

_WRITING: Final = {
    # What others read too; what Spark writes by default is its own and long deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The date of a folder is that of the time in UTC.
    "spark.sql.session.timeZone": "UTC",
}
#: Rows that Spark decodes, or hands to Python, at once: as many as have room here, since one
#: column of them has to fit one array of 2 GiB.
_BATCH_BYTES: Final = 256 * 1024 * 1024
_MOST_ROWS: Final = 4_096


@contextmanager
def writing(spark: SparkSession) -> Iterator[None]:
    """Parquet is written as every reader takes it, under dates in UTC."""
    with _set(spark, _WRITING):
        yield


@contextmanager
def reading_payloads(spark: SparkSession, largest: int) -> Iterator[None]:
    """Payloads of up to ``largest`` bytes are read in batches that fit."""
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
