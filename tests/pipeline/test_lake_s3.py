"""Jobs whose lake is in an S3 bucket, without Hadoop's client (A1).

The server is SeaweedFS, which checks signatures, or what PENSTOCK_TEST_S3 names: ``moto``.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock import NewMessage
from penstock.errors import BadInput, PipelineError
from penstock.model.queue import TopicPolicy
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.export import export
from penstock.pipeline.jobs.replay import replay
from penstock.pipeline.jobs.report import report
from penstock.pipeline.jobs.retention import retention
from penstock.pipeline.jobs.vacuum import vacuum
from penstock.pipeline.jobs.verify import verify
from penstock.pipeline.lake import compaction
from penstock.pipeline.lake.data_files import write_rows
from penstock.pipeline.lake.delta import DeltaLog
from penstock.pipeline.lake.files import Files, open_files
from penstock.pipeline.lake.layout import is_data
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.lake.parquet_store import of_s3
from penstock.pipeline.lake.reader import read_lake
from penstock.pipeline.lake.s3_files import S3Files
from penstock.pipeline.lake.s3_location import S3Location, public_name
from penstock.testing.laws import law
from tests.object_stores import BUCKET, s3_endpoint
from tests.pipeline.hosted import HOUR_MS, Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import log
from tests.service.serving import unused_port

DAY_MS = 24 * HOUR_MS
_numbers = itertools.count()


def uri(tmp_path: Path, server: str) -> str:
    """A new lake."""
    path = f"{tmp_path.name}-{next(_numbers)}/lake"
    return f"s3://key:secret@{BUCKET}/{path}?endpoint={s3_endpoint(server)}"


def archived(spark: SparkSession, files: Files) -> list[tuple[int, int, str, bytes | None]]:
    rows = read_lake(spark, files).orderBy("offset").collect()
    return [(row["offset"], row["id"], row["topic"], bytes(row["value"])) for row in rows]


@law("A1")
def test_every_job_works_on_a_bucket(
    server: Hosted, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.environ.get("PENSTOCK_TEST_S3", "secured")
    monkeypatch.setattr(compaction, "FEWEST", 2)
    lake = uri(tmp_path, name)
    policy = TopicPolicy(schema_type="json-schema", schema='{"type": "integer"}')
    server.ask(lambda q: q.put_topic("orders", policy))
    server.publish("orders", *(NewMessage(b"%d" % n, {"n": n}) for n in range(20)))
    server.publish("007", NewMessage("☃".encode(), key="k"), b"")
    summary = run(server, spark, archive, lake=lake, step=8)
    assert "secret" not in str(summary)
    server.advance(DAY_MS)
    server.publish("orders", b"99")
    second = run(server, spark, archive, lake=lake, run="run-2")
    assert (summary["entries"], second["entries"], second["through"]) == (22, 1, 23)
    wanted = log(server)
    files = open_files(lake)
    assert archived(spark, files) == wanted

    options = files.options_for_delta()
    table = DeltaTable(files.uri_for_delta("messages"), storage_options=options)
    frame = table.to_pandas(columns=["offset", "value"]).sort_values("offset")
    assert list(frame["value"]) == [payload for *_, payload in wanted]
    scanned = pl.scan_delta(files.uri_for_delta("messages"), storage_options=options)
    assert scanned.filter(pl.col("topic") == "007").collect().height == 2
    messages = table.to_pyarrow_dataset()
    assert messages.count_rows() == 23
    assert duckdb.execute("SELECT count(*) FROM messages").fetchall() == [(23,)]

    typed = DeltaTable(files.uri_for_delta("topics/orders"), storage_options=options)
    assert sorted(typed.to_pandas()["payload"]) == [*range(20), 99]

    assert run(server, spark, verify, lake=lake, run="v-1")["violations"] == 0
    for topic in ("orders", "007"):
        server.ask(lambda q, topic=topic: q.delete_queue(topic))  # type: ignore[misc]
    # The segment that is written to stays, so there has to be another.
    server.advance(2 * HOUR_MS)
    server.publish("later", b"")
    server.advance(8 * DAY_MS)
    kept = run(server, spark, retention, lake=lake, run="r-1")
    assert (kept["verified_through"], kept["removed"]) == (23, 23)
    assert run(server, spark, verify, lake=lake, run="v-2")["violations"] == 0

    replayed = run(server, spark, replay, lake=lake, run="p-1", source="lake", topic="again")
    assert replayed["replayed"] == 23
    assert sum(server.payloads("again").values()) == 23
    removed = run(server, spark, vacuum, lake=lake, run="c-1", retention_hours=0)
    assert int(removed["files"]) > 0
    current = Manifest(files).refresh()
    there = [path for path in files.walk("") if is_data(path) and "topics/" not in path]
    assert sorted(there) == sorted(current.files)
    assert not [path for path in files.walk("_penstock") if path.endswith(".parquet")]

    page = run(server, spark, report, lake=lake, run="h-1", period_s="all")["report"]
    assert str(page).endswith("/lake/reports/index.html")
    assert b"orders" in files.read("reports/index.html")
    plain = uri(tmp_path, name)
    exported = run(server, spark, export, lake=lake, run="e-1", output=plain, where="topic = '007'")
    assert exported["messages"] == 2
    (path,) = open_files(plain).walk("")
    assert "/topic=007/" in path


class Killed(BaseException):
    """No step of a job can answer it."""


@law("A1")
def test_a_run_that_is_killed_at_any_step_is_finished_by_the_next(
    server: Hosted, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a file and its commit, and after a commit that was not reported."""
    lake = uri(tmp_path, "moto")
    steps = [(S3Files, "move", False), (S3Files, "move", True), (DeltaLog, "commit", True)]
    for number, (owner, step, after) in enumerate(steps):
        server.publish("t", b"%d" % number, b"more")
        original = getattr(owner, step)

        def kill(*args: Any, original: Any = original, after: bool = after, **more: Any) -> None:
            # The first commit of a run adds no file.
            if args[0].__class__ is DeltaLog and not args[3]:
                return original(*args, **more)
            if after:
                original(*args, **more)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(owner, step, kill)
            with pytest.raises(Killed):
                run(server, spark, archive, lake=lake, run=f"killed-{number}", history=False)
    run(server, spark, archive, lake=lake, run="last", history=False)
    files = open_files(lake)
    assert archived(spark, files) == log(server)
    there = [path for path in files.walk("messages") if is_data(path)]
    assert sorted(there) == sorted(Manifest(files).refresh().files)
    assert not [path for path in files.walk("_penstock") if path.endswith(".parquet")]


@law("E1")
def test_what_is_wrong_with_a_bucket_is_one_line(
    server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, closed = s3_endpoint("secured"), f"http://127.0.0.1:{unused_port()}"
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    wrong = {
        f"s3://key:secret@nobucket/lake?endpoint={endpoint}": "There is no bucket 'nobucket'",
        f"s3://key:wrong@{BUCKET}/lake?endpoint={endpoint}": "SIGNATURE_DOES_NOT_MATCH",
        f"s3://other:secret@{BUCKET}/lake?endpoint={endpoint}": "refuses the credential of the key",
        f"s3://key:secret@{BUCKET}/lake?endpoint={closed}": "cannot be reached",
        f"s3://key:secret@{BUCKET}/lake?endpoint=localhost": "not http://",
        f"s3://key:secret@{BUCKET}/lake?profil=x": "has the setting 'profil'",
        f"s3://key@{BUCKET}/lake": "without its secret",
        f"s3://{BUCKET}": "is not s3://bucket/path",
    }
    for number, (lake, text) in enumerate(wrong.items()):
        # Spark is not needed to find that out.
        with pytest.raises((BadInput, PipelineError)) as caught:
            run(server, None, archive, lake=lake, run=f"run-{number}")
        said = caught.value.detail
        assert text in said, said
        assert "\n" not in said
        assert "secret@" not in said
        assert ":wrong" not in said


@law("E1")
def test_a_bucket_that_fails_in_a_task_is_one_line(
    server: Hosted, spark: SparkSession, tmp_path: Path
) -> None:
    files = open_files(uri(tmp_path, "moto"))
    rows = spark.range(3).withColumn("date", F.lit("2026-11-15"))
    gone = S3Location(bucket="nobucket", path="lake", endpoint=s3_endpoint(), region="us-east-1")
    files.store = of_s3(replace(gone, access_key="key", secret_key="secret"))
    with pytest.raises(BadInput, match=r"^There is no bucket 'nobucket' at http") as caught:
        write_rows(files, rows, "folder", ("date",), 10)
    assert "\n" not in str(caught.value)


def test_credentials_come_from_the_uri_a_profile_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = s3_endpoint("secured")
    config, lake = tmp_path / "config", f"s3://{BUCKET}/{tmp_path.name}"
    config.write_text(
        f"[profile work]\naws_access_key_id = key\naws_secret_access_key = secret\n"
        f"endpoint_url = {endpoint}\n[profile bad]\nregion = eu-west-1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    assert open_files(f"{lake}?profile=work").names("") == []
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert open_files(lake).names("") == []
    with pytest.raises(BadInput, match="'bad', which has no access key"):
        open_files(f"{lake}?profile=bad")
    monkeypatch.delenv("AWS_PROFILE")
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_ENDPOINT_URL", endpoint),
    ):
        monkeypatch.setenv(name, value)
    files = open_files(lake)
    assert files.names("") == []
    assert "secret" not in repr(files.store)
    assert public_name(f"s3://key:secret@{BUCKET}/a/b?endpoint=x") == f"s3://{BUCKET}/a/b"
