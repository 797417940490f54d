"""Programs that write with Spark and do not come to a good end, for ``test_sink_failures``.

They run in a process of their own: one has tasks that are tried again, which Spark in a process
does only if its master says so, and one is killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from penstock.pipeline.remote import Server
from penstock.pipeline.session import spark_session

#: Rows of a record batch on its way through Spark: chunks leave before a partition is over.
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}
ROWS = 12_000
#: Makes rows so large that what is buffered on the way is a small part of a partition.
PADDING = "." * 300


def wait_for(url: str, entries: int) -> None:
    """Until the log has as many entries; whoever waits has a time-out of its own."""
    with Server(url).open() as remote:
        while remote.ask(lambda q: q.log_end()) < entries:
            time.sleep(0.02)


def batch(url: str) -> None:
    """Each of two partitions fails when it has published something, and is tried again."""

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            yield from batches
            # Of both partitions together there is more than one of them has.
            wait_for(url, ROWS // 2 + 1)
            raise RuntimeError("injected")
        # The second time the rows come in another order.
        yield from reversed([piece.take(backwards(piece)) for piece in batches])

    spark = spark_session("failing", master="local[2,3]", settings=SETTINGS)
    rows = spark.range(0, ROWS, 1, 2).selectExpr(f"concat(id % 4000, '{PADDING}') AS value")
    frame = rows.mapInArrow(fail_once, "value string")
    frame.write.format("penstock").options(url=url, topic="t").mode("append").save()
    spark.stop()


def backwards(piece: pa.RecordBatch) -> pa.Array:
    return pa.array(range(piece.num_rows - 1, -1, -1))


def stream(url: str, checkpoint: str) -> None:
    """A micro-batch of two partitions, of which one never comes to its end."""

    def hang(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            wait_for(url, 1_000_000)

    spark = spark_session("killed", master="local[2]", settings=SETTINGS)
    frame = spark.readStream.format("penstock").options(**source(url)).load()
    copy(frame.select("value").mapInArrow(hang, "value binary"), url, checkpoint)


def source(url: str) -> dict[str, str]:
    return {"url": url, "topic": "in", "entriesPerPartition": str(ROWS // 2)}


def copy(frame: DataFrame, url: str, checkpoint: str) -> None:
    """Publish what there is, and wait for the end."""
    query = (
        frame.writeStream.format("penstock")
        .options(url=url, topic="out", checkpointLocation=checkpoint, samePartitions="true")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    if sys.argv[1] == "batch":
        batch(sys.argv[2])
    else:
        stream(sys.argv[2], sys.argv[3])
