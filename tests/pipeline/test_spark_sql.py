"""Penstock in SQL and in a session: tables, INSERT, defaults, lag in progress, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.cli.pipeline.commands import pipeline
from penstock.errors import BadInput, BadSetting
from penstock.pipeline import Lag, create_tables, lag_of, register
from penstock.pipeline.format.defaults import default_server, started_with
from penstock.pipeline.format.error_lines import hide_traceback
from penstock.pipeline.format.source import PenstockSource
from penstock.pipeline.remote import Server
from penstock.testing.laws import law
from tests.pipeline.conftest import PUSHDOWN
from tests.pipeline.hosted import Hosted
from tests.pipeline.test_source_log import lose

#: Spark starts in seconds, on a machine that has nothing else to do.
_PATIENCE_S = 900
CREATE = "CREATE TABLE orders USING penstock OPTIONS (url '{url}', topic 'orders')"


@pytest.fixture
def orders(spark: SparkSession, server: Hosted) -> Iterator[str]:
    """A table of one topic."""
    spark.sql(CREATE.format(url=server.url))
    yield "orders"
    spark.sql("DROP TABLE orders")


def test_a_table_is_read_and_inserted_into(
    spark: SparkSession, server: Hosted, orders: str, tmp_path: Path
) -> None:
    server.publish("other", b"not in the table")
    spark.sql(
        "INSERT INTO orders (value, key, headers) VALUES (CAST('one' AS BINARY), 'k', "
        "map('n', named_struct('s', NULL, 'i', 1L, 'd', NULL, 'b', NULL)))"
    )
    spark.sql("INSERT INTO orders BY NAME SELECT value, key AS replace_key FROM orders")
    read = "SELECT CAST(value AS STRING) v, key, replace_key, headers['n'].i n FROM orders"
    assert [tuple(row) for row in spark.sql(f"{read} ORDER BY offset").collect()] == [
        ("one", "k", None, 1),
        ("one", None, "k", None),
    ]
    assert spark.sql("SELECT * FROM orders WITH (`startingOffsets` = '2')").count() == 1
    stream = spark.readStream.table("orders").select("value").writeStream.format("parquet")
    options = {"checkpointLocation": f"{tmp_path}/checkpoint", "path": f"{tmp_path}/out"}
    query = stream.options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.read.parquet(f"{tmp_path}/out").count() == 2


@law("E1")
def test_what_an_insert_cannot_set_is_refused(
    spark: SparkSession, server: Hosted, orders: str
) -> None:
    for columns, values, complaint in [
        ("value, offset", "X'00', 5L", "The server sets offset"),
        ("value, key, partition_key", "X'00', 'a', 'b'", "are the same"),
    ]:
        with pytest.raises(PySparkException, match=complaint):
            spark.sql(f"INSERT INTO orders ({columns}) VALUES ({values})")
    with pytest.raises(PySparkException, match="The log only grows"):
        spark.sql("INSERT OVERWRITE orders (value) VALUES (X'00')")
    assert server.ask(lambda q: q.log_end()) == 0


@law("E1")
def test_a_credential_does_not_go_into_the_catalog(spark: SparkSession, server: Hosted) -> None:
    options = f"url '{server.url}', credential 'psk_secret'"
    with pytest.raises(PySparkException, match="let credential be file:"):
        spark.sql(f"CREATE TABLE secret USING penstock OPTIONS ({options})")


def test_a_view_is_inserted_into(spark: SparkSession, server: Hosted) -> None:
    options = f"url '{server.url}', subscribe 'a,b', payload true"
    spark.sql(f"CREATE TEMPORARY VIEW both USING penstock OPTIONS ({options})")
    try:
        spark.sql("INSERT INTO both (topic, value) VALUES ('a', X'01'), ('b', X'02')")
        assert spark.sql("SELECT topic FROM both ORDER BY offset").count() == 2
    finally:
        spark.catalog.dropTempView("both")
    assert server.payloads("b") == {b"\x02": 1}


@pytest.fixture
def registered(spark: SparkSession, server: Hosted) -> Iterator[SparkSession]:
    """A session whose settings, made after its start, name the server."""
    spark.conf.set("spark.penstock.url", server.url)
    register(spark)
    yield spark
    spark.conf.unset("spark.penstock.url")
    spark.conf.unset(PUSHDOWN)
    spark.dataSource.register(PenstockSource)


def test_a_session_has_a_server_and_its_tables(registered: SparkSession, server: Hosted) -> None:
    spark = registered
    assert spark.conf.get(PUSHDOWN) == "true"
    server.publish("orders", NewMessage(b"x", partition_key="k"))
    assert spark.read.format("penstock").load().count() == 1
    create_tables(spark)
    create_tables(spark)
    try:
        assert spark.sql("SELECT key FROM penstock.log WHERE topic = 'orders'").first() == ("k",)
        assert spark.sql("SELECT queue FROM penstock.deliveries").first() == ("orders",)
        assert spark.sql("SELECT * FROM penstock.failed").count() == 0
        assert spark.sql("SELECT * FROM penstock.history").count() == 1
    finally:
        spark.sql("DROP DATABASE penstock CASCADE")
    with pytest.raises(BadInput, match="cannot be called"):
        create_tables(spark, database="a.b")


def test_progress_says_how_far_a_stream_is_behind(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    server.publish("t", *[b"12345"] * 5)
    frame = spark.readStream.format("penstock").options(**server.options(maxOffsetsPerTrigger=2))
    writer = frame.load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    found = [lag_of(progress) for progress in query.recentProgress]
    batches = [(lag.entries, lag.bytes) for lag in found if lag is not None]
    assert batches[:3] == [(3, 15), (1, 5), (0, 0)]
    # The server's clock stands still, far in the past.
    assert found[0] is not None
    assert found[0].oldest_ms > 0
    assert lag_of(query.recentProgress[0].sources[0]) == found[0]
    assert lag_of(None) is None
    assert lag_of(_progress('"an offset of another source"')) is None
    assert lag_of(_progress('{"lag": {"entries": 1, "bytes": 2, "oldest_ms": 3}}')) == Lag(1, 2, 3)


def _progress(offset: str) -> Any:
    return SimpleNamespace(sources=[SimpleNamespace(latestOffset=offset)])


def test_an_error_is_one_line(spark: SparkSession, server: Hosted) -> None:
    lose(server)
    wrong: list[dict[str, Any]] = [
        {"startingOffset": 1, "says": "did you mean startingOffsets"},
        {"startingTimestamp": server.clock.now() + 1, "says": "No entry was published"},
        {"startingOffsets": 0, "where": "n = 1", "says": "retention has removed"},
    ]
    for options in wrong:
        says = options.pop("says")
        with pytest.raises(PySparkException) as refused:
            spark.read.format("penstock").options(**server.options(**options)).load().count()
        shown = str(refused.value).strip().splitlines()
        assert "Traceback" not in str(refused.value)
        assert says in shown[0]
    # A driver keeps its tracebacks.
    driver: dict[str, str] = {}
    hide_traceback(driver)
    assert not driver


# -- defaults and Spark's processes ------------------------------------------------------


def test_a_python_without_penstock_gives_a_hint() -> None:
    """As when the virtual environment is not activated: Spark starts the first python3."""
    for python in ("false", "/nowhere/python3"):
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))
        with pytest.raises(BadSetting, match="Activate the virtual environment") as refused:
            register(session)
        assert sys.executable in str(refused.value)


def test_the_server_of_the_environment(tmp_path: Path) -> None:
    environment = {"PENSTOCK_URL": "http://a", "PENSTOCK_CREDENTIAL": "k"}
    assert default_server(environment) == Server("http://a", "k")
    assert default_server({}) is None
    tls = {"PENSTOCK_CA": "/ca", "PENSTOCK_CERT": "/cert", "PENSTOCK_CERT_KEY": "/key"}
    certified = Server("http://a", "k", "/ca", "/cert", "/key")
    assert default_server({**environment, **tls}) == certified
    # A setting of Spark goes before it.
    (tmp_path / "spark-defaults.conf").write_text(
        "# Ours\nspark.penstock.url  http://b\nspark.penstock.credential=file:/key\nspark.x y\n"
    )
    given = {**environment, "SPARK_CONF_DIR": str(tmp_path)}
    assert default_server(given) == Server("http://b", "file:/key")
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.penstock.url http://b\nspark.penstock.cert /c\nspark.penstock.certKey /k\n"
    )
    assert default_server(given) == Server("http://b", cert="/c", cert_key="/k")


def test_settings_on_the_command_line_of_spark(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("spark.penstock.url http://a\nspark.penstock.ca /ca\n")
    main = "org.apache.spark.deploy.SparkSubmit"
    options = ("--conf", "spark.penstock.url=http://b?x=1", "--conf", "spark.x=y", "job.py")
    words = ("java", main, "--properties-file", str(tmp_path / "given"), *options)
    for pid, parent, line in [(7, 6, ("python", "-m", "daemon")), (6, 5, words), (5, 1, ())]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text("\0".join(line))
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")
    found = {"spark.penstock.url": "http://b?x=1", "spark.penstock.ca": "/ca"}
    assert started_with(7, tmp_path) == found
    assert started_with(5, tmp_path) == {}


#: Reads from the default server, then runs the file that ``penstock pipeline script`` prints.
_PROGRAM = """
import runpy, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print("entries:", spark.read.format("penstock").load().count())
script = sys.argv.pop(1)
runpy.run_path(script, run_name="__main__")
"""


def test_a_program_and_a_job_run_under_spark_submit(server: Hosted, tmp_path: Path) -> None:
    server.publish("other", b"x", b"y")
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    (tmp_path / "program.py").write_text(_PROGRAM)
    script = CliRunner().invoke(pipeline, ["script"]).output.strip()
    submit = str(Path(sys.executable).with_name("spark-submit"))
    settings = {"spark.ui.enabled": "false", "spark.penstock.url": server.url}
    command = [submit, "--master", "local[1]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    job = ["ingest", str(tmp_path / "in.txt"), "t", "--format", "text", "--url", server.url]
    done = subprocess.run(
        [*command, str(tmp_path / "program.py"), script, *job],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "entries: 2" in done.stdout
    assert server.payloads("t").total() == 2
