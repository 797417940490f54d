"""Lakes and checkpoints know their store: what belongs to another one is refused (A1)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.broker import Broker
from penstock.errors import BadInput, LakeCorrupt, OffsetsGone, OtherStore
from penstock.pipeline.context import JobContext, JobOptions
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.replay import replay
from penstock.pipeline.jobs.report import report
from penstock.pipeline.jobs.retention import retention
from penstock.pipeline.jobs.verify import _check_identity, verify
from penstock.pipeline.lake.archive import Archiver
from penstock.pipeline.lake.commits import Lake
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.lake.ownership import mark_at
from penstock.pipeline.remote import Server
from penstock.testing.laws import law
from tests.pipeline.hosted import HOUR_MS, Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import archived, lake_of, log
from tests.pipeline.reading import reader, stream

#: Only the log: histories and compaction are tested elsewhere, and take time.
PLAIN: Any = {"history": False, "compaction": False}
Opens = Callable[[Path], Hosted]


@pytest.fixture
def opens() -> Iterator[Opens]:
    """Opens servers whose stores keep everything until it is archived."""
    with ExitStack() as stack:

        def start(folder: Path) -> Hosted:
            hosted = Hosted(f"rocksdb://{folder}", archive=True).start()
            stack.callback(hosted.stop)
            return hosted

        yield start


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def entries(server: Hosted) -> int:
    """Entries that the log has after retention has had its chance."""
    server.forget()
    return len(log(server)) - 1  # Forgetting publishes one.


def copy_of(folder: Path, name: str) -> Path:
    """A copy of a store that no server has open."""
    shutil.copytree(folder, folder.parent / name)
    return folder.parent / name


def context_of(server: Hosted, lake: Path) -> JobContext:
    """The surroundings of a job that needs no Spark."""
    options = JobOptions(server=Server(server.url), lake=str(lake))
    return JobContext(options, run="r", job="test", clock=server.clock)


def note(server: Hosted, lake: Path, *, end: int | None = None) -> Lake:
    """A lake that says it has the whole log of the server; its files are not looked at here."""
    context = context_of(server, lake)
    manifest = Manifest(LocalFiles(lake))
    manifest.begin("r", 0, server.ask(lambda q: q.identity()), lambda _: None)
    start, through = manifest.lake.through, end or int(server.ask(lambda q: q.log_end()))
    entries = [one for one in log(server) if start <= one[0] < through]
    last = mark_at(context, entries[-1][0])
    manifest.commit("archive", "r", 0, start=start, end=through, entries=len(entries), last=last)
    context.close()
    return lake_of(lake)


def ack_all(server: Hosted) -> None:
    """Let nothing but the archive keep the log."""
    deliveries = server.claim("orders", 100)

    async def ack(broker: Broker) -> None:
        for delivery in deliveries:
            await broker.ack(delivery)

    server.ask(ack)


@law("A1")
def test_a_reset_store_is_not_archived_into_the_old_lake(
    opens: Opens, lake: Path, tmp_path: Path
) -> None:
    first = opens(tmp_path / "first")
    first.publish("orders", *[b"old %d" % n for n in range(20)])
    before = note(first, lake)
    reset = opens(tmp_path / "reset")
    reset.publish("orders", *[b"new %d" % n for n in range(10)])
    for job in (archive, retention, report):
        with pytest.raises(OtherStore) as refused:
            run(reset, None, job, lake=lake)
        assert (refused.value.law, refused.value.field) == ("A1", "store")
    assert lake_of(lake) == before
    context = context_of(reset, lake)
    check = _check_identity(context, LocalFiles(lake), before)
    context.close()
    assert (check.law, check.violation_count) == ("A1", 1)
    ack_all(reset)
    assert entries(reset) == 10


@law("A1")
def test_a_restored_backup_keeps_what_is_in_no_lake(
    opens: Opens, lake: Path, tmp_path: Path
) -> None:
    """Both stores go on after the backup: offsets of one mean other messages in the other."""
    original = opens(tmp_path / "store")
    original.publish("orders", b"before")
    original.stop()
    backup = copy_of(tmp_path / "store", "backup")
    first = opens(copy_of(backup, "went-on"))
    first.publish("orders", *[b"lost %d" % n for n in range(10)])
    note(first, lake)
    restored = opens(copy_of(backup, "restored"))
    restored.publish("orders", *[b"new %d" % n for n in range(10)])
    with pytest.raises(OtherStore, match="restored or copied") as refused:
        run(restored, None, archive, lake=lake)
    assert "--adopt" in refused.value.advice
    # Asked for explicitly, it is still refused: the logs have parted.
    with pytest.raises(OtherStore, match="message"):
        run(restored, None, archive, lake=lake, adopt=True)
    ack_all(restored)
    assert entries(restored) == 11


@law("A1")
def test_a_log_that_is_behind_its_lake_in_the_same_epoch(
    opens: Opens, lake: Path, tmp_path: Path
) -> None:
    """A snapshot that was rolled back looks like the same store; its log is too short."""
    server = opens(tmp_path / "store")
    server.publish("orders", b"1", b"2", b"3")
    note(server, lake, end=4)
    with pytest.raises(OtherStore, match="log ends at 3"):
        run(server, None, archive, lake=lake)
    server.publish("orders", b"4", b"5")
    commit = lake / "messages/_delta_log/00000000000000000001.json"
    commit.write_text(commit.read_text().replace('"published_at":', '"published_at":1'))
    with pytest.raises(OtherStore, match="another version"):
        run(server, None, archive, lake=lake)


@law("A1")
def test_a_store_that_is_rolled_back_while_a_run_goes_on(
    opens: Opens, lake: Path, tmp_path: Path
) -> None:
    """The rollback leaves ``PLACE`` as it is, and the log has caught up with the lake since."""
    folder, backup = tmp_path / "store", tmp_path / "backup"
    server = opens(folder)
    server.publish("orders", b"before")
    server.stop()
    shutil.copytree(folder, backup)
    server = opens(folder)
    server.publish("orders", *[b"lost %d" % n for n in range(9)])
    note(server, lake)
    context = context_of(server, lake)
    archiver = Archiver(context)
    archiver.begin()
    archiver.archive()
    server.stop()
    for path in folder.iterdir():
        if path.name != "PLACE":
            path.unlink()
    shutil.copytree(backup, folder, dirs_exist_ok=True, ignore=lambda *_: ["PLACE"])
    rolled_back = opens(folder)
    rolled_back.publish("orders", *[b"new %d" % n for n in range(9)])
    context.remote.close()
    context.remote = Server(rolled_back.url).open()
    for call in (archiver.archive, archiver._tell):
        with pytest.raises(OtherStore, match="ends with message"):
            call()
    context.close()
    assert lake_of(lake).store == rolled_back.ask(lambda q: q.identity())
    ack_all(rolled_back)
    assert entries(rolled_back) == 10


@law("A1")
def test_entries_that_the_lake_left_out_are_not_told_to_be_archived(
    opens: Opens, lake: Path, tmp_path: Path
) -> None:
    """A store from before the lake's first entry was archived is restored, and adopts the lake."""
    server = opens(tmp_path / "store")
    server.publish("orders", *[b"%d" % n for n in range(10)])
    note(server, lake)
    commit = lake / "messages/_delta_log/00000000000000000001.json"
    commit.write_text(commit.read_text().replace('"began":0', '"began":4'))
    assert lake_of(lake).began == 4
    for adopt in (False, True):
        with pytest.raises(OtherStore, match="nothing between the offsets 0 and 4"):
            run(server, None, archive, lake=lake, adopt=adopt)
    ack_all(server)
    assert entries(server) == 10


@law("X1")
@pytest.mark.parametrize("kept, name", [(0, "0-2-1-0"), (1, "0-2-3-0"), (2, "2-4-4-0")])
def test_files_of_commits_that_the_manifest_has_lost_are_kept(
    opens: Opens, lake: Path, tmp_path: Path, kept: int, name: str
) -> None:
    """They were committed, and may be the only copies of what they hold."""
    server = opens(tmp_path / "store")
    server.publish("orders", b"1", b"2")
    note(server, lake)
    file = lake / f"messages/date=2026-01-01/topic=orders/{name}.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"rows")
    for commit in sorted((lake / "messages/_delta_log").iterdir())[kept:]:
        commit.unlink()
    before = lake_of(lake)
    with pytest.raises(LakeCorrupt, match=f"ends with commit {kept}.*{name}"):
        run(server, None, archive, lake=lake)
    assert file.exists()
    assert lake_of(lake) == before


@law("X1")
def test_files_of_the_last_commit_are_kept_where_the_log_has_lost_their_entries(
    opens: Opens, lake: Path, tmp_path: Path
) -> None:
    server = opens(tmp_path / "store")
    server.publish("orders", b"1", b"2")
    note(server, lake)
    server.advance(2 * HOUR_MS)
    server.publish("orders", b"3", b"4")
    file = lake / "messages/date=2026-01-01/topic=orders/2-4-3-0.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"rows")
    ack_all(server)
    store = server.ask(lambda q: q.identity())
    server.ask(lambda q: q.archived(3, store))
    server.forget()
    assert server.ask(lambda q: q.log_trimmed()) == 4
    with pytest.raises(OffsetsGone):
        run(server, None, archive, lake=lake)
    assert file.exists()


def test_a_lake_is_continued_after_a_restore_that_lost_nothing(
    opens: Opens, spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    first = opens(tmp_path / "store")
    first.publish("orders", b"1", b"2")
    run(first, spark, archive, lake=lake, **PLAIN)
    first.stop()
    moved = opens(copy_of(tmp_path / "store", "moved"))
    moved.publish("orders", b"4")
    run(moved, spark, archive, lake=lake, adopt=True, **PLAIN)
    assert archived(spark, lake) == log(moved)
    assert lake_of(lake).store == moved.ask(lambda q: q.identity())
    # From here on it is the copy's, and the original is refused.
    with pytest.raises(OtherStore):
        run(opens(tmp_path / "store"), None, archive, lake=lake, adopt=True)


@law("E1")
def test_a_lake_that_is_not_there(opens: Opens, tmp_path: Path) -> None:
    server = opens(tmp_path / "store")
    jobs: list[tuple[Any, dict[str, Any]]] = [
        (verify, {}),
        (retention, {}),
        (replay, {"source": "lake"}),
        (report, {}),
    ]
    for job, options in jobs:
        with pytest.raises(BadInput, match="no lake") as refused:
            run(server, None, job, lake=tmp_path / "typo", **options)
        assert refused.value.field == "lake"
    assert not (tmp_path / "typo").exists()


# -- streams ---------------------------------------------------------------------------


def test_a_checkpoint_of_another_store_fails(opens: Opens, tmp_path: Path) -> None:
    first, other = opens(tmp_path / "first"), opens(tmp_path / "other")
    for server in (first, other):
        server.publish("orders", *[b"x"] * 5)
    reading = stream(first)
    start = reading.initialOffset()
    end = reading.latestOffset(start, ReadAllAvailable())
    reading.stop()
    moved = stream(other)
    for call in (
        lambda: moved.latestOffset(start, ReadAllAvailable()),
        lambda: moved.partitions(start, end),
    ):
        with pytest.raises(OtherStore, match="checkpoint"):
            call()
    moved.stop()
    # Asked to go on whatever is lost, it reads the other log from its start.
    lenient = stream(other, failOnDataLoss=False)
    again = lenient.latestOffset(end, ReadAllAvailable())
    assert (again["offset"], again["store"] != end["store"]) == (5, True)
    assert [(part.start, part.end) for part in lenient.partitions(end, again)] == [(0, 5)]  # type: ignore[attr-defined]
    lenient.stop()


def test_a_checkpoint_beyond_the_end_of_the_log_fails(opens: Opens, tmp_path: Path) -> None:
    server = opens(tmp_path / "store")
    server.publish("orders", b"1", b"2")
    reading = stream(server)
    ahead = {**reading.initialOffset(), "offset": 7}
    for position in (ahead, {"offset": 7}):
        with pytest.raises(OtherStore, match="log ends at 2"):
            reading.latestOffset(position, ReadAllAvailable())
    reading.stop()


@law("A1")
def test_a_store_that_is_replaced_before_its_range_is_read(opens: Opens, tmp_path: Path) -> None:
    """Tasks read after the range was planned, and the server may have another store by then."""
    server = opens(tmp_path / "store")
    server.publish("orders", b"1", b"2")
    streaming, reading = stream(server), reader(server)
    start = streaming.initialOffset()
    end = streaming.latestOffset(start, ReadAllAvailable())
    (streamed,), (planned,) = streaming.partitions(start, end), reading.partitions()
    assert len(list(reading.read(planned))) == 1
    server.ask(lambda q: q.engine.new_epoch())
    for rows in (streaming.read(streamed), reading.read(planned)):
        with pytest.raises(OtherStore, match="The range of offsets 0 to 2"):
            list(rows)
    streaming.stop()


def test_a_batch_that_began_anew_does_so_though_the_log_has_grown(
    opens: Opens, tmp_path: Path
) -> None:
    """Its start is above its end: the position was above the log's end when it was planned."""
    server = opens(tmp_path / "store")
    server.publish("orders", b"1", b"2")
    lenient = stream(server, failOnDataLoss=False)
    ahead = {**lenient.initialOffset(), "offset": 4}
    end = lenient.latestOffset(ahead, ReadAllAvailable())
    assert end["offset"] == 2
    server.publish("orders", b"3", b"4", b"5")
    assert [(part.start, part.end) for part in lenient.partitions(ahead, end)] == [(0, 2)]  # type: ignore[attr-defined]
    lenient.stop()


def test_a_checkpoint_of_an_older_penstock_goes_on(opens: Opens, tmp_path: Path) -> None:
    server = opens(tmp_path / "store")
    server.publish("orders", b"1", b"2")
    reading = stream(server)
    end = reading.latestOffset({"offset": 1}, ReadAllAvailable())
    assert end["offset"] == 2
    assert len(reading.partitions({"offset": 1}, end)) == 1
    reading.stop()
