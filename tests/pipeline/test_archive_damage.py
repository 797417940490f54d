"""Archiving with something in the way: damage, a second run, a death at any moment (A1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit, when

from penstock import NewMessage
from penstock.errors import Conflict, LakeCorrupt
from penstock.pipeline.context import JobContext, JobOptions
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.lake import archive as archiving
from penstock.pipeline.lake import checks, staging
from penstock.pipeline.lake.archive import Archiver
from penstock.pipeline.lake.delta import DeltaLog
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.remote import Server
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import archived, data_files, lake_of, left_over, log


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    hosted = Hosted(f"rocksdb://{tmp_path}/store", archive=True).start()
    for topic in ("a", "b"):
        hosted.publish(topic, *(NewMessage(b"%d" % n, {"n": n}) for n in range(10)))
    yield hosted
    hosted.stop()


def told(server: Hosted) -> int:
    """Up to where the broker was told that there are copies; -1: nothing."""
    engine: Any = server.broker.engine
    return int(engine._core.log.tenants["default"].archived)


class Killed(BaseException):
    """Nothing of ours handles it: what comes after it does not happen."""


@contextmanager
def death(number: int, *, after: bool) -> Iterator[None]:
    """The process dies before its nth change of the lake, or right after it."""
    left = number

    def changing(change: Callable[..., Any]) -> Callable[..., Any]:
        def change_or_die(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                raise Killed
            done = change(*args, **options)
            if left == 0:
                raise Killed
            return done

        return change_or_die

    remove = changing(LocalFiles.remove)

    def remove_each(self: LocalFiles, paths: Sequence[str]) -> None:
        for path in paths:
            remove(self, [path])

    with pytest.MonkeyPatch.context() as patch:
        for name in ("create", "move", "remove_tree"):
            patch.setattr(LocalFiles, name, changing(getattr(LocalFiles, name)))
        patch.setattr(LocalFiles, "remove", remove_each)
        for name in ("create", "commit", "checkpoint"):
            patch.setattr(DeltaLog, name, changing(getattr(DeltaLog, name)))
        yield


@law("A1")
def test_ten_deaths_in_a_row_end_in_the_same_lake(
    server: Hosted, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "STEP_ENTRIES", 3)
    expected = log(server)
    deaths = 0
    for number in range(1, 13):
        try:
            with death(number, after=number % 2 == 0):
                run(server, spark, archive, lake=lake, run=f"run-{number}", history=False)
        except Killed:
            deaths += 1
        known = lake_of(lake)
        assert told(server) < max(known.through, 1)
        # Whatever the manifest has is there.
        assert set(known.files) <= set(data_files(lake))
    assert deaths >= 10
    monkeypatch.undo()
    run(server, spark, archive, lake=lake, run="last", history=False, compaction=False)
    assert archived(spark, lake) == expected
    assert left_over(lake) == []
    assert LocalFiles(lake).walk("_penstock/staging") == {}
    assert not list(lake.rglob("*.partial"))
    assert told(server) == expected[-1][0]


@law("A1")
def test_deaths_while_histories_and_files_are_replaced(
    server: Hosted, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        server.publish("a", b"more %d" % number)
        run(server, spark, archive, lake=lake, run=f"before-{number}", compaction=False)
    expected = log(server)
    server.claim("a", 3)
    monkeypatch.setattr("penstock.pipeline.lake.compaction.FEWEST", 2)
    for number in range(2, 9, 2):
        try:
            with death(number, after=True):
                run(server, spark, archive, lake=lake, run=f"run-{number}")
        except Killed:
            assert archived(spark, lake) == expected
    run(server, spark, archive, lake=lake, run="last")
    assert archived(spark, lake) == expected
    assert left_over(lake) == []
    history = spark.read.parquet(*[str(lake / f.path) for f in lake_of(lake).of("history")])
    assert history.count() == history.select("id", "queue", "seq").distinct().count() == 26


@law("A1")
def test_of_two_runs_the_one_that_began_last_goes_on(
    server: Hosted, spark: SparkSession, lake: Path
) -> None:
    contexts = [
        JobContext(
            JobOptions(server=Server(server.url), lake=str(lake)),
            run=name,
            job="archive",
            spark=spark,
            clock=server.clock,
        )
        for name in ("first", "second")
    ]
    first, second = (Archiver(context) for context in contexts)
    try:
        first.begin()
        second.begin()
        with pytest.raises(Conflict):
            first.archive()
        assert data_files(lake) == []
        assert told(server) == -1
        assert second.archive().entries == 20
        # One that comes to itself late removes nothing of the other's.
        with pytest.raises(Conflict):
            first.archive()
        with pytest.raises(Conflict):
            first.commit("archive", None, 20, 20)
    finally:
        for context in contexts:
            context.close()
    assert archived(spark, lake) == log(server)
    assert left_over(lake) == []


@law("A1")
def test_what_is_read_back_otherwise_is_not_committed(
    server: Hosted, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(rows: Any, table: Any) -> Any:
        return checks.examine(rows.where("offset <> 3"), table)

    monkeypatch.setattr(staging, "examine", short)
    with pytest.raises(LakeCorrupt, match="20 rows were to be written and 19 were read back"):
        run(server, spark, archive, lake=lake)

    def changed(rows: Any, table: Any) -> Any:
        value = when(col("offset") == 3, lit(b"?")).otherwise(col("value"))
        names = [name for name in rows.columns if name != "value"]
        kept = rows.select("_metadata", *names, value.alias("value"))
        return checks.examine(kept, table)

    monkeypatch.setattr(staging, "examine", changed)
    with pytest.raises(LakeCorrupt, match=r"Payloads are not what was published in: .*date="):
        run(server, spark, archive, lake=lake, run="run-2")
    assert lake_of(lake).through == 0
    assert data_files(lake) == []
    assert told(server) == -1


@law("X1")
def test_files_that_are_missing_or_cut_are_named(
    server: Hosted, spark: SparkSession, lake: Path
) -> None:
    run(server, spark, archive, lake=lake, step=10)
    one, other = (file.path for file in lake_of(lake).of("messages"))
    (lake / one).rename(lake / "kept")
    (lake / other).write_bytes((lake / other).read_bytes()[:-1])
    server.publish("a", b"more")
    with pytest.raises(LakeCorrupt) as caught:
        run(server, spark, archive, lake=lake, run="run-2")
    assert one in caught.value.detail
    assert other in caught.value.detail
    assert lake_of(lake).through == 20
    assert told(server) == 19
