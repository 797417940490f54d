"""Retention: nothing leaves the store before its copy in the lake was read again (A1, G1)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import LakeCorrupt
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.retention import retention
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.manifest import Manifest
from penstock.testing.laws import law
from tests.pipeline.hosted import HOUR_MS, Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import archived, lake_of, log

TOPICS = ("a", "b", "c")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    hosted = Hosted(f"rocksdb://{tmp_path}/store", archive=True).start()
    # Segments of the log begin anew after a while, and go as a whole.
    for topic in TOPICS:
        hosted.publish(topic, *[topic.encode() * 10] * 10)
        hosted.ask(lambda q, topic=topic: q.delete_queue(topic))  # type: ignore[misc]
        hosted.advance(2 * HOUR_MS)
    yield hosted
    hosted.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def topics(server: Hosted) -> list[str]:
    return sorted({topic for _, _, topic, _ in log(server)})


def sweep(server: Hosted) -> None:
    while server.ask(lambda q: q.sweep()).more:
        pass


@law("A1")
@pytest.mark.parametrize("harm", ["removed", "cut", "changed"])
def test_nothing_at_or_above_a_damaged_file_leaves(
    server: Hosted, spark: SparkSession, lake: Path, harm: str
) -> None:
    run(server, spark, archive, lake=lake, history=False, tell=False, step=10)
    expected = log(server)
    server.advance(48 * HOUR_MS)
    good, bad, _ = (file.path for file in lake_of(lake).of("messages"))
    whole = (lake / bad).read_bytes()
    match harm:
        case "removed":
            (lake / bad).unlink()
        case "cut":
            (lake / bad).write_bytes(whole[:-20])
        case _:
            # Of the same size.
            middle = len(whole) // 3
            (lake / bad).write_bytes(
                whole[:middle]
                + bytes(byte ^ 0xFF for byte in whole[middle : middle + 40])
                + whole[middle + 40 :]
            )
    with pytest.raises(LakeCorrupt) as caught:
        run(server, spark, retention, lake=lake, run="run-2")
    assert bad in caught.value.detail
    assert good not in caught.value.detail
    sweep(server)
    assert topics(server) == ["b", "c"]

    (lake / bad).write_bytes(whole)
    summary = run(server, spark, retention, lake=lake, run="run-3")
    assert summary["removed"] == summary["candidates"] == 20
    assert (summary["verified_through"], summary["files_verified"]) == (30, 2)
    assert topics(server) == []
    assert archived(spark, lake) == expected


def test_what_stays_and_why(server: Hosted, spark: SparkSession, lake: Path) -> None:
    server.advance(48 * HOUR_MS)
    server.ask(lambda q: q.create_queue("some", "topic = 'b'", start="earliest"))
    server.ask(lambda q: q.route("some"))
    server.publish("young", b"1", b"2")
    run(server, spark, archive, lake=lake, history=False, tell=False)
    server.publish("new", b"3")
    dry = run(server, spark, retention, lake=lake, run="run-2", dry_run=True)
    expected = {
        "entries": 33,
        "candidates": 20,
        "kept_referred": 10,
        "kept_young": 2,
        "kept_unverified": 1,
        "kept_unrouted": 0,
        "verified_through": 32,
    }
    assert {name: dry[name] for name in expected} == expected
    assert (dry["removed"], dry["dry_run"]) == (0, "true")
    assert len(log(server)) == 33
    # A dry run tells the broker nothing.
    sweep(server)
    assert len(log(server)) == 33

    done = run(server, spark, retention, lake=lake, run="run-3")
    assert {name: done[name] for name in expected} == expected
    assert done["removed"] == 20
    assert topics(server) == ["b", "new", "young"]


def test_what_is_not_routed_stays(server: Hosted, spark: SparkSession, lake: Path) -> None:
    run(server, spark, archive, lake=lake, history=False)
    server.advance(48 * HOUR_MS)
    server.ask(lambda q: q.create_queue("late", "FALSE", start="earliest"))
    assert server.ask(lambda q: q.route("late", 15)).cursor == 15
    summary = run(server, spark, retention, lake=lake, run="run-2")
    assert (summary["candidates"], summary["kept_unrouted"]) == (15, 15)
    # Of the second segment some is not routed, so all of it stays.
    assert (summary["removed"], summary["kept_beside_others"]) == (10, 5)


@law("A1")
def test_a_lake_that_began_later_lets_nothing_go(
    server: Hosted, spark: SparkSession, lake: Path
) -> None:
    whole = lake.with_name("whole")
    run(server, spark, archive, lake=whole, history=False, tell=False, step=10)
    server.advance(48 * HOUR_MS)
    # As if the archive had begun with the entry at 10.
    manifest = Manifest(LocalFiles(lake))
    manifest.begin("r", 0, server.ask(lambda q: q.identity()), lambda _: None)
    for file in lake_of(whole).of("messages")[1:]:
        (lake / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(whole / file.path, lake / file.path)
        end, rows = file.last + 1, file.rows
        manifest.commit("archive", "r", 0, start=file.first, end=end, entries=rows, added=[file])
    summary = run(server, spark, retention, lake=lake, run="run-2")
    assert (summary["verified_through"], summary["removed"]) == (0, 0)
    assert summary["kept_unverified"] == 30
    assert topics(server) == ["a", "b", "c"]
