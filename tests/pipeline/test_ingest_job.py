"""Files become messages, each row once (P4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import BadInput, BadName
from penstock.pipeline.jobs.ingest import ingest
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for part in range(3):
        rows = [{"customer": f"c{n}", "n": part * 10 + n} for n in range(10)]
        (folder / f"{part}.json").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_every_row_once_however_often_it_is_run(
    server: Hosted, spark: SparkSession, files: Path
) -> None:
    server.ask(lambda q: q.create_queue("orders"))
    options = {"path": str(files), "topic": "orders", "format": "json"}
    first = run(server, spark, ingest, columns={"partition_key": "customer"}, **options)
    again = run(
        server, spark, ingest, run="run-2", columns={"partition_key": "customer"}, **options
    )
    assert first["rows"] == again["rows"] == 30
    assert first["ingest_id"] == again["ingest_id"]
    found = server.claim("orders", 1_000)
    assert sorted(json.loads(d.payload)["n"] for d in found) == list(range(30))
    assert {d.message.content_type for d in found} == {"application/json"}
    assert {d.message.partition_key for d in found} == {f"c{n}" for n in range(10)}


def test_files_that_have_changed_are_others(
    server: Hosted, spark: SparkSession, files: Path
) -> None:
    options = {"path": str(files), "topic": "orders", "format": "json"}
    first = run(server, spark, ingest, **options)
    (files / "3.json").write_text(json.dumps({"customer": "new", "n": 30}))
    assert run(server, spark, ingest, run="run-2", **options)["ingest_id"] != first["ingest_id"]


def test_one_column_as_the_payload(server: Hosted, spark: SparkSession, tmp_path: Path) -> None:
    server.ask(lambda q: q.create_queue("orders"))
    (tmp_path / "in.csv").write_text("text,who\nhello,a\nwörld,b\n")
    run(
        server,
        spark,
        ingest,
        path=str(tmp_path / "in.csv"),
        topic="orders",
        format="csv",
        value="text",
        columns={"replace_key": "who"},
    )
    assert [(d.payload.decode(), d.message.key) for d in server.claim("orders", 10)] == [
        ("hello", "a"),
        ("wörld", "b"),
    ]


@law("E1")
@pytest.mark.parametrize(
    "options, error",
    [
        ({"path": "/nowhere", "topic": "orders"}, BadInput),
        ({"path": "{files}", "topic": "a topic"}, BadName),
        ({"path": "{files}", "topic": "orders", "format": "xml"}, BadInput),
        ({"path": "{files}", "topic": "orders", "format": "json", "value": "no"}, BadInput),
        ({"path": "{files}", "topic": "orders", "columns": {"colour": "n"}}, BadInput),
    ],
)
def test_bad_input(
    server: Hosted, spark: SparkSession, files: Path, options: dict, error: type[Exception]
) -> None:
    given = {
        name: v.replace("{files}", str(files)) if isinstance(v, str) else v
        for name, v in options.items()
    }
    with pytest.raises(error):
        run(server, spark, ingest, **given)
    assert server.ask(lambda q: q.log_end()) == 0
