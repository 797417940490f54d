"""The Python of docs/pipeline.md, docs/flows.md, docs/lake.md and docs/filters.md, on Spark."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pytest
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.pipeline.flow import load_flows
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.flow import run_flow
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((DOCS / page).read_text())


def execute(block: str, names: dict[str, Any], **replaced: str) -> None:
    for old, new in replaced.items():
        assert old in block, old
        block = block.replace(old, new)
    exec(compile(block, "page", "exec"), names)


@pytest.mark.slow
def test_pipeline(
    spark: SparkSession, server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = blocks("pipeline.md")
    assert len(found) == 8
    read, tables, lag, consume, once, database, write, spans = found
    server.ask(lambda q: q.create_queue("billing", "topic = 'orders'"))
    server.publish("orders", NewMessage(b"1"), NewMessage(b"2"))
    names: dict[str, Any] = {"spark": spark, "url": server.url}
    execute(read.replace("http://localhost:8080", server.url), names)
    assert names["log"].count() == 2
    execute(tables, names)
    execute(consume, names)
    names["orders"] = names["orders"].select("offset", "value")
    monkeypatch.chdir(tmp_path)
    execute(
        once.replace(".start()", ".trigger(availableNow=True).start()")
        .replace("/lake/", f"{tmp_path}/lake/")
        .replace("/checkpoints/", f"{tmp_path}/checkpoints/"),
        names,
    )
    names["query"].awaitTermination()
    table = deltalake.DeltaTable(f"{tmp_path}/lake/orders").to_pyarrow_table()
    assert sorted(table.column("value").to_pylist()) == [b"1", b"2"]
    stream = spark.readStream.format("penstock").option("url", server.url).load()
    names["query"] = _finish(stream.writeStream.format("noop"), tmp_path / "noop")
    execute(lag, names)
    assert names["lag"].entries == 0
    # test_sinks runs this function with PostgreSQL; the example has types.
    example = (DOCS.parent / "examples" / "sinks" / "to_postgresql.py").read_text()
    _, *body = database.partition("\n\n\n")[0].splitlines()
    assert len(body) == 5
    assert [line for line in body if line not in example] == []
    names["rows"] = spark.createDataFrame(
        [("alerts", b"3", {"a": "b"})], "topic string, value binary, headers map<string,string>"
    )
    names["stream"] = stream.where("topic = 'orders'").select("value")
    checkpoint = f'.option("checkpointLocation", "{tmp_path}/sink").trigger(availableNow=True)'
    execute(write.replace("    .start()", f"    {checkpoint}.start()"), names)
    names["query"].awaitTermination()
    assert server.payloads("alerts") == Counter([b"1", b"2", b"3"])
    spans = spans.replace("\ntrace_queries(", "\nlistener = trace_queries(")
    execute(spans.replace("http://127.0.0.1:8080", server.url), names)
    spark.streams.removeListener(names["listener"])


def _finish(writer: Any, checkpoint: Path) -> Any:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.slow
def test_flows(spark: SparkSession, server: Hosted, tmp_path: Path) -> None:
    [block] = blocks("flows.md")
    file = tmp_path / "flow.py"
    file.write_text(block.replace("/lake/", f"{tmp_path}/lake/"))
    to_lake, alerts, customers = load_flows(str(file))
    server.ask(lambda q: q.create_queue("orders", "topic = 'orders'"))
    server.ask(lambda q: q.create_queue("large-orders", "amount >= 1000"))
    server.ask(lambda q: q.create_queue("customers", "topic = 'customers'"))
    order = b'{"customer": "a", "amount": 2000.0}'
    server.publish("orders", NewMessage(order, headers={"amount": 2000}))
    server.publish("customers", NewMessage(b"new", partition_key="a"))
    for flow in (to_lake, alerts, customers):
        run(server, spark, run_flow, flow=flow, checkpoints=f"{tmp_path}/checkpoints")
    found = deltalake.DeltaTable(f"{tmp_path}/lake/orders").to_pyarrow_table().to_pylist()
    assert [(row["customer"], row["amount"]) for row in found] == [("a", 2000.0)]
    assert server.payloads("alerts") == Counter([order])
    found = deltalake.DeltaTable(f"{tmp_path}/lake/customers").to_pyarrow_table().to_pylist()
    assert found == [{"profile": "new", "id": "a"}]


@pytest.mark.slow
def test_lake(spark: SparkSession, server: Hosted, tmp_path: Path) -> None:
    server.publish("orders", NewMessage(b"1"))
    run(server, spark, archive, lake=tmp_path / "lake")
    [block] = blocks("lake.md")
    # DuckDB loads its extension from the network; ``test_lake_readers`` has it.
    kept = [line for line in block.splitlines() if "delta_scan('" not in line]
    assert len(kept) == len(block.splitlines()) - 2
    names = {"deltalake": deltalake, "pl": pl, "duckdb": duckdb, "spark": spark}
    # The Java process has another working directory.
    execute("\n".join(kept).replace("lake/messages", f"{tmp_path}/lake/messages"), names)


def test_filters(spark: SparkSession, server: Hosted, pushdown: None) -> None:
    for amount in (5, 500):
        server.publish("orders", NewMessage(b"", headers={"amount": amount}))
    block = blocks("filters.md")[2]
    # The default server is set when a session starts.
    source = f'format("penstock").option("url", "{server.url}")'
    log = spark.read.format("penstock").option("url", server.url).load()
    batch = log.toArrow().combine_chunks().to_batches()[0]
    names: dict[str, Any] = {"spark": spark, "batch": batch}
    execute(block.replace('format("penstock")', source), names)
    assert names["large"].count() == 1
    assert len(names["found"].rows) == 3
