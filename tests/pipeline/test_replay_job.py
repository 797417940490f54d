"""Replays: what failed by one error, what the lake has; each once a replay id (P4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.errors import BadFilter, BadInput, UnknownQueue
from penstock.model.delivery import Reject
from penstock.model.queue import TopicPolicy
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.replay import replay
from penstock.pipeline.report.fingerprints import fingerprint
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run


def fail(server: Hosted, queue: str, errors: list[str]) -> None:
    deliveries = server.claim(queue, len(errors))
    settlements = [Reject(d.receipt, e) for d, e in zip(deliveries, errors, strict=True)]
    server.ask(lambda q: q.settle(queue, settlements))


def named(spark: SparkSession, error: str) -> str:
    frame = spark.createDataFrame([(error,)], "error string")
    (row,) = frame.select(fingerprint(frame.error).alias("name")).collect()
    return str(row["name"])


def test_what_failed_by_one_error_and_nothing_else(server: Hosted, spark: SparkSession) -> None:
    server.ask(lambda q: q.create_queue("billing"))
    server.publish("orders", *[b"%d" % n for n in range(6)])
    fail(server, "billing", [f"order {n} is broken" if n % 2 else "no route" for n in range(6)])
    name = named(spark, "order 99 is broken")
    options: dict[str, Any] = {"queue": "billing", "fingerprints": (name,)}
    assert run(server, spark, replay, dry_run=True, **options)["replayed"] == 3
    assert server.ask(lambda q: q.stats("billing")).available == 0
    assert run(server, spark, replay, replay_id="r", **options)["replayed"] == 3
    assert [d.payload for d in server.claim("billing", 10)] == [b"1", b"3", b"5"]
    # Failed once more, the same replay does not move them again.
    server.advance(60_000)
    assert server.ask(lambda q: q.stats("billing")).failed == 3


def test_the_same_replay_moves_a_message_once(server: Hosted, spark: SparkSession) -> None:
    server.ask(lambda q: q.create_queue("billing"))
    server.publish("orders", NewMessage(b"1", headers={"n": 1}), NewMessage(b"2", headers={"n": 2}))
    fail(server, "billing", ["a", "b"])
    options = {"queue": "billing", "where": "n = 2", "replay_id": "r"}
    assert run(server, spark, replay, **options)["replayed"] == 1
    fail(server, "billing", ["b"])
    assert run(server, spark, replay, run="run-2", **options)["replayed"] == 0


def test_messages_of_the_lake_are_published_again_once(
    server: Hosted, spark: SparkSession, tmp_path: Path
) -> None:
    server.publish(
        "orders",
        *[
            NewMessage(b"%d" % n, headers={"n": n}, partition_key="p", priority=7)
            for n in range(20)
        ],
    )
    lake = tmp_path / "lake"
    run(server, spark, archive, lake=lake)
    server.ask(lambda q: q.create_queue("again", "topic = 'again'"))
    options = {"source": "lake", "where": "n >= 15", "topic": "again", "replay_id": "r"}
    assert run(server, spark, replay, lake=lake, dry_run=True, **options)["replayed"] == 5
    for number, new in enumerate((5, 0)):
        done = run(server, spark, replay, lake=lake, run=f"run-{number}", **options)
        assert (done["replayed"], done["skipped"]) == (new, 5 - new)
    found = server.claim("again", 100)
    assert sorted(d.payload for d in found) == [b"%d" % n for n in range(15, 20)]
    assert {d.message.headers["penstock-replay"] for d in found} == {"r"}
    assert {d.message.partition_key for d in found} == {"p"}
    assert {d.message.priority for d in found} == {7}
    assert {type(d.message.headers["n"]) for d in found} == {int}


def test_a_replay_without_an_id_goes_on_though_the_lake_has_changed(
    server: Hosted, spark: SparkSession, tmp_path: Path
) -> None:
    """Its id comes from what is replayed to where, so the same command is the same replay."""
    lake = tmp_path / "lake"
    options = {"source": "lake", "where": "topic = 'orders'"}
    server.publish("orders", *[b"%d" % n for n in range(10)])
    run(server, spark, archive, lake=lake, history=False)
    assert run(server, spark, replay, lake=lake, **options)["replayed"] == 10
    # What was replayed is archived too, beside something new, in other files than before.
    server.publish("orders", b"new")
    run(server, spark, archive, lake=lake, run="run-2", history=False)
    assert run(server, spark, replay, lake=lake, run="run-3", **options)["replayed"] == 1
    found = sorted(d.payload for d in server.claim("orders", 100))
    assert found == sorted([b"%d" % n for n in range(10)] * 2 + [b"new"] * 2)


@law("P4")
def test_a_replay_without_an_id_that_ended_half_way_goes_on(
    server: Hosted, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    server.publish("orders", *[b"%d" % n for n in range(40)])
    run(server, spark, archive, lake=lake, history=False)
    # The job dies by a message of its last partition, when others are published.
    parts = spark.range(40).selectExpr("id", "pmod(hash(id), 8) AS part").collect()
    bad = max(parts, key=lambda row: (row["part"], row["id"]))["id"]
    policy = TopicPolicy(schema_type="json-schema", schema=f'{{"not": {{"const": {bad}}}}}')
    server.ask(lambda q: q.put_topic("again", policy))
    options = {"source": "lake", "topic": "again"}
    with pytest.raises(Exception, match="schema"):
        run(server, spark, replay, lake=lake, **options)
    assert 0 < server.payloads("again").total() < 40
    server.ask(lambda q: q.put_topic("again", TopicPolicy()))
    run(server, spark, replay, lake=lake, run="run-2", **options)
    assert server.payloads("again") == {b"%d" % n: 1 for n in range(40)}


@law("E1")
@pytest.mark.parametrize(
    "options, error",
    [
        ({"source": "elsewhere"}, BadInput),
        ({"source": "failed"}, BadInput),
        ({"queue": "billing", "where": "n >"}, BadFilter),
        ({"queue": "nobody"}, UnknownQueue),
        ({"queue": "billing", "source": "done", "fingerprints": ("x",)}, BadInput),
        ({"source": "lake"}, BadInput),
    ],
)
def test_bad_input_is_refused_before_spark_is_started(
    server: Hosted, options: dict, error: type[Exception]
) -> None:
    server.ask(lambda q: q.create_queue("billing"))
    with pytest.raises(error):
        run(server, None, replay, **options)
