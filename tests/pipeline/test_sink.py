"""``df.write.format("penstock")``: columns, refusals, and a write that is made again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from penstock.errors import BadInput
from penstock.model.message import HeaderValue, Message, NewMessage
from penstock.pipeline.format.attempt import Attempt
from penstock.pipeline.format.chunks import Kind
from penstock.pipeline.format.registration import Registration
from penstock.pipeline.format.rows import check_columns, groups_of
from penstock.pipeline.format.schemas import spark_schema
from penstock.pipeline.format.sink import batch_writer, stream_writer
from penstock.pipeline.remote import Server
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted


def writer(frame: DataFrame, server: Hosted, **options: Any) -> DataFrameWriter:
    return frame.write.format("penstock").options(**server.options(**options)).mode("append")


def log(server: Hosted) -> list[tuple[bytes | None, Message]]:
    page = server.ask(lambda q: q.read_log(0, limit=1_000, payloads=True))
    return [(entry.payload, entry.message) for entry in page.entries]


def test_every_column_becomes_what_it_is_called(spark: SparkSession, server: Hosted) -> None:
    later = server.clock.now() + 60_000
    frame = spark.sql(
        f"""
        SELECT 'text' AS value, 'a' AS topic, 'k' AS replace_key, 'p' AS key,
            map('x', '1', 'none', NULL) AS headers, 7 AS priority, 'text/plain' AS content_type,
            timestamp_millis({later}) AS deliver_at, {later + 1} AS expires_at, 'i' AS id,
            3 AS max_attempts
        UNION ALL SELECT 'bare', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
        """
    )
    writer(frame, server, topic="usual").save()
    (first, message), (second, bare) = sorted(log(server), key=lambda entry: entry[1].topic)
    assert (first, message.topic, message.key) == (b"text", "a", "k")
    assert (message.partition_key, message.headers) == ("p", {"x": "1"})
    assert (message.priority, message.content_type) == (7, "text/plain")
    assert (message.deliver_at, message.expires_at) == (later, later + 1)
    assert (message.max_attempts, bare.max_attempts) == (3, None)
    assert (second, bare.topic, bare.headers, bare.priority) == (b"bare", "usual", {}, 4)
    assert (bare.key, bare.partition_key, bare.content_type) == (None, None, None)
    assert (bare.deliver_at, bare.expires_at) == (bare.published_at, None)
    # The idempotency id was the server's to know.
    assert server.ask(lambda q: q.publish("a", b"", id="i")).duplicate


def test_the_key_keeps_rows_in_order_and_replaces_nothing(
    spark: SparkSession, server: Hosted
) -> None:
    """As in Kafka: many rows have one key, and all of them are delivered."""
    rows = spark.range(0, 100, 1, 2).selectExpr("'x' AS value", "cast(id % 10 AS string) AS key")
    writer(rows, server, topic="t").save()
    assert server.ask(lambda q: q.stats("t")).available == 100
    by_key = Counter(message.partition_key for _, message in log(server))
    assert by_key == {str(n): 10 for n in range(10)}
    assert all(message.key is None for _, message in log(server))
    # The key that replaces says so.
    writer(rows.withColumnRenamed("key", "replace_key"), server, topic="u").save()
    assert server.ask(lambda q: q.stats("u")).available == 10


def test_rows_of_a_kafka_source_are_published_as_they_are(
    spark: SparkSession, server: Hosted
) -> None:
    """Binary keys, and headers as a list of names and binary values; the source gives them back."""
    frame = spark.sql(
        """
        SELECT 'a' AS topic, X'FF00' AS key, X'01' AS value,
            array(named_struct('key', 'trace', 'value', X'31'),
                  named_struct('key', 'raw', 'value', X'80'),
                  named_struct('key', 'none', 'value', CAST(NULL AS binary))) AS headers
        UNION ALL SELECT 'b', X'6B', X'02', NULL
        """
    )
    writer(frame, server).save()
    (_, first), (_, second) = sorted(log(server), key=lambda entry: entry[1].topic)
    assert (first.partition_key, second.partition_key) == ("data:;base64,/wA=", "k")
    assert (first.headers, second.headers) == ({"trace": "1", "raw": "data:;base64,gA=="}, {})
    options = server.options(includeHeaders=True, keyType="binary")
    again = spark.read.format("penstock").options(**options).load().orderBy("topic")
    assert again.schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )
    one, two = again.select("key", "value", "headers").collect()
    assert (bytes(one.key), bytes(one.value), bytes(two.key)) == (b"\xff\x00", b"\x01", b"k")
    assert {(name, bytes(value)) for name, value in one.headers} == {
        ("trace", b"1"),
        ("raw", b"\x80"),
    }
    assert two.headers == []


def test_what_was_read_from_the_log_can_be_published_again(
    spark: SparkSession, server: Hosted
) -> None:
    headers: dict[str, HeaderValue] = {"s": "text", "i": 2**60, "d": 0.5, "b": True}
    server.ask(lambda q: q.publish("from", b"\x00\xff", headers=headers, priority=1))
    frame = spark.read.format("penstock").options(**server.options()).load()
    writer(frame.select("value", "headers", "priority"), server, topic="to").save()
    (_, first), (payload, copied) = log(server)
    assert (payload, copied.topic, copied.headers) == (b"\x00\xff", "to", headers)
    assert copied.priority == first.priority


def test_headers_may_be_json(spark: SparkSession, server: Hosted) -> None:
    writer(
        spark.sql("""SELECT 'x' AS payload, '{"n": 1, "f": 1.0, "t": true}' AS headers"""),
        server,
        topic="t",
    ).save()
    assert [message.headers for _, message in log(server)] == [{"n": 1, "f": 1.0, "t": True}]


@law("E1")
@pytest.mark.parametrize(
    "query, options, complaint",
    [
        ("SELECT 'x' AS value, 1 AS colour", {}, "'colour'"),
        ("SELECT 1 AS value", {}, "value is int; it has to be binary or string"),
        ("SELECT 'x' AS value, 'high' AS priority", {}, "priority is string"),
        ("SELECT 'x' AS value, map('a', 1) AS headers", {}, "headers is map<string,int>"),
        ("SELECT 'x' AS value, 1L AS id", {}, "id is bigint"),
        ("SELECT 'x' AS value, 'k' AS key, 'p' AS partition_key", {}, "rename it to replace_key"),
        ("SELECT 't' AS topic", {}, "value or payload"),
        ("SELECT 'x' AS value, 'y' AS payload", {}, "value or payload"),
        ("SELECT 'x' AS value", {"topic": None}, "set the option topic"),
        ("SELECT 'x' AS value", {"topic": "a.dlq"}, "a.dlq"),
        ("SELECT 'x' AS value", {"topik": "t"}, "did you mean topic"),
        ("SELECT 'x' AS value", {"writeId": "x" * 201}, "writeId"),
    ],
)
def test_what_cannot_be_published_is_refused(
    spark: SparkSession, query: str, options: dict[str, Any], complaint: str
) -> None:
    chosen = {"url": "http://nowhere", "topic": "t", **options}
    given = {name: value for name, value in chosen.items() if value is not None}
    with pytest.raises(BadInput) as refused:
        batch_writer(given, spark.sql(query).schema, False)
    assert complaint in refused.value.detail


@law("E1")
def test_a_write_is_refused_before_anything_runs(spark: SparkSession, server: Hosted) -> None:
    with pytest.raises(PySparkException, match="PYTHON_DATA_SOURCE_ERROR") as refused:
        writer(spark.sql("SELECT 'x' AS value, 1 AS colour"), server, topic="t").save()
    assert "A message has no 'colour'" in str(refused.value)
    assert log(server) == []


@law("E1")
def test_the_log_is_not_overwritten(spark: SparkSession, server: Hosted) -> None:
    schema = spark.sql("SELECT 'x' AS value").schema
    for make in (batch_writer, stream_writer):
        with pytest.raises(BadInput, match="append mode"):
            make(server.options(topic="t"), schema, True)


@law("P4")
def test_a_write_under_the_same_id_is_made_once(spark: SparkSession, server: Hosted) -> None:
    rows = spark.range(0, 5_000, 1, 2).selectExpr("cast(id % 100 AS string) AS value")
    writer(rows, server, topic="t", writeId="nightly").save()
    backwards = spark.range(0, 5_000, 1, 2).selectExpr("cast((4999 - id) % 100 AS string) AS value")
    writer(backwards, server, topic="t", writeId="nightly").save()
    assert server.ask(lambda q: q.stats("t")).available == 5_000
    writer(rows, server, topic="t").save()
    writer(rows, server, topic="t").save()
    assert server.ask(lambda q: q.stats("t")).available == 15_000


@law("P4")
def test_a_write_is_once_on_any_number_of_partitions(spark: SparkSession, server: Hosted) -> None:
    """Finished, it is recognised; ended half way, another number of partitions is refused."""

    def rows(parts: int) -> DataFrame:
        return spark.range(0, 4_000, 1, parts).selectExpr("cast(id AS string) AS value")

    for parts in (2, 4):
        writer(rows(parts), server, topic="t", writeId="nightly").save()
    assert server.payloads("t") == Counter(b"%d" % n for n in range(4_000))

    # What a run on two partitions that was killed has left: a part of the first.
    killed = Registration("again", "killed", same_partitions=False)
    with Attempt(Server(server.url), "w/again", 0, registration=killed) as attempt:
        attempt.add({("u", Kind()): [NewMessage(b"%d" % n) for n in range(1_500)]})
        attempt.finish()
    with pytest.raises(PySparkException, match="has not finished"):
        writer(rows(4), server, topic="u", writeId="again").save()
    writer(rows(2), server, topic="u", writeId="again", samePartitions=True).save()
    assert server.payloads("u") == Counter(b"%d" % n for n in range(4_000))


def forget_commits(checkpoint: Path) -> None:
    """Leave what a query leaves that was killed in its first micro-batch."""
    for file in (*checkpoint.glob("commits/*"), *checkpoint.glob("offsets/*")):
        if file.parent.name == "commits" or "0" not in file.name:
            file.unlink()


@law("P4")
@pytest.mark.slow  # Four queries, one after the other.
def test_a_micro_batch_is_once_on_any_number_of_partitions(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    rows = [b"%d" % number for number in range(400)]
    for start in range(0, 400, 100):
        server.publish("in", *rows[start : start + 100])
    checkpoint = tmp_path / "checkpoint"

    def copy(parts: int, topic: str = "out", **options: object) -> None:
        log = server.options(topic="in", entriesPerPartition=400 // parts)
        frame = spark.readStream.format("penstock").options(**log).load()
        assert isinstance(frame, DataFrame)
        query = (
            frame.select("value")
            .writeStream.format("penstock")
            .options(**server.options(topic=topic, checkpointLocation=checkpoint, **options))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    # The query is killed after the sink has committed, and before Spark has noted it.
    copy(2)
    assert server.payloads("out") == Counter(rows)
    forget_commits(checkpoint)
    copy(4)
    assert server.payloads("out") == Counter(rows)

    # The query is killed after a part of the first of two partitions.
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    forget_commits(checkpoint)
    killed = Registration(f"s/{query}", "killed", same_partitions=False, number=0)
    with Attempt(Server(server.url), f"s/{query}/0", 0, registration=killed) as attempt:
        attempt.add({("half", Kind()): [NewMessage(row) for row in rows[:150]]})
        attempt.finish()
    with pytest.raises(StreamingQueryException, match="has not finished"):
        copy(4, "half")
    assert server.payloads("half") == Counter(rows[:150])
    copy(2, "half", samePartitions=True)
    assert server.payloads("half") == Counter(rows)


def test_rows_go_to_the_lanes_that_they_belong_to() -> None:
    batch = pa.record_batch(
        {
            "payload": pa.array([b"0", b"1", b"2", b"3"], pa.binary()),
            "topic": ["a", "b", "a", "a"],
            "replace_key": [None, "k", None, None],
            "deliver_at": pa.array([None, 5, 5, None], pa.int64()),
            "id": [None, None, None, "i"],
        }
    )
    columns = check_columns(spark_schema(batch.schema), None)
    found = {
        (topic, kind and kind.name): [row.payload for row in rows]
        for (topic, kind), rows in groups_of(batch, columns).items()
    }
    assert found == {
        ("a", ""): [b"0"],
        ("b", "kd"): [b"1"],
        ("a", "d"): [b"2"],
        ("a", None): [b"3"],
    }


@law("E1")
@pytest.mark.parametrize(
    "columns, complaint",
    [
        ({"value": [None]}, "no payload"),
        ({"value": ["x"], "topic": pa.array([None], pa.string())}, "no topic"),
        ({"value": ["x"], "headers": ["[1]"]}, "headers cannot be read"),
    ],
)
def test_a_row_that_is_no_message_is_refused(columns: dict[str, Any], complaint: str) -> None:
    columns["value"] = pa.array(columns["value"], pa.string())
    batch = pa.record_batch(columns)
    checked = check_columns(spark_schema(batch.schema), None if "topic" in columns else "t")
    with pytest.raises(BadInput, match=complaint):
        groups_of(batch, checked)


def test_typed_headers_have_one_value_each(spark: SparkSession) -> None:
    kind = pa.struct(
        [("s", pa.string()), ("i", pa.int64()), ("d", pa.float64()), ("b", pa.bool_())]
    )
    good = [[("t", {"s": "x"}), ("n", {"i": 1}), ("none", None)], None, [("b", {"b": False})]]
    bad = [[("t", {"s": "x", "i": 1})]]
    found = []
    for headers in (good, bad):
        batch = pa.record_batch(
            {
                "value": pa.array(["v"] * len(headers)),
                "headers": pa.array(headers, pa.map_(pa.string(), kind)),
            }
        )
        columns = check_columns(spark_schema(batch.schema), "t")
        if headers is bad:
            with pytest.raises(BadInput, match="more than one value"):
                groups_of(batch, columns)
        else:
            ((_, rows),) = groups_of(batch, columns).items()
            found = [row.headers for row in rows]
    assert found == [{"t": "x", "n": 1}, {}, {"b": False}]
    assert Counter(map(type, found[0].values())) == {str: 1, int: 1}


@law("E1")
def test_a_server_that_does_not_answer_is_reported_before_any_task(spark: SparkSession) -> None:
    spark.sparkContext.setJobGroup("nowhere", "")
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        spark.range(3).selectExpr("string(id) AS value").write.format("penstock").options(
            url="http://127.0.0.1:9", topic="t"
        ).mode("append").save()
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("nowhere") == []
