"""The manifest: commits that are made or not, one run at a time, and what they add up to (A1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import Conflict, LakeCorrupt
from penstock.model.identity import StoreIdentity
from penstock.pipeline.lake.commits import Block, File
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.layout import commit_name, is_data
from penstock.pipeline.lake.manifest import CHECKPOINT_EVERY, Manifest
from penstock.testing.laws import law

DAY_MS = 24 * 3600 * 1000


def file_of(first: int, last: int, path: str | None = None) -> File:
    return File(
        path or f"messages/{first}.parquet", "messages", last - first + 1, 1, first, last, "A"
    )


def begun(folder: Path, run: str = "a") -> Manifest:
    manifest = Manifest(LocalFiles(folder))
    manifest.begin(run, 0, StoreIdentity("0" * 32, "0" * 32), lambda _: None)
    return manifest


def archive(manifest: Manifest, start: int, end: int, at: int = 0) -> None:
    manifest.commit("archive", "a", at, start=start, end=end, entries=end - start)


def test_what_was_committed_is_there_for_others(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    manifest.commit("archive", "a", 7, start=5, end=9, entries=3, added=[file_of(5, 8)])
    manifest.commit("archive", "a", 8, start=9, end=12, entries=3, added=[file_of(9, 11)])
    manifest.commit(
        "compact",
        "a",
        9,
        added=[file_of(5, 11, "messages/new.parquet")],
        removed=["messages/5.parquet", "messages/9.parquet"],
    )
    lake = Manifest(LocalFiles(tmp_path)).refresh()
    assert lake == manifest.lake
    assert (lake.number, lake.began, lake.through) == (4, 5, 12)
    assert list(lake.files) == ["messages/new.parquet"]
    assert lake.blocks == (Block(5, 9, 3, 7), Block(9, 12, 3, 8))


@law("A1")
def test_a_run_that_others_took_the_lake_from_commits_nothing(tmp_path: Path) -> None:
    first = begun(tmp_path, "a")
    archive(first, 0, 5)
    second = begun(tmp_path, "b")
    assert second.lake.through == 5
    for _ in range(2):
        with pytest.raises(Conflict):
            archive(first, 5, 9)
    archive(second, 5, 7)
    third = Manifest(LocalFiles(tmp_path))
    assert third.refresh().through == 7
    with pytest.raises(Conflict):
        third.hold()


def test_of_two_commits_at_once_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(tmp_path, "a")
    # The other run begins after this one has looked, and before it writes.
    monkeypatch.setattr(Manifest, "hold", lambda self: None)
    begun(tmp_path, "b")
    with pytest.raises(Conflict):
        archive(first, 0, 5)
    assert Manifest(LocalFiles(tmp_path)).refresh().through == 0


def test_blocks_that_are_read_together_become_one(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    for start, at in ((0, 1), (10, 2), (20, 3), (40, 4)):
        archive(manifest, start, start + 10, at)
    manifest.commit("history", "a", 9, start=0, end=20, quiet=True)
    assert manifest.lake.blocks == (
        Block(0, 20, 20, 2, 9, True),
        Block(20, 30, 10, 3),
        Block(40, 50, 10, 4),
    )
    manifest.commit("history", "a", 10, start=20, end=30, settled=True)
    manifest.commit("history", "a", 11, start=0, end=20, settled=True)
    assert [(block.start, block.end) for block in manifest.lake.blocks] == [(0, 30), (40, 50)]
    assert list(manifest.lake.gaps()) == [(30, 40)]
    with pytest.raises(LakeCorrupt):
        manifest.commit("history", "a", 12, start=0, end=25)


@pytest.mark.parametrize("start, end", [(3, 9), (9, 7)])
def test_no_range_is_archived_twice(tmp_path: Path, start: int, end: int) -> None:
    manifest = begun(tmp_path)
    archive(manifest, 0, 5)
    with pytest.raises(LakeCorrupt):
        archive(manifest, start, end)
    assert Manifest(LocalFiles(tmp_path)).refresh().through == 5


def test_a_file_is_added_once_and_removed_if_it_is_there(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    manifest.commit("archive", "a", 0, start=0, end=2, added=[file_of(0, 1)])
    with pytest.raises(LakeCorrupt, match=r"messages/0\.parquet"):
        manifest.commit("compact", "a", 0, added=[file_of(0, 1)])
    with pytest.raises(LakeCorrupt, match=r"messages/9\.parquet"):
        manifest.commit("compact", "a", 0, removed=["messages/9.parquet"])


def test_a_checkpoint_is_the_sum_of_the_commits(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    for number in range(CHECKPOINT_EVERY + 3):
        archive(manifest, number, number + 1)
    (point,) = (tmp_path / "_penstock/manifest").glob("*.checkpoint.json")
    for commit in sorted((tmp_path / "_penstock/manifest").glob("*.json"))[:CHECKPOINT_EVERY]:
        if commit != point:
            commit.unlink()
    assert Manifest(LocalFiles(tmp_path)).refresh() == manifest.lake
    # One who has read them before goes on from where it was.
    archive(manifest, CHECKPOINT_EVERY + 3, CHECKPOINT_EVERY + 4)
    assert manifest.lake.through == CHECKPOINT_EVERY + 4


def test_commits_that_were_added_up_a_week_ago_go(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    folder = tmp_path / "_penstock/manifest"
    for number in range(3 * CHECKPOINT_EVERY):
        archive(manifest, number, number + 1, at=number * DAY_MS // 10)
    names = sorted(path.name for path in folder.iterdir())
    # 19 days in all, checkpoints every 6.4: of the first one's commits none is left.
    assert commit_name(1).rpartition("/")[2] not in names
    assert commit_name(CHECKPOINT_EVERY).rpartition("/")[2] not in names
    assert commit_name(CHECKPOINT_EVERY + 1).rpartition("/")[2] in names
    assert Manifest(LocalFiles(tmp_path)).refresh() == manifest.lake


@law("X1")
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    archive(manifest, 0, 5)
    archive(manifest, 5, 9)
    second = tmp_path / commit_name(2)
    whole = second.read_bytes()
    for data, says in (
        (b"", "cannot be read"),
        (whole[:-5], "cannot be read"),
        (whole.replace(b'"number":2', b'"number":3'), "contains commit 3"),
        (b'{"version":2,"something":"else"}', "newer Penstock"),
    ):
        second.write_bytes(data)
        with pytest.raises(LakeCorrupt, match=says):
            Manifest(LocalFiles(tmp_path)).refresh()
    second.unlink()
    with pytest.raises(LakeCorrupt, match="Commit 2 of the manifest is missing"):
        Manifest(LocalFiles(tmp_path)).refresh()


@pytest.mark.parametrize(
    "path, ours",
    [
        ("messages/date=2026-11-15/topic=t/0-9-3-0.parquet", True),
        ("history/date=2026-11-15/0-9-3-10.parquet", True),
        ("messages/date=2026-11-15/topic=t/mine.parquet", False),
        ("messages/_delta_log/0-9-3-0.parquet", False),
        ("messages/date=2026-11-15/topic=t/.0-9-3-0.parquet.crc", False),
    ],
)
def test_only_what_a_run_has_written_is_a_leftover(path: str, ours: bool) -> None:
    assert is_data(path) is ours
