"""``exactly_once``: a micro-batch and its number are one transaction of the table."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.errors import BadInput, PipelineError
from penstock.pipeline import Table, exactly_once
from penstock.pipeline.exactly_once import write_batch
from penstock.pipeline.format import consumer
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.test_consumer_restarts import LEASE_MS, STEPS, Driver, fill, states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY = "6ff6b3f4"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "_WAIT_MS", 0)


def frame(**columns: list[Any]) -> DataFrame:
    """What ``write_batch`` needs of a micro-batch."""

    class Frame:
        def toArrow(self) -> pa.Table:  # noqa: N802  (as Spark calls it)
            return pa.table(columns)

    return cast("DataFrame", Frame())


def rows(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(table.path).to_pyarrow_table().to_pylist()
    return sorted(found, key=str)


class DeltaDriver(Driver):
    """The query writes to a Delta table."""

    def __init__(self, server: Hosted, table: Table, **options: Any) -> None:
        super().__init__(server, **options)
        self._table = table

    def write(self, number: int, values: list[bytes]) -> None:
        if values:
            write_batch(self._table, frame(value=values), QUERY, number)


@law("S2")
@pytest.mark.parametrize("step", STEPS)
def test_every_row_is_in_the_table_once_wherever_the_query_is_killed(
    server: Hosted, tmp_path: Path, step: str
) -> None:
    values = fill(server, 30)
    table = Table(path=f"{tmp_path}/table")
    driver = DeltaDriver(server, table, maxOffsetsPerTrigger=10)
    for pause_ms in (0, LEASE_MS + 1, LEASE_MS + 1):
        driver.run(1, kill=step)
        server.advance(pause_ms)
    driver.run(100)
    assert Counter(row["value"] for row in rows(table)) == Counter(values)
    assert states(server) == (0, 0, 30, 0)


#: Writes a batch, and is killed while it writes the next one.
DYING = """
import os, signal, sys
import pyarrow as pa
from penstock.pipeline.exactly_once import Table, write_batch

class Frame:
    def __init__(self, number):
        self.number = number

    def toArrow(self):
        if self.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return pa.table({"n": [self.number]})

for number in (1, 2):
    write_batch(Table(path=sys.argv[1]), Frame(number), sys.argv[2], number)
"""


class DatabaseDriver(Driver):
    """The query writes to a database: rows and the number of the batch in one transaction."""

    def __init__(self, server: Hosted, database: sqlite3.Connection, **options: Any) -> None:
        super().__init__(server, **options)
        self._database = database
        database.executescript("CREATE TABLE written (n PRIMARY KEY); CREATE TABLE orders (v)")

    def write(self, number: int, values: list[bytes]) -> None:
        with self._database as transaction:
            done = transaction.execute("INSERT OR IGNORE INTO written VALUES (?)", (number,))
            if done.rowcount:
                transaction.executemany("INSERT INTO orders VALUES (?)", ((one,) for one in values))


@law("S2")
@pytest.mark.parametrize("step", STEPS)
def test_every_row_is_in_the_database_once(server: Hosted, step: str) -> None:
    """The way that docs/pipeline.md shows."""
    values = fill(server, 30)
    with closing(sqlite3.connect(":memory:")) as database:
        driver = DatabaseDriver(server, database, maxOffsetsPerTrigger=10)
        for pause_ms in (0, LEASE_MS + 1, LEASE_MS + 1):
            driver.run(1, kill=step)
            server.advance(pause_ms)
        driver.run(100)
        found = Counter(value for (value,) in database.execute("SELECT v FROM orders"))
    assert found == Counter(values)


def test_a_process_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    table = Table(path=f"{tmp_path}/table")
    done = subprocess.run([sys.executable, "-c", DYING, table.path, QUERY])
    assert done.returncode == -signal.SIGKILL
    assert not write_batch(table, frame(n=[1]), QUERY, 1)
    assert write_batch(table, frame(n=[2]), QUERY, 2)
    assert [row["n"] for row in rows(table)] == [1, 2]


def test_rows_replace_those_with_the_same_key(tmp_path: Path) -> None:
    table = Table(path=f"{tmp_path}/table", merge_on=("id",))
    assert write_batch(table, frame(id=["a", "b"], n=[1, 1]), QUERY, 0)
    for _ in range(2):
        write_batch(table, frame(id=["b", "c"], n=[2, 2]), QUERY, 1)
    assert rows(table) == [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "c", "n": 2}]


def test_another_query_has_its_own_numbers(tmp_path: Path) -> None:
    table = Table(path=f"{tmp_path}/table")
    for query in ("one", "two"):
        for _ in range(2):
            write_batch(table, frame(n=[1]), query, 0)
    assert len(rows(table)) == 2


def test_a_batch_that_does_not_fit_the_table(tmp_path: Path) -> None:
    table = Table(path=f"{tmp_path}/table")
    write_batch(table, frame(n=[1]), QUERY, 0)
    with pytest.raises(PipelineError, match="Micro-batch 1 cannot be written"):
        write_batch(table, frame(m=["x"]), QUERY, 1)
    assert rows(table) == [{"n": 1}]


@law("E1")
def test_what_is_not_a_stream_with_these_columns_is_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(BadInput, match="readStream"):
        exactly_once(spark.range(3), "/nowhere")
    with pytest.raises(BadInput, match="no column 'id'; it has timestamp, value"):
        exactly_once(stream, "/nowhere", merge_on=["id"])
    with pytest.raises(BadInput, match="path"):
        exactly_once(stream, "")
