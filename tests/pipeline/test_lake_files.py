"""Files of a lake: the same on this machine's disk and through Hadoop."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import BadInput
from penstock.pipeline.lake.files import Files, LocalFiles, open_files
from penstock.pipeline.lake.hadoop_files import HadoopFiles, delta_options
from penstock.testing.laws import law


@pytest.fixture(params=["local", "hadoop"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    folder = tmp_path / "a lake"
    if request.param == "local":
        return LocalFiles(folder)
    spark: SparkSession = request.getfixturevalue("spark")
    return HadoopFiles(spark, f"file://{tmp_path}/a lake")


def test_a_file_is_made_whole_and_once(files: Files) -> None:
    assert files.create("_penstock/manifest/1.json", b"\x00one\xff")
    assert not files.create("_penstock/manifest/1.json", b"two")
    assert files.read("_penstock/manifest/1.json") == b"\x00one\xff"
    assert files.names("_penstock/manifest") == ["1.json"]
    assert files.names("_penstock") == ["manifest"]
    with pytest.raises(FileNotFoundError):
        files.read("_penstock/manifest/2.json")


def test_a_file_that_is_not_finished_is_none(files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "a lake" / "m"
    folder.mkdir(parents=True)
    (folder / ".1.json.77.partial").write_bytes(b"half")
    assert files.names("m") == []
    assert files.create("m/1.json", b"whole")
    assert files.names("m") == ["1.json"]


def test_files_are_found_moved_and_removed(files: Files) -> None:
    files.create("staging/date=1/topic=t/part-0.parquet", b"abc")
    files.create("staging/date=2/topic=t/part-0.parquet", b"")
    assert {
        path: size for path, size in files.walk("staging").items() if not path.endswith(".crc")
    } == {
        "staging/date=1/topic=t/part-0.parquet": 3,
        "staging/date=2/topic=t/part-0.parquet": 0,
    }
    files.move("staging/date=1/topic=t/part-0.parquet", "messages/date=1/x.parquet")
    assert files.read("messages/date=1/x.parquet") == b"abc"
    with pytest.raises(FileExistsError):
        files.move("staging/date=2/topic=t/part-0.parquet", "messages/date=1/x.parquet")
    assert files.read("messages/date=1/x.parquet") == b"abc"
    files.remove(["messages/date=1/x.parquet", "messages/date=1/never-there.parquet"])
    assert "messages/date=1/x.parquet" not in files.walk("messages")
    files.remove_tree("staging")
    files.remove_tree("staging")
    assert files.walk("staging") == {}
    assert files.names("staging") == []


def test_a_local_folder_needs_no_spark(tmp_path: Path) -> None:
    for lake in (str(tmp_path / "lake"), f"file://{tmp_path}/lake", f"file:{tmp_path}/lake"):
        files = open_files(lake)
        assert isinstance(files, LocalFiles)
        assert files.root == f"{tmp_path}/lake"
    spaced = open_files(f"file://{tmp_path}/a%20lake")
    assert spaced.root == f"{tmp_path}/a lake"


@law("E1")
@pytest.mark.parametrize("lake", ["", "/lake?x=1", "/lake#1", "/la*ke", "/lake/{a,b}", "s3a://b/l"])
def test_what_cannot_be_a_lake_is_refused(lake: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_files(lake)
    assert caught.value.field == "lake"


def test_the_delta_log_of_a_bucket_gets_the_credentials_of_spark(spark: SparkSession) -> None:
    files = HadoopFiles.__new__(HadoopFiles)
    files.root = "s3a://bucket/lake"
    settings = {
        "fs.s3a.access.key": "key",
        "fs.s3a.secret.key": "secret",
        "fs.s3a.bucket.bucket.secret.key": "of-the-bucket",
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
    }
    configuration = spark.sparkContext._jvm.org.apache.hadoop.conf.Configuration(False)  # type: ignore[union-attr]
    for name, value in settings.items():
        configuration.set(name, value)
    files._configuration = configuration
    assert files.uri_for_delta("messages") == "s3://bucket/lake/messages"
    assert files.options_for_delta() == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "of-the-bucket",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_ALLOW_HTTP": "true",
    }
    assert delta_options({"AWS_ENDPOINT_URL": "s3.eu.example"}) == {
        "AWS_ENDPOINT_URL": "https://s3.eu.example"
    }
    files.root = "hdfs://host/lake"
    assert files.uri_for_delta("history") == "hdfs://host/lake/history"
    assert files.options_for_delta() == {}
