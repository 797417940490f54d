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
    assert (first["published"], first["published_before"]) == (30, 0)
    assert (again["published"], again["published_before"]) == (0, 30)
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


def written(folder: Path, name: str, *lines: str) -> str:
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def test_json_stays_as_it_is_written(server: Hosted, spark: SparkSession, tmp_path: Path) -> None:
    """Spark's reader would make the 1 a text, because another row has one, and drop the null."""
    lines = ['{"n": 1, "gone": null}', '{"n":"one"}', '{"big": 12345678901234567890.10}']
    summary = run(server, spark, ingest, path=written(tmp_path, "in.jsonl", *lines), topic="orders")
    assert (summary["published"], summary["rejected"], summary["format"]) == (3, 0, "json")
    assert server.payloads("orders") == {line.encode(): 1 for line in lines}


def test_a_document_over_several_lines(server: Hosted, spark: SparkSession, tmp_path: Path) -> None:
    path = written(tmp_path, "in.json", "[", '  {"n": 1},', '  {"n": null}', "]")
    assert run(server, spark, ingest, path=path, topic="orders")["published"] == 2
    assert server.payloads("orders") == {b'{"n": 1}': 1, b'{"n": null}': 1}


@law("P4")
def test_what_cannot_be_read_goes_to_the_rejects(
    server: Hosted, spark: SparkSession, tmp_path: Path
) -> None:
    path = written(tmp_path, "in.jsonl", '{"n": 1, "who": "a"}', '{"n": 2,', '{"n": 3, "who": 7}')
    rejects = tmp_path / "rejects.jsonl"
    options = {"path": path, "topic": "orders", "rejects": str(rejects)}
    for number, published in enumerate((2, 0)):
        summary = run(
            server, spark, ingest, run=f"run-{number}", columns={"replace_key": "who"}, **options
        )
        assert (summary["published"], summary["published_before"]) == (published, 2 - published)
        assert (summary["rejected"], summary["rejects"]) == (1, str(rejects))
        (reject,) = map(json.loads, rejects.read_text().splitlines())
        assert reject["text"] == '{"n": 2,'
        assert reject["file"].endswith("in.jsonl")
    assert [d.message.key for d in server.claim("orders", 10)] == ["a", "7"]


def test_rows_of_csv_that_do_not_fit_the_header(
    server: Hosted, spark: SparkSession, tmp_path: Path
) -> None:
    path = written(tmp_path, "in.csv", "a,b", "1,", "2,x,y", "3,z")
    rejects = tmp_path / "rejects.jsonl"
    summary = run(server, spark, ingest, path=path, topic="orders", rejects=str(rejects))
    assert (summary["published"], summary["rejected"]) == (2, 1)
    assert server.payloads("orders") == {b'{"a":"1","b":null}': 1, b'{"a":"3","b":"z"}': 1}
    assert json.loads(rejects.read_text())["text"] == "2,x,y"


def test_the_format_is_that_of_the_endings(
    server: Hosted, spark: SparkSession, files: Path
) -> None:
    assert run(server, spark, ingest, path=str(files), topic="orders")["format"] == "json"
    (files / "3.csv").write_text("a\n1\n")
    with pytest.raises(BadInput, match=r"several formats \(csv, json\): add --format"):
        run(server, spark, ingest, run="run-2", path=str(files), topic="orders")


@law("E1")
@pytest.mark.parametrize(
    "options, error",
    [
        ({"path": "/nowhere", "topic": "orders"}, BadInput),
        ({"path": "{files}", "topic": "a topic"}, BadName),
        ({"path": "{files}", "topic": "orders", "format": "xml"}, BadInput),
        ({"path": "{files}", "topic": "orders", "format": "json", "value": "no"}, BadInput),
        ({"path": "{files}", "topic": "orders", "columns": {"colour": "n"}}, BadInput),
        ({"path": "{files}", "topic": "orders", "columns": {"key": "n"}}, BadInput),
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
