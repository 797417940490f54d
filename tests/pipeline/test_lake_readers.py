"""Readers of a lake as their own documentation has them, versions of it, vacuum and export."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from duckdb_extensions import import_extension
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.errors import BadInput
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.export import export
from penstock.pipeline.jobs.vacuum import vacuum
from penstock.pipeline.jobs.verify import verify
from penstock.pipeline.lake import compaction, manifest
from penstock.testing.laws import law
from tests.pipeline.hosted import HOUR_MS, Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import archived, data_files, lake_of, left_over, log

DAY_MS = 24 * HOUR_MS
Row = tuple[int, str, bytes]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    # A space in the path stops polars, and DuckDB with a list of files.
    return tmp_path / "lake"


@pytest.fixture
def expected(server: Hosted, spark: SparkSession, lake: Path) -> list[Row]:
    """A lake of two days and three topics, with checkpoints in its Delta logs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "CHECKPOINT_EVERY", 2)
        for topic in ("007", "billing"):
            server.publish(topic, *(NewMessage(b"%d" % n, {"n": n}) for n in range(20)))
        server.advance(DAY_MS)
        server.publish("1e3", b"x")
        run(server, spark, archive, lake=lake, step=20)
    assert list((lake / "messages/_delta_log").glob("*.checkpoint.parquet"))
    return [(offset, topic, payload or b"") for offset, _, topic, payload in log(server)]


def rows_of(table: pa.Table) -> list[Row]:
    rows = table.select(["offset", "topic", "value"]).sort_by("offset").to_pylist()
    return [(row["offset"], row["topic"], row["value"]) for row in rows]


def test_readers_of_delta(expected: list[Row], spark: SparkSession, lake: Path) -> None:
    uri = str(lake / "messages")
    table = DeltaTable(uri)
    assert rows_of(table.to_pyarrow_table()) == expected
    assert table.transaction_version("penstock") == lake_of(lake).number

    frame = table.to_pandas(columns=["offset", "topic", "value", "timestamp"])
    frame = frame.sort_values("offset")
    assert list(zip(frame["offset"], frame["topic"], frame["value"], strict=True)) == expected
    assert str(frame["timestamp"].dtype) == "datetime64[us, UTC]"

    scanned = pl.scan_delta(uri).filter(pl.col("topic") == "007").sort("offset").collect()
    assert scanned["value"].to_list() == [value for _, topic, value in expected if topic == "007"]
    assert scanned["headers"][3]["n"]["i"] == 3

    messages = table.to_pyarrow_dataset()
    counted = duckdb.execute("SELECT topic, count(*) FROM messages GROUP BY topic ORDER BY topic")
    assert counted.fetchall() == [("007", 20), ("1e3", 1), ("billing", 20)]
    assert messages.count_rows() == 41

    read = spark.read.option("basePath", uri).parquet(*table.file_uris())
    found = [(r["offset"], r["topic"], bytes(r["value"])) for r in read.orderBy("offset").collect()]
    assert found == expected
    history = DeltaTable(lake / "history").to_pyarrow_table(columns=["transition"])
    assert history.column("transition").to_pylist() == ["publish"] * 41


def test_readers_of_plain_files(expected: list[Row], spark: SparkSession, lake: Path) -> None:
    """Checkpoints are Parquet too, and are not in a folder of a date."""
    found = duckdb.execute(
        'SELECT "offset", topic, value FROM '
        f"read_parquet('{lake}/messages/date=*/*.parquet', hive_partitioning = true) ORDER BY 1"
    ).fetchall()
    assert [(offset, topic, bytes(value)) for offset, topic, value in found] == expected
    listed = ", ".join(f"'{uri}'" for uri in DeltaTable(lake / "messages").file_uris())
    assert duckdb.execute(f"SELECT count(*) FROM read_parquet([{listed}])").fetchall() == [(41,)]
    plain = spark.read.schema("offset bigint, value binary, topic string, date date")
    rows = plain.parquet(str(lake / "messages")).orderBy("offset").collect()
    assert [(row["offset"], row["topic"], bytes(row["value"])) for row in rows] == expected


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with its extension ``delta``, from PyPI."""
    settings: dict[str, Any] = {"extension_directory": str(tmp_path / "extensions")}
    with duckdb.connect(config=settings) as connection:
        import_extension("delta", con=connection)
        connection.execute("LOAD delta")
        yield connection


def test_delta_scan_of_duckdb(
    expected: list[Row], lake: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    messages = f"delta_scan('{lake}/messages')"
    found = duck.execute(f'SELECT "offset", topic, value FROM {messages} ORDER BY 1').fetchall()
    assert [(offset, topic, bytes(value)) for offset, topic, value in found] == expected
    typed = f"SELECT headers['n'].i FROM {messages} WHERE topic = '007' AND \"offset\" = 3"
    assert duck.execute(typed).fetchall() == [(3,)]
    last = "SELECT count(*), max(timestamp) - min(timestamp) FROM "
    assert duck.execute(last + messages).fetchall() == [(41, timedelta(days=1))]
    history = f"SELECT DISTINCT transition FROM delta_scan('{lake}/history')"
    assert duck.execute(history).fetchall() == [("publish",)]
    # Every version that is still there.
    commits = DeltaTable(lake / "messages").history()
    (first,) = [one["version"] for one in commits if one["penstock"].get("end") == 20]
    old = f"delta_scan('{lake}/messages', version = {first})"
    assert duck.execute(f"SELECT count(*) FROM {old}").fetchall() == [(20,)]


def test_files_are_skipped_by_what_the_log_says(expected: list[Row], lake: Path) -> None:
    assert expected
    messages = DeltaTable(lake / "messages").to_pyarrow_dataset()
    total = len(list(messages.get_fragments()))
    assert total == len(lake_of(lake).of("messages")) >= 3

    def left(where: Any) -> int:
        return len(list(messages.get_fragments(filter=where)))

    # The last message is alone on its day, in its topic and above all other offsets.
    assert left(ds.field("offset") >= 40) == 1
    assert left(ds.field("topic") == "1e3") == 1
    last = lake_of(lake).of("messages")[-1]
    assert last.times is not None
    assert (
        left(ds.field("timestamp") >= pa.scalar(last.times[0] * 1000, pa.timestamp("us", "UTC")))
        == 1
    )


@law("A1")
def test_a_compaction_leaves_earlier_versions_until_vacuum(
    server: Hosted,
    spark: SparkSession,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    duck: duckdb.DuckDBPyConnection,
) -> None:
    monkeypatch.setattr(compaction, "FEWEST", 3)
    for number in range(3):
        server.publish("t", b"%d" % number)
    run(server, spark, archive, lake=lake, history=False, compaction=False, step=1)
    before = DeltaTable(lake / "messages")
    opened = before.to_pyarrow_dataset()
    lazy = pl.scan_delta(before)
    duck.execute(f"ATTACH '{lake}/messages' AS pinned (TYPE delta, PIN_SNAPSHOT)")
    assert duck.execute("SELECT count(*) FROM pinned").fetchall() == [(3,)]
    files = set(lake_of(lake).files)
    assert len(files) == 3
    summary = run(server, spark, archive, lake=lake, run="run-2", history=False)
    assert summary["files_compacted"] == 2
    after = DeltaTable(lake / "messages")
    (commit,) = after.history(1)
    assert commit["penstock"]["kind"] == "compact"
    # No reader of changes takes the rows for new ones.
    text = (lake / f"messages/_delta_log/{after.version():020d}.json").read_text()
    assert '"dataChange":false' in text
    assert '"dataChange":true' not in text
    # Both the reader that was there before and one of the earlier version read all.
    wanted = [(offset, topic, payload) for offset, _, topic, payload in log(server)]
    assert rows_of(opened.to_table()) == wanted
    assert rows_of(lazy.collect().to_arrow()) == wanted
    found = duck.execute('SELECT "offset", topic, value FROM pinned ORDER BY 1').fetchall()
    assert [(offset, topic, bytes(value)) for offset, topic, value in found] == wanted
    old = DeltaTable(lake / "messages", version=before.version())
    assert rows_of(old.to_pyarrow_table()) == rows_of(after.to_pyarrow_table()) == wanted

    assert set(data_files(lake)) > set(lake_of(lake).files)
    # A file of a commit that is being made now, as another run may have at this moment.
    (file,) = lake_of(lake).files
    coming = file.replace("0-3-", "3-4-", 1).replace(
        f"-{after.version() + 1}-", f"-{after.version() + 2}-", 1
    )
    (lake / coming).write_bytes(b"rows")
    kept = run(server, spark, vacuum, lake=lake, run="v-1", retention_hours=10**6)
    assert kept["files"] == 0
    dry = run(server, spark, vacuum, lake=lake, run="v-2", retention_hours=0, dry_run=True)
    assert DeltaTable(lake / "messages").version() == after.version()
    assert (dry["files"], set(files) <= set(data_files(lake))) == (3, True)
    done = run(server, spark, vacuum, lake=lake, run="v-3", retention_hours=0)
    assert (done["files"], done["bytes"]) == (3, dry["bytes"])
    assert sorted([coming, *lake_of(lake).files]) == data_files(lake)
    (lake / coming).unlink()
    assert left_over(lake) == []
    assert archived(spark, lake) == log(server)
    assert run(server, spark, verify, lake=lake, run="v-4")["violations"] == 0
    with pytest.raises(FileNotFoundError):
        old.to_pyarrow_table()


@law("E1")
def test_vacuum_of_what_is_no_lake(server: Hosted, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no lake"):
        run(server, None, vacuum, lake=tmp_path)
    with pytest.raises(BadInput, match="retention_hours"):
        run(server, None, vacuum, lake=tmp_path, run="run-2", retention_hours=-1)


def test_an_export_is_plain_parquet(
    server: Hosted, expected: list[Row], spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    output = tmp_path / "plain"
    summary = run(server, spark, export, lake=lake, output=str(output), where="topic = '007'")
    assert summary["messages"] == 20
    folders = pa.schema([("date", pa.date32()), ("topic", pa.string())])
    frame = pd.read_parquet(output, partitioning=ds.partitioning(folders, flavor="hive"))
    frame = frame.sort_values("offset")
    found = list(zip(frame["offset"], frame["topic"], frame["value"], strict=True))
    assert found == [row for row in expected if row[1] == "007"]
    read = spark.read.schema("offset bigint, value binary, topic string, date date")
    rows = read.parquet(str(output)).orderBy("offset").collect()
    assert [(row["offset"], row["topic"], bytes(row["value"])) for row in rows] == found
    with pytest.raises(BadInput, match="has files already"):
        run(server, spark, export, lake=lake, run="run-2", output=str(output))
