"""The format through Spark itself: what the others test without it, once from end to end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql.functions import col, lit

from penstock import NewMessage, Reject
from tests.pipeline.conftest import PUSHDOWN
from tests.pipeline.hosted import Hosted
from tests.pipeline.test_source_log import lose
from tests.service.serving import unused_port

Table = Callable[..., DataFrame]
#: Spark starts processes of its own, on a machine with other things to do.


def test_values_come_through(spark: SparkSession, server: Hosted) -> None:
    now = server.clock.now()
    server.publish(
        "orders",
        NewMessage(
            "☃".encode(), {"a": "ä", "n": 2**63 - 1, "d": 0.5, "t": False}, partition_key="k"
        ),
        NewMessage(b"", priority=0, delay_ms=5),
    )
    spark.sql(
        f"CREATE TEMPORARY VIEW it USING penstock "
        f"OPTIONS (url '{server.url}', ENTRIESperPartition 1)"
    )
    try:
        first, second = spark.sql(
            "SELECT *, cast(timestamp AS double) AS s, unix_millis(deliver_at) AS due FROM it"
        ).collect()
    finally:
        spark.catalog.dropTempView("it")
    assert bytes(first.value) == "☃".encode()
    assert (first.topic, first.key, first.priority, first.s) == ("orders", "k", 4, now / 1000)
    assert first.headers == {
        "a": Row(s="ä", i=None, d=None, b=None),
        "n": Row(s=None, i=2**63 - 1, d=None, b=None),
        "d": Row(s=None, i=None, d=0.5, b=None),
        "t": Row(s=None, i=None, d=None, b=False),
    }
    assert (bytes(second.value), second.key, second.headers, second.priority) == (b"", None, {}, 0)
    assert (second.due, second.expires_at) == (now + 5, None)


def test_states_come_through(server: Hosted, table: Table) -> None:
    server.ask(lambda q: q.create_queue("q", "TRUE"))
    server.publish("t", b"bad", b"good")
    (delivery,) = server.claim("q")
    server.ask(lambda q: q.settle("q", [Reject("boom", receipt=delivery.receipt)]))
    failed = table(table="failed", payload=True).select("queue", "error", "value")
    history = table(table="history").groupBy("transition").count()
    assert [(row.queue, row.error, bytes(row.value)) for row in failed.collect()] == [
        ("q", "boom", b"bad")
    ]
    assert dict(map(tuple, history.collect())) == {"publish": 2, "claim": 1, "reject": 1}


def test_pushdown_changes_what_is_sent_and_not_what_comes(
    spark: SparkSession, server: Hosted, table: Table
) -> None:
    for topic, key in (("a", None), ("b", "k"), ("it-s", "k")):
        server.publish(
            topic, *(NewMessage(b"x" * n, key=key and f"{key}{n}", priority=n) for n in range(5))
        )
        server.advance(1_000)
    middle = lit(datetime.fromtimestamp(server.clock.now() / 1000 - 2, UTC))
    conditions: list[Column] = [
        col("offset").between(3, 7) & (col("topic") != "c"),
        (col("key").isNull()) & (col("priority") > 2),
        col("topic").isin("it-s", "it's") & (col("size") <= 1),
        (col("timestamp") >= middle) & (col("topic").startswith("b")),
    ]
    found: dict[str, list[list[int]]] = {}
    asked: dict[str, list[str]] = {}
    for way in ("false", "true"):
        spark.conf.set(PUSHDOWN, way)
        server.host.requests.clear()
        found[way] = [
            sorted(row.offset for row in table(payload=False).where(one).select("offset").collect())
            for one in conditions
        ]
        asked[way] = [seen.path for seen in server.host.requests if "format=arrow" in seen.path]
    spark.conf.unset(PUSHDOWN)
    assert found["true"] == found["false"]
    assert all(found["true"])
    assert not [path for path in asked["false"] if "where" in path]
    assert len([path for path in asked["true"] if "where" in path]) == 4
    assert "from=3&to=8" in asked["true"][0]


# -- streams -----------------------------------------------------------------------------


def run(
    spark: SparkSession, server: Hosted, folder: Path, **options: Any
) -> tuple[list[int], list[int]]:
    """Read what is there into files; the offsets that are in them, and rows of micro-batches."""
    frame = spark.readStream.format("penstock").options(**server.options(**options)).load()
    query = (
        frame.select("offset", "topic")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
    found = spark.read.parquet(str(folder / "out")).select("offset").collect()
    return sorted(row.offset for row in found), rows


def test_a_query_that_is_run_again_reads_each_entry_once(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    first = [one.offset for one in server.publish("t", *[b"x"] * 10)]
    assert run(spark, server, tmp_path, maxOffsetsPerTrigger=4) == (first, [4, 4, 2])
    second = [one.offset for one in server.publish("t", *[b"x"] * 3)]
    assert run(spark, server, tmp_path, maxOffsetsPerTrigger=4) == (first + second, [3])
    # What Spark had planned and not committed is planned again, and is the same.
    for folder in ("checkpoint/commits", "out/_spark_metadata"):
        for left in ("3", ".3.crc"):
            (tmp_path / folder / left).unlink()
    server.publish("t", b"later")
    offsets, rows = run(spark, server, tmp_path)
    assert rows[0] == 3
    assert offsets == [*first, *second, second[-1] + 1]


def test_a_query_whose_offsets_are_gone_is_told(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    (first,) = server.publish("t", b"x")
    assert run(spark, server, tmp_path)[0] == [first.offset]
    server.ask(lambda q: q.delete_queue("t"))
    lost = lose(server)
    with pytest.raises(StreamingQueryException, match="retention has removed entries"):
        run(spark, server, tmp_path)
    (kept,) = server.publish("t", b"kept")
    found, _ = run(spark, server, tmp_path, failOnDataLoss=False)
    assert {first.offset, kept.offset} <= set(found)
    assert not set(found) & set(lost)


# -- what is wrong is seen ---------------------------------------------------------------


def test_options_are_refused_when_a_table_is_loaded(
    spark: SparkSession, server: Hosted, table: Table
) -> None:
    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        table(startingOffset=0)
    with pytest.raises(AnalysisException, match="Correct the filter at the position"):
        table(where="amount >")
    given = server.options(table="failed")
    frame = spark.readStream.format("penstock").options(**given).load()
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="The table failed is for read"):
        query.awaitTermination()


def test_the_servers_refusal_is_seen_when_a_query_is_planned(
    spark: SparkSession, server: Hosted, table: Table
) -> None:
    with pytest.raises(Exception, match=r"UnknownQueue.*nobody"):
        table(table="deliveries", queue="nobody").count()
    nowhere = f"http://127.0.0.1:{unused_port()}"
    with pytest.raises(Exception, match="No answer from"):
        spark.read.format("penstock").option("url", nowhere).load().count()
