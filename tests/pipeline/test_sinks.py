"""The sinks of examples/sinks: every message is in the table once, wherever the query is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any, TypeAlias

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.pipeline import Flow
from penstock.pipeline.flow import load_flows
from penstock.pipeline.format import consumer
from penstock.pipeline.jobs.flow import run_flow
from penstock.testing.laws import law
from tests.databases import server as database
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run
from tests.pipeline.sink_kills import ROWS
from tests.pipeline.test_consumer_restarts import LEASE_MS, STEPS, Driver, fill, states
from tests.pipeline.test_exactly_once import QUERY, frame

ROOT = Path(__file__).parents[2]
SINKS = ROOT / "examples" / "sinks"
#: By hand: PENSTOCK_TEST_SINK_KILLS=100.
KILLS = int(os.environ.get("PENSTOCK_TEST_SINK_KILLS", "4"))

#: The ids in the table, in any order.
Ids: TypeAlias = Callable[[], list[int]]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "_WAIT_MS", 0)


def postgresql(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Ids:
    del folder
    found = database("postgresql")
    found.drop_database("sinks")
    found.create_database("sinks")
    dsn = found.url("sinks")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount double precision)"
        )
    monkeypatch.setenv("ORDERS_DSN", dsn)

    def ids() -> list[int]:
        with psycopg.connect(dsn) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM orders")]

    return ids


def iceberg(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Ids:
    lake = folder / "iceberg"
    lake.mkdir()
    monkeypatch.setenv("ICEBERG_FOLDER", str(lake))

    def ids() -> list[int]:
        names = run_path(str(SINKS / "to_iceberg.py"))
        table = names["catalog"]().load_table(names["TABLE"])
        found: list[int] = table.scan().to_arrow()["id"].to_pylist()
        return found

    return ids


TARGETS = {"to_postgresql": postgresql, "to_iceberg": iceberg}


class SinkDriver(Driver):
    """The query writes by the function of an example."""

    def __init__(self, server: Hosted, write: Callable[..., None], **options: Any) -> None:
        super().__init__(server, **options)
        self._write = write

    def write(self, number: int, values: list[bytes]) -> None:
        if values:
            count = len(values)
            rows = frame(
                id=[int(one) for one in values], customer=["c"] * count, amount=[1.5] * count
            )
            self._write(rows, QUERY, number)


@law("S2")
@pytest.mark.parametrize("name", TARGETS)
def test_every_row_is_there_once_wherever_the_query_is_killed(
    server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ids = TARGETS[name](monkeypatch, tmp_path)
    write = run_path(str(SINKS / f"{name}.py"))["write"]
    values = fill(server, 10 * len(STEPS))
    driver = SinkDriver(server, write, maxOffsetsPerTrigger=10)
    for step in STEPS:
        for pause_ms in (0, LEASE_MS + 1):
            driver.run(1, kill=step)
            server.advance(pause_ms)
    server.advance(LEASE_MS + 1)
    driver.run(100)
    assert sorted(ids()) == list(range(len(values)))
    assert states(server) == (0, 0, len(values), 0)


@law("S2")
@pytest.mark.processes
@pytest.mark.parametrize("name", TARGETS)
def test_every_row_is_there_once_wherever_the_write_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ids = TARGETS[name](monkeypatch, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.sink_kills", SINKS / f"{name}.py", str(KILLS)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    said = json.loads(done.stdout)
    # The number of calls of a write varies a little.
    assert said["killed"] >= KILLS - 1
    assert said["calls"] > 500
    assert sorted(ids()) == list(range(said["batches"] * ROWS))


@law("S2")
@pytest.mark.slow
def test_a_flow_writes_with_a_function(
    spark: SparkSession, server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = TARGETS["to_postgresql"](monkeypatch, tmp_path)
    server.ask(lambda q: q.create_queue("orders", "topic = 'orders'"))
    server.publish("orders", *(b'{"customer": "c%d", "amount": %d}' % (n, n) for n in range(20)))
    (flow,) = load_flows(str(SINKS / "to_postgresql.py"))
    assert isinstance(flow, Flow)
    for turn in range(2):
        checkpoints = f"{tmp_path}/checkpoints"
        run(server, spark, run_flow, run=f"run-{turn}", flow=flow, checkpoints=checkpoints)
        assert len(ids()) == len(set(ids())) == 20 + turn
        server.publish("orders", b'{"customer": "c", "amount": 1}')
