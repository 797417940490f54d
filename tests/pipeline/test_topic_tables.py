"""Topic tables: payloads as typed columns, for readers of Delta, through changes of the schema."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.model.queue import TopicPolicy
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.vacuum import vacuum
from penstock.pipeline.jobs.verify import verify
from penstock.pipeline.lake import topic_tables
from penstock.pipeline.lake.topic_delta import TopicLog
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import archived, log

FIELDS: dict[str, Any] = {
    "id": {"type": "integer"},
    "amount": {"type": "number"},
    "at": {"type": "string", "format": "date-time"},
    "lines": {
        "type": "array",
        "items": {"type": "object", "properties": {"sku": {"type": "string"}}},
    },
}
ORDER = {"type": "object", "properties": FIELDS}
#: What these tests do not need.
QUICK: dict[str, Any] = {"history": False, "compaction": False}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def register(server: Hosted, topic: str, schema: object, kind: str = "json-schema") -> None:
    policy = TopicPolicy(schema_type=kind, schema=json.dumps(schema))
    server.ask(lambda q: q.put_topic(topic, policy))


def publish(server: Hosted, topic: str, *values: object) -> None:
    server.publish(topic, *(NewMessage(json.dumps(value).encode()) for value in values))


def table(lake: Path, topic: str) -> pa.Table:
    return DeltaTable(lake / "topics" / topic).to_pyarrow_table().sort_by("_offset")


def rows(lake: Path, topic: str, *columns: str) -> list[tuple[Any, ...]]:
    found = table(lake, topic).select(list(columns)).to_pylist()
    return [tuple(row[name] for name in columns) for row in found]


def test_payloads_are_typed_columns_for_every_reader(
    server: Hosted, spark: SparkSession, lake: Path
) -> None:
    server.publish("orders", b"from before the schema")
    register(server, "orders", ORDER)
    register(server, "avro.orders", AVRO, "avro")
    order = {"id": 7, "amount": 2, "at": "2026-11-15T10:00:00+01:00", "lines": [{"sku": "a"}]}
    publish(server, "orders", order, {"id": 8, "more": True})
    publish(server, "other", {"id": 9})
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, AVRO, {"id": 1, "day": 20_000, "note": "x"})
    server.publish("avro.orders", NewMessage(encoded.getvalue(), partition_key="p"))
    summary = run(server, spark, archive, lake=lake, **QUICK)
    assert summary["typed"] == 4
    assert archived(spark, lake) == log(server)

    assert sorted(path.name for path in (lake / "topics").iterdir()) == ["avro.orders", "orders"]
    uri = str(lake / "topics/orders")
    at = datetime(2026, 11, 15, 9, tzinfo=UTC)
    assert rows(lake, "orders", "_offset", "id", "amount", "at", "lines", "_unfit") == [
        (0, None, None, None, None, b"from before the schema"),
        (1, 7, 2.0, at, [{"sku": "a"}], None),
        (2, 8, None, None, None, None),
    ]
    assert rows(lake, "avro.orders", "_partition_key", "id", "note") == [("p", 1, "x")]
    frame = DeltaTable(uri).to_pandas(columns=["amount"])
    assert frame["amount"].sum() == 2.0
    scanned = pl.scan_delta(uri).filter(pl.col("id") == 7).collect()
    assert scanned["lines"].to_list() == [[{"sku": "a"}]]
    orders = DeltaTable(uri).to_pyarrow_dataset()
    assert orders.count_rows() == 3
    assert duckdb.execute("SELECT lines[1].sku FROM orders WHERE id = 7").fetchall() == [("a",)]
    read = spark.read.parquet(*DeltaTable(uri).file_uris())
    assert [row["at"].hour for row in read.where("id = 7").collect()] == [9]
    # The log has the bounds of plain columns.
    (bounds,) = pa.table(DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()
    assert (bounds["min.id"], bounds["max.id"], bounds["null_count.id"]) == (7, 8, 1)


def test_a_schema_that_grows_adds_columns(server: Hosted, spark: SparkSession, lake: Path) -> None:
    register(server, "orders", ORDER)
    publish(server, "orders", {"id": 1, "lines": [{"sku": "a"}], "currency": "EUR"})
    run(server, spark, archive, lake=lake, **QUICK)
    before = DeltaTable(lake / "topics/orders")
    opened = before.to_pyarrow_dataset()
    line: dict[str, Any] = {
        "type": "object",
        "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}},
    }
    properties = {**FIELDS, "currency": {"type": "string"}}
    properties["lines"] = {"type": "array", "items": line}
    register(server, "orders", {"type": "object", "properties": properties})
    publish(server, "orders", {"id": 2, "currency": "CHF", "lines": [{"sku": "b", "n": 3}]})
    assert run(server, spark, archive, lake=lake, run="run-2", **QUICK)["typed"] == 1
    # The row of before the change is as it was.
    assert rows(lake, "orders", "id", "currency", "lines") == [
        (1, None, [{"sku": "a", "n": None}]),
        (2, "CHF", [{"sku": "b", "n": 3}]),
    ]
    assert opened.to_table(columns=["id"]).column("id").to_pylist() == [1]
    scanned = pl.scan_delta(str(lake / "topics/orders")).sort("_offset").collect()
    assert scanned["currency"].to_list() == [None, "CHF"]
    # A field that the schema does not have any more keeps its column.
    register(server, "orders", {"type": "object", "properties": {"id": {"type": "integer"}}})
    publish(server, "orders", {"id": 3, "amount": 9})
    run(server, spark, archive, lake=lake, run="run-3", **QUICK)
    assert rows(lake, "orders", "id", "amount", "currency")[2] == (3, None, None)


def test_a_column_of_another_type_makes_the_table_anew(
    server: Hosted, spark: SparkSession, lake: Path
) -> None:
    register(server, "orders", {"type": "object", "properties": {"id": {"type": "integer"}}})
    publish(server, "orders", {"id": 1}, {"id": 2})
    run(server, spark, archive, lake=lake, **QUICK)
    version = DeltaTable(lake / "topics/orders").version()
    register(
        server, "orders", {"type": "object", "properties": {"id": {"type": ["string", "integer"]}}}
    )
    publish(server, "orders", {"id": "A"})
    assert run(server, spark, archive, lake=lake, run="run-2", **QUICK)["typed"] == 3
    assert rows(lake, "orders", "_offset", "id") == [(0, "1"), (1, "2"), (2, '"A"')]
    earlier = DeltaTable(lake / "topics/orders", version=version).to_pyarrow_table()
    assert sorted(earlier.column("id").to_pylist()) == [1, 2]
    # Without a schema the table goes on by its last one.
    server.ask(lambda q: q.delete_topic("orders"))
    publish(server, "orders", {"id": "B"}, [])
    run(server, spark, archive, lake=lake, run="run-3", **QUICK)
    assert rows(lake, "orders", "id", "_unfit")[3:] == [('"B"', None), (None, b"[]")]


@law("A1")
def test_no_row_is_missing_or_twice_after_a_kill_at_any_step(
    server: Hosted, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed: an exception that no step of the run can answer."""
    monkeypatch.setattr(topic_tables, "FEWEST", 2)
    register(server, "orders", ORDER)
    steps = [("replace", False), ("append", True), ("widen", True), ("compact", False)]
    steps += [("replace", True)]
    published = 0
    for number, (step, after) in enumerate(steps):
        publish(server, "orders", {"id": published}, {"id": published + 1})
        published += 2
        if step == "widen":
            register(server, "orders", _with_column(f"c{number}"))
        if step == "replace" and after:
            register(server, "orders", {"type": "object", "properties": {"id": {"type": "number"}}})
        with monkeypatch.context() as patch:
            patch.setattr(TopicLog, step, _killed(step, after=after))
            with pytest.raises(KeyboardInterrupt):
                run(server, spark, archive, lake=lake, run=f"run-{number}", **QUICK)
        run(server, spark, archive, lake=lake, run=f"again-{number}", **QUICK)
        found = rows(lake, "orders", "_offset", "id")
        assert found == [(offset, offset) for offset in range(published)]
    assert DeltaTable(lake / "topics/orders").version() > len(steps)
    run(server, spark, vacuum, lake=lake, run="v-1", retention_hours=0)
    there = {path.name for path in (lake / "topics/orders").glob("*.parquet")}
    assert there == {Path(uri).name for uri in DeltaTable(lake / "topics/orders").file_uris()}
    assert run(server, spark, verify, lake=lake, run="v-2")["violations"] == 0


def _with_column(name: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {**FIELDS, name: {"type": "string"}},
    }


def _killed(step: str, *, after: bool) -> Any:
    original = getattr(TopicLog, step)

    def kill(self: TopicLog, *args: Any, **more: Any) -> None:
        if after:
            original(self, *args, **more)
        raise KeyboardInterrupt

    return kill


def test_a_lake_of_an_earlier_version_gets_topic_tables(
    server: Hosted, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(server, "orders", ORDER)
    publish(server, "orders", {"id": 1})
    summary = run(server, spark, archive, lake=lake, topic_tables=False, **QUICK)
    assert summary["typed"] == 0
    assert not (lake / "topics").exists()
    publish(server, "orders", {"id": 2})
    run(server, spark, archive, lake=lake, run="run-2", **QUICK)
    assert rows(lake, "orders", "id") == [(1,), (2,)]
    # A table without new rows says from time to time how far it goes, so none is read twice.
    monkeypatch.setattr(topic_tables, "_IDLE_ENTRIES", 2)
    version = DeltaTable(lake / "topics/orders").version()
    publish(server, "idle", {"id": 3})
    run(server, spark, archive, lake=lake, run="run-3", **QUICK)
    assert DeltaTable(lake / "topics/orders").version() == version
    publish(server, "idle", {"id": 4})
    run(server, spark, archive, lake=lake, run="run-4", **QUICK)
    (commit,) = DeltaTable(lake / "topics/orders").history(1)
    assert commit["penstock_topic"]["through"] == 4
    # A topic whose schema comes late has all of its messages.
    register(server, "idle", {"type": "object", "properties": {"id": {"type": "integer"}}})
    run(server, spark, archive, lake=lake, run="run-5", **QUICK)
    assert rows(lake, "idle", "id") == [(3,), (4,)]
