"""Sink and consumer on stores in databases: each row once, each delivery acked (P4, S3).

A database gives back what was published from columns of its own, and offsets have gaps: an
attempt that loses a chunk has to know its rows by that all the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import NewMessage
from penstock.pipeline.format.chunks import CHUNK_ROWS
from penstock.testing.laws import law
from tests.databases import store_url
from tests.pipeline.hosted import Hosted

#: For a machine with better things to do.
PATIENCE_S = 120
#: Seven in ten rows of each of two partitions are of one lane, which has more than one chunk.
ROWS = 3 * CHUNK_ROWS


@pytest.fixture(params=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Hosted]:
    """A server of this process with an empty store in a database."""
    hosted = Hosted(store_url(request.param)).start()
    yield hosted
    hosted.stop()


def of_every_kind(spark: SparkSession, server: Hosted) -> DataFrame:
    """Two partitions of rows for every lane, with all that tells a row from others."""
    later = server.clock.now() + 60_000
    return spark.range(0, ROWS, 1, 2).selectExpr(
        "concat('row ', id) AS value",
        "if(id % 10 = 1, concat('k', id), NULL) AS replace_key",
        f"if(id % 10 = 2, {later} + id, NULL) AS deliver_at",
        f"if(id % 10 = 3, {later} + id, NULL) AS expires_at",
        "to_json(named_struct('n', id, 'half', id / 2, 'odd', id % 2 = 1, 'text', 'Grüße 🙂'))"
        " AS headers",
        "cast(id % 10 AS int) AS priority",
        "concat('p', id % 7) AS partition_key",
        "if(id % 2 = 0, 'text/plain', NULL) AS content_type",
    )


@law("P4")
def test_a_write_that_is_made_again_publishes_each_row_once(
    spark: SparkSession, server: Hosted
) -> None:
    every = of_every_kind(spark, server)
    for rows in (
        # What a write that ended half way has left, then the write, then the same once more.
        every.where("priority < 4"),
        every.sortWithinPartitions("value"),
        every.sortWithinPartitions("value", ascending=False),
    ):
        options = server.options(topic="t", writeId="nightly", samePartitions=True, grows=True)
        rows.write.format("penstock").options(**options).mode("append").save()
    assert server.payloads("t") == Counter(b"row %d" % n for n in range(ROWS))


@law("P4", "S3")
def test_a_query_that_is_stopped_moves_a_queue_to_a_topic(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    wanted = Counter(b"<%d>" % n for n in range(60))
    server.ask(lambda q: q.create_queue("q", "topic = 't'"))
    for start in range(0, 60, 20):
        server.publish("t", *(NewMessage(b"%d" % n) for n in range(start, start + 20)))
    taken = spark.readStream.format("penstock").options(
        **server.options(queue="q", maxOffsetsPerTrigger=40, entriesPerPartition=20)
    )
    changed = taken.load().selectExpr("concat('<', cast(value AS string), '>') AS value")

    query = start_copy(changed.mapInArrow(hang, "value string"), server, tmp_path)
    try:
        # One of the two partitions of a batch is published.
        wait_for_rows(server, query, 20)
    finally:
        query.stop()
    # The stopped reader gives its claims back, sooner or later.
    assert server.ask(lambda q: q.stats("q")).done == 0
    start_copy(changed, server, tmp_path).awaitTermination()
    assert server.payloads("out") == wanted
    stats = server.ask(lambda q: q.stats("q"))
    assert (stats.available, stats.in_flight, stats.done) == (0, 0, 60)


def hang(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark kills the task of the second partition, which never comes to its end."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    while context.partitionId() == 1:
        time.sleep(0.05)


def start_copy(frame: DataFrame, server: Hosted, folder: Path) -> StreamingQuery:
    options = server.options(
        topic="out", checkpointLocation=folder / "checkpoint", samePartitions=True
    )
    writer = frame.writeStream.format("penstock").options(**options)
    return writer.trigger(availableNow=True).start()


def wait_for_rows(server: Hosted, query: StreamingQuery, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while server.payloads("out").total() < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < until
        time.sleep(0.05)
