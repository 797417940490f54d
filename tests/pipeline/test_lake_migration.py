"""Lakes that Penstock wrote before its lakes were Delta tables: read as they are, then moved.

``earlier_lakes`` has two of them, as archived by that version in three runs of three messages
each: one with the JSON manifest alone, one with Delta logs beside it (``--table-format delta``).
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.errors import LakeCorrupt, OtherStore
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.retention import retention
from penstock.pipeline.jobs.verify import verify
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.json_manifest import JsonManifest
from penstock.pipeline.lake.manifest import Manifest
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import archived, lake_of, left_over, log

EARLIER = Path(__file__).parent / "earlier_lakes"
PLAIN: Any = {"history": False, "compaction": False}


@pytest.fixture(params=["parquet", "delta"])
def earlier(request: pytest.FixtureRequest, tmp_path: Path, server: Hosted) -> Path:
    """An earlier lake, of the store of the server: its log has the same messages."""
    lake = tmp_path / "lake"
    with tarfile.open(EARLIER / f"{request.param}.tar.gz") as packed:
        packed.extractall(lake, filter="data")
    for number in range(3):
        server.publish("007", NewMessage(b"first %d" % number, {"n": number}), NewMessage(b""))
        server.publish("1e3", NewMessage(b"second %d" % number, key=f"k{number}"))
        server.advance(1000)
    set_store(lake, server)
    return lake


def set_store(lake: Path, server: Hosted | None) -> None:
    """Make it the lake of this store, or of an even older version, which did not say whose."""
    identity = None if server is None else server.ask(lambda q: q.identity())
    old = JsonManifest(LocalFiles(lake)).read()[0].store
    assert old is not None
    for path in (lake / "_penstock/manifest").glob("*.json"):
        text = path.read_text()
        if identity is None:
            text = text.replace('"store":{', '"was":{').replace('"last":{', '"ended":{')
        else:
            text = text.replace(old.store, identity.store).replace(old.epoch, identity.epoch)
        path.write_text(text)


@law("A1")
def test_it_is_read_as_it_is_and_moved_by_the_next_archive(
    server: Hosted, spark: SparkSession, earlier: Path
) -> None:
    before = lake_of(earlier)
    assert (before.number, before.through, len(before.files)) == (9, 9, 7)
    assert archived(spark, earlier) == log(server)
    kept = run(server, spark, retention, lake=earlier, run="r", dry_run=True)
    assert (kept["verified_through"], kept["files_verified"]) == (9, 6)
    server.publish("new", b"more")
    assert run(server, spark, archive, lake=earlier, **PLAIN)["entries"] == 1

    after = lake_of(earlier)
    assert archived(spark, earlier) == log(server)
    assert set(before.files) < set(after.files)
    assert (after.through, after.store) == (10, before.store)
    assert after.blocks[:1] == before.blocks[:1]
    assert left_over(earlier) == []
    # The new file is where the readers of the old ones look for it, and every reader sees all.
    assert any("/topic=new/0-10-" in path or "/topic=new/9-10-" in path for path in after.files)
    rows = DeltaTable(earlier / "messages").to_pyarrow_table().sort_by("offset").to_pylist()
    assert [(row["offset"], row["id"], row["topic"], row["value"]) for row in rows] == log(server)
    assert run(server, spark, verify, lake=earlier, run="v")["violations"] == 0
    # The version that wrote it does not go on with it.
    last = max((earlier / "_penstock/manifest").glob("*.json"))
    assert '"version":2' in last.read_text()


@law("A1")
def test_of_another_store_it_is_refused(
    server: Hosted, spark: SparkSession, earlier: Path, tmp_path: Path
) -> None:
    set_store(earlier, None)
    other = Hosted(f"rocksdb://{tmp_path}/other").start()
    try:
        other.publish("orders", *[b"%d" % n for n in range(9)])
        with pytest.raises(OtherStore, match="9 differ"):
            run(other, spark, archive, lake=earlier)
    finally:
        other.stop()
    manifest = JsonManifest(LocalFiles(earlier))
    assert manifest.read()[1] is False
    run(server, spark, archive, lake=earlier, run="run-2", **PLAIN)
    assert lake_of(earlier).store == server.ask(lambda q: q.identity())


@law("A1")
@pytest.mark.parametrize("name", ["create", "commit"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_move_that_is_killed_is_finished_by_the_next_run(
    server: Hosted, earlier: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    from penstock.pipeline.lake.delta import DeltaLog

    before = lake_of(earlier)
    store = server.ask(lambda q: q.identity())
    left = [number]

    def dies(self: DeltaLog, *args: Any, **options: Any) -> bool:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return whole(self, *args, **options)

    whole = getattr(DeltaLog, name)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, name, dies)
        try:
            Manifest(LocalFiles(earlier)).begin("a", 0, store, lambda _: None)
        except KeyboardInterrupt:
            # Its tables are not complete, so what the earlier manifest says is what counts.
            assert lake_of(earlier) == before
    manifest = Manifest(LocalFiles(earlier))
    manifest.begin("b", 0, store, lambda _: None)
    assert manifest.lake == lake_of(earlier)
    assert {p: f.digest for p, f in manifest.lake.files.items()} == {
        p: f.digest for p, f in before.files.items()
    }
    assert manifest.lake.blocks == before.blocks


@law("A1")
def test_an_earlier_version_that_commits_meanwhile_is_taken_along(
    server: Hosted, earlier: Path
) -> None:
    store = server.ask(lambda q: q.identity())
    text = (
        '{"version":1,"number":10,"run":"x","at":1,"kind":"archive","start":9,"end":12,"entries":0}'
    )
    path = earlier / "_penstock/manifest/00000000000000000010.json"
    manifest = Manifest(LocalFiles(earlier))
    seen = []

    def check(lake: Any) -> None:
        seen.append(lake.through)
        if len(seen) == 1:
            path.write_text(text)

    manifest.begin("b", 0, store, check)
    assert (seen, lake_of(earlier).through) == ([9, 12], 12)


@law("X1")
@pytest.mark.parametrize("earlier", ["parquet"], indirect=True)
def test_an_earlier_manifest_that_cannot_be_read_is_refused(earlier: Path) -> None:
    folder = earlier / "_penstock/manifest"
    second = folder / "00000000000000000002.json"
    whole = second.read_bytes()
    for data, says in (
        (b"", "cannot be read"),
        (whole[:-5], "cannot be read"),
        (whole.replace(b'"number":2', b'"number":3'), "contains commit 3"),
        (b'{"version":3,"something":"else"}', "newer Penstock"),
    ):
        second.write_bytes(data)
        with pytest.raises(LakeCorrupt, match=says):
            lake_of(earlier)
    second.unlink()
    with pytest.raises(LakeCorrupt, match="Commit 2 of the manifest is missing"):
        lake_of(earlier)
