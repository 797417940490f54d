"""The manifest: commits that are made or not, one run at a time, and what they add up to (A1)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from penstock.errors import Conflict, LakeCorrupt, PipelineError
from penstock.model.identity import StoreIdentity
from penstock.pipeline.lake import manifest as manifests
from penstock.pipeline.lake import table_state
from penstock.pipeline.lake.commits import Block, File, Table
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.hadoop_files import delta_options
from penstock.pipeline.lake.layout import data_digest, is_data
from penstock.pipeline.lake.manifest import Manifest
from penstock.testing.laws import law
from tests.object_stores import BUCKET, s3_endpoint
from tests.service.serving import unused_port

DAY_S = 24 * 3600
STORE = StoreIdentity("0" * 32, "0" * 32)


def file_of(first: int, last: int, commit: int = 0, table: Table = "messages") -> File:
    name = f"{first}-{last + 1}-{commit}-0-A-0.parquet"
    return File(f"{table}/date=2026-01-01/{name}", table, last - first + 1, 1, first, last, "A")


def begun(folder: Path, run: str = "a") -> Manifest:
    manifest = Manifest(LocalFiles(folder))
    manifest.begin(run, 0, STORE, lambda _: None)
    return manifest


def archive(manifest: Manifest, start: int, end: int, at: int = 0) -> None:
    manifest.commit("archive", "a", at, start=start, end=end, entries=end - start)


def read(folder: Path) -> Any:
    return Manifest(LocalFiles(folder)).refresh()


def test_what_was_committed_is_there_for_others(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    one, other = file_of(5, 8), file_of(9, 11)
    manifest.commit("archive", "a", 7, start=5, end=9, entries=3, added=[one])
    manifest.commit("archive", "a", 8, start=9, end=12, entries=3, added=[other])
    both = file_of(5, 11, 4)
    manifest.commit(
        "compact", "a", 9, table="messages", added=[both], removed=[one.path, other.path]
    )
    events = file_of(5, 7, 2, "history")
    manifest.commit("history", "a", 10, start=5, end=9, quiet=True, added=[events])
    lake = read(tmp_path)
    assert lake == manifest.lake
    assert (lake.number, lake.history_number, lake.began, lake.through) == (4, 2, 5, 12)
    assert set(lake.files) == {both.path, events.path}
    assert lake.files[both.path] == both
    assert lake.blocks == (Block(5, 9, 3, 7, 10, quiet=True), Block(9, 12, 3, 8))
    # Readers skip files by what the log says of them.
    (action,) = pa.table(
        DeltaTable(tmp_path / "messages").get_add_actions(flatten=True)
    ).to_pylist()
    assert (action["num_records"], action["min.offset"], action["max.offset"]) == (7, 5, 11)


@law("A1")
def test_a_run_that_others_took_the_lake_from_commits_nothing(tmp_path: Path) -> None:
    first = begun(tmp_path, "a")
    archive(first, 0, 5)
    second = begun(tmp_path, "b")
    assert second.lake.through == 5
    for _ in range(2):
        with pytest.raises(Conflict):
            archive(first, 5, 9)
        with pytest.raises(Conflict):
            first.commit("history", "a", 0, start=0, end=5)
    archive(second, 5, 7)
    third = Manifest(LocalFiles(tmp_path))
    assert third.refresh().through == 7
    with pytest.raises(Conflict):
        third.hold()


@law("A1")
def test_a_run_makes_the_commit_durable_that_a_killed_one_left(tmp_path: Path) -> None:
    class Killed(LocalFiles):
        def sync(self, paths: Sequence[str]) -> None:
            raise InterruptedError(paths[0])

    synced: list[str] = []

    class Recording(LocalFiles):
        def sync(self, paths: Sequence[str]) -> None:
            synced.extend(paths)
            super().sync(paths)

    begun(tmp_path, "a")
    killed = Manifest(LocalFiles(tmp_path))
    killed.begin("b", 0, STORE, lambda _: None)
    killed._files = Killed(tmp_path)
    with pytest.raises(InterruptedError) as unsynced:
        archive(killed, 0, 5)
    next_run = Manifest(Recording(tmp_path))
    next_run.begin("c", 0, STORE, lambda _: None)
    assert next_run.lake.through == 5
    assert str(unsynced.value) in synced


@law("A1")
@pytest.mark.parametrize("table", ["messages", "history"])
def test_of_two_commits_at_once_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    first = begun(tmp_path, "a")
    archive(first, 0, 3)
    # The other run begins after this one has looked, and before it writes.
    monkeypatch.setattr(Manifest, "hold", lambda self: None)
    begun(tmp_path, "b")
    kind, start, end = ("archive", 3, 5) if table == "messages" else ("history", 0, 3)
    with pytest.raises(Conflict):
        first.commit(kind, "a", 0, start=start, end=end)  # type: ignore[arg-type]
    lake = read(tmp_path)
    assert (lake.through, lake.blocks[0].read_at) == (3, None)


@law("A1")
def test_of_many_runs_that_begin_at_once_one_owns_both_tables(tmp_path: Path) -> None:
    found: list[Manifest] = []
    errors: list[Exception] = []

    def begin(number: int) -> None:
        try:
            found.append(begun(tmp_path, f"run-{number}"))
        except Conflict as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) + len(errors) == 4
    owners = []
    for manifest in found:
        try:
            archive(manifest, 0, 5)
            manifest.commit("history", "a", 0, start=0, end=5)
        except Conflict:
            continue
        owners.append(manifest)
    assert len(owners) <= 1
    again = begun(tmp_path, "last")
    assert again.lake.through == (5 if owners else 0)


def test_a_run_that_dies_between_the_two_tables_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = begun(tmp_path, "a")
    archive(owner, 0, 5)
    write = Manifest._write

    def dies(self: Manifest, table: Table, *rest: Any) -> bool:
        if table == "history":
            raise KeyboardInterrupt
        return write(self, table, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "_write", dies)
        with pytest.raises(KeyboardInterrupt):
            begun(tmp_path, "b")
    with pytest.raises(Conflict):
        archive(owner, 5, 9)
    last = begun(tmp_path, "c")
    # The numbers of files that the dead run may have left, and of those before it.
    assert last.begins == {"messages": (1, 3, 4), "history": (1, 2)}
    archive(last, 5, 9)
    last.commit("history", "c", 0, start=0, end=5)
    assert read(tmp_path) == last.lake


def test_blocks_that_are_read_together_become_one(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    for start, at in ((0, 1), (10, 2), (20, 3), (40, 4)):
        archive(manifest, start, start + 10, at)
    manifest.commit("history", "a", 9, start=0, end=20, quiet=True)
    expected = (Block(0, 20, 20, 2, 9, True), Block(20, 30, 10, 3), Block(40, 50, 10, 4))
    assert manifest.lake.blocks == read(tmp_path).blocks == expected
    manifest.commit("history", "a", 10, start=20, end=30, settled=True)
    manifest.commit("history", "a", 11, start=0, end=20, settled=True)
    assert [(block.start, block.end) for block in read(tmp_path).blocks] == [(0, 30), (40, 50)]
    assert list(manifest.lake.gaps()) == [(30, 40)]
    with pytest.raises(LakeCorrupt):
        manifest.commit("history", "a", 12, start=0, end=25)


def test_blocks_without_histories_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_state, "_MOST_BLOCKS", 4)
    manifest = begun(tmp_path)
    for start in range(9):
        archive(manifest, start, start + 1, start)
    blocks = read(tmp_path).blocks
    assert len(blocks) <= 4
    assert blocks == manifest.lake.blocks
    assert (blocks[0].start, blocks[-1].end, sum(b.entries for b in blocks)) == (0, 9, 9)
    assert not list(manifest.lake.gaps())


@pytest.mark.parametrize("start, end", [(3, 9), (9, 7)])
def test_no_range_is_archived_twice(tmp_path: Path, start: int, end: int) -> None:
    manifest = begun(tmp_path)
    archive(manifest, 0, 5)
    with pytest.raises(LakeCorrupt):
        archive(manifest, start, end)
    assert read(tmp_path).through == 5


def test_a_file_is_added_once_and_removed_if_it_is_there(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    manifest.commit("archive", "a", 0, start=0, end=2, added=[file_of(0, 1)])
    with pytest.raises(LakeCorrupt, match="0-2-0-0"):
        manifest.commit("compact", "a", 0, table="messages", added=[file_of(0, 1)])
    with pytest.raises(LakeCorrupt, match=r"messages/9\.parquet"):
        manifest.commit("compact", "a", 0, table="messages", removed=["messages/9.parquet"])


def test_a_checkpoint_is_the_sum_of_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "CHECKPOINT_EVERY", 5)
    manifest = begun(tmp_path)
    for number in range(8):
        added = [file_of(number, number, number + 2)]
        manifest.commit("archive", "a", 0, start=number, end=number + 1, entries=1, added=added)
    folder = tmp_path / "messages/_delta_log"
    (point,) = folder.glob("*.checkpoint.parquet")
    assert point.name.startswith(f"{5:020d}")
    for number in range(5):
        (folder / f"{number:020d}.json").unlink()
    lake = read(tmp_path)
    assert lake == manifest.lake
    assert len(lake.files) == 8
    # One who has read them before goes on from where it was.
    archive(manifest, 8, 9)
    assert read(tmp_path).through == 9


def test_commits_that_are_a_month_old_go_and_the_lake_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "CHECKPOINT_EVERY", 4)
    manifest = begun(tmp_path)
    for number in range(6):
        archive(manifest, number, number + 1)
    folder = tmp_path / "messages/_delta_log"
    month_ago = time.time() - 31 * DAY_S
    for path in folder.iterdir():
        os.utime(path, (month_ago, month_ago))
    for number in range(6, 9):
        archive(manifest, number, number + 1)
    names = {path.name for path in folder.glob("*.json")}
    assert f"{0:020d}.json" not in names
    assert f"{8:020d}.json" in names
    assert read(tmp_path) == manifest.lake
    assert manifest.lake.through == 9


@law("A1")
def test_a_commit_that_was_made_though_it_was_reported_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an object store that answers a repeated request: the object is there already."""
    manifest = begun(tmp_path)
    log = manifest._logs["messages"]
    commit = DeltaTable.create_write_transaction

    def twice(self: DeltaTable, *args: Any, **options: Any) -> None:
        commit(self, *args, **options)
        commit(self, *args, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", twice)
    archive(manifest, 0, 5)
    assert manifest.lake.through == read(tmp_path).through == 5
    found = log.read()
    assert found is not None
    assert found.version == 1


@law("X1")
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    archive(manifest, 0, 5)
    archive(manifest, 5, 9)
    folder = tmp_path / "messages/_delta_log"
    middle, last = folder / f"{1:020d}.json", folder / f"{2:020d}.json"
    whole = last.read_text()
    for text, says in (
        (whole[: len(whole) // 2], "cannot be read"),
        (whole.replace('"format":1', '"format":2'), "newer Penstock"),
        (whole.replace('"token"', '"other"'), "no state of a lake"),
        (whole.replace('"number":3', '"number":"3"'), "no state of a lake"),
    ):
        last.write_text(text)
        with pytest.raises(LakeCorrupt, match=says):
            read(tmp_path)
    last.write_text(whole)
    middle.rename(tmp_path / "kept")
    with pytest.raises(LakeCorrupt, match="cannot be read"):
        read(tmp_path)


@law("X1")
def test_a_table_that_another_program_changed_is_refused(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    manifest.commit("archive", "a", 0, start=0, end=2, entries=2, added=[file_of(0, 1)])
    before = manifest.lake
    table = DeltaTable(tmp_path / "messages")
    # A change of properties, or a vacuum, is no change of what is in it.
    table.alter.set_table_description("the archive")
    assert read(tmp_path) == replace(before, number=before.number + 1)
    # A run goes on after it, and a file that it was about to commit is no lost commit.
    manifest.commit("archive", "a", 0, start=2, end=3, entries=1, added=[file_of(2, 2, 4)])
    assert read(tmp_path).number == 4
    table.update_incremental()
    table.delete()
    with pytest.raises(LakeCorrupt, match="another program changed the table"):
        read(tmp_path)
    with pytest.raises(LakeCorrupt):
        archive(manifest, 3, 4)


@law("X1")
def test_a_delta_table_that_is_no_lake_is_left_alone(tmp_path: Path) -> None:
    begun(tmp_path / "other")
    DeltaTable.create(tmp_path / "messages", DeltaTable(tmp_path / "other/messages").schema())
    with pytest.raises(LakeCorrupt, match="no commit of an archiving run"):
        begun(tmp_path)
    assert not (tmp_path / "history").exists()


class S3Files(LocalFiles):
    """A lake whose Delta logs are on an S3 server; there is no Hadoop client for the rest."""

    def __init__(self, folder: Path, endpoint: str, prefix: str) -> None:
        super().__init__(folder)
        self._endpoint, self._prefix = endpoint, prefix

    def uri_for_delta(self, path: str) -> str:
        return f"s3://{BUCKET}/{self._prefix}/{path}"

    def options_for_delta(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        return delta_options(
            {"AWS_ENDPOINT_URL": self._endpoint, "AWS_REGION": "us-east-1", **keys}
        )

    def sync(self, paths: Any) -> None:
        """Objects are durable."""


@law("E1")
def test_a_store_that_does_not_answer_is_no_damage(tmp_path: Path) -> None:
    manifest = Manifest(S3Files(tmp_path, f"http://127.0.0.1:{unused_port()}", "lake"))
    with pytest.raises(PipelineError, match="cannot be reached") as caught:
        manifest.refresh()
    assert not isinstance(caught.value, LakeCorrupt)


@law("A1")
@pytest.mark.parametrize("name", ["moto", "seaweedfs"])
def test_commits_on_an_object_store_are_conditional(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, prefix = s3_endpoint(name), f"lake-{tmp_path.name}-{name}"

    def opened(run: str) -> Manifest:
        manifest = Manifest(S3Files(tmp_path, endpoint, prefix))
        manifest.begin(run, 0, STORE, lambda _: None)
        return manifest

    first = opened("a")
    archive(first, 0, 5)
    first.commit("history", "a", 1, start=0, end=5, added=[file_of(0, 4, 2, "history")])
    second = opened("b")
    with pytest.raises(Conflict):
        archive(first, 5, 9)
    # It has looked before the other began.
    third = opened("c")
    monkeypatch.setattr(Manifest, "hold", lambda self: None)
    with pytest.raises(Conflict):
        archive(second, 5, 9)
    archive(third, 5, 7)
    lake = Manifest(S3Files(tmp_path, endpoint, prefix)).refresh()
    assert lake == third.lake
    assert (lake.through, len(lake.files)) == (7, 1)


def test_the_name_of_a_file_has_its_digest() -> None:
    assert data_digest(file_of(0, 1).path) == ("A", 0)
    assert data_digest("messages/date=2026-11-15/topic=t/0-9-3-0.parquet") is None


@pytest.mark.parametrize(
    "path, ours",
    [
        ("messages/date=2026-11-15/topic=t/0-9-3-0.parquet", True),
        ("history/date=2026-11-15/0-9-3-10.parquet", True),
        ("messages/date=2026-11-15/0-9-3-0-9DD5EAD539994318-88780.parquet", True),
        ("messages/date=2026-11-15/topic=t/mine.parquet", False),
        ("messages/_delta_log/0-9-3-0.parquet", False),
        ("messages/date=2026-11-15/topic=t/.0-9-3-0.parquet.crc", False),
    ],
)
def test_only_what_a_run_has_written_is_a_leftover(path: str, ours: bool) -> None:
    assert is_data(path) is ours
