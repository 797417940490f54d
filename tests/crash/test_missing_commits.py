"""Files that are cut, removed or exchanged below a RocksDB store: no commit is lost unnoticed (X1).

RocksDB by itself opens a store whose older write-ahead log was cut by a byte or removed, and a
store whose last one is gone. ``file_damage`` has the random damages; these are the ones that were
lost in silence, and what ``repair`` makes of them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from penstock.errors import CommitsMissing, StoreCorrupt
from penstock.model.message import Durability, NewMessage, Offset
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters.mark_file import MARK_FILE, MarkFile
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.repair import LOSS_KIND, accept_loss, examine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.crash.file_damage import (
    COMMITS_PER_MARK,
    QUEUE,
    SILENT,
    TAIL,
    Builder,
    Image,
    run,
    small_files,
)
from tests.crash.program import ALL, TENANT
from tests.crash.workload import store_url
from tests.live_copy import copy_store

DAMAGES = 40


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    with small_files(keep_logs=True):
        built = asyncio.run(Builder(tmp_path_factory.mktemp("images"), 3).build())
    return {image.path.name: image for image in built}


@pytest.fixture
def killed(images: dict[str, Image], tmp_path: Path) -> tuple[Image, Path]:
    """A store as a kill left it, and a copy of it to damage."""
    image = images["killed"]
    return image, Path(shutil.copytree(image.path, tmp_path / "store"))


def logs(path: Path) -> list[Path]:
    """The write-ahead logs with something in them."""
    found = sorted(log for log in path.glob("*.log") if log.stat().st_size)
    assert len(found) > 1, "the image has one log only"
    return found


def contents(path: Path) -> dict[str, bytes]:
    """Every file but RocksDB's own text log."""
    files = (file for file in path.iterdir() if file.is_file() and file.name != "LOG")
    return {file.name: file.read_bytes() for file in files}


async def refused(path: Path) -> StoreCorrupt:
    """The store refuses to open, and the refusal changes nothing."""
    before = contents(path)
    with pytest.raises(StoreCorrupt) as caught:
        await open_engine(store_url(str(path)))
    assert contents(path) == before
    return caught.value


@law("X1")
@pytest.mark.parametrize("scheme", ["rocksdb", "files"])
async def test_random_damage_is_never_silent(tmp_path: Path, scheme: str) -> None:
    # A copy of a store in files is hundreds of files.
    outcomes = await run(tmp_path, DAMAGES if scheme == "rocksdb" else DAMAGES // 2, 7, scheme)
    assert [outcome for outcome in outcomes if outcome.fate == SILENT] == []
    tails = [outcome for outcome in outcomes if outcome.fate == TAIL]
    assert all(outcome.lost_commits <= COMMITS_PER_MARK for outcome in tails)
    assert len(Counter(outcome.fate for outcome in outcomes)) >= 3


@law("X1")
async def test_an_older_log_that_lost_a_byte_is_refused(killed: tuple[Image, Path]) -> None:
    _, path = killed
    older = logs(path)[0]
    older.write_bytes(older.read_bytes()[:-1])
    assert isinstance(await refused(path), CommitsMissing)


@law("X1")
async def test_a_missing_older_log_is_refused(killed: tuple[Image, Path]) -> None:
    _, path = killed
    logs(path)[0].unlink()
    assert isinstance(await refused(path), CommitsMissing)


@law("X1")
async def test_a_missing_last_log_is_refused(images: dict[str, Image], tmp_path: Path) -> None:
    """Once its commits are marked; the log itself is not in the manifest yet."""
    with small_files():
        builder = Builder(tmp_path, 5)
        engine = await builder.open()
        await builder.work(engine, 2 * COMMITS_PER_MARK)
        await engine._committer._marks.close()  # type: ignore[union-attr]
        builder.copy(engine, "marked")
        await engine.close()
    logs_ = sorted((tmp_path / "marked").glob("*.log"))
    logs_[-1].unlink()
    error = await refused(tmp_path / "marked")
    assert isinstance(error, CommitsMissing)
    assert "penstock repair" in str(error)


@law("X1")
async def test_a_removed_mark_is_refused(killed: tuple[Image, Path]) -> None:
    _, path = killed
    (path / MARK_FILE).unlink()
    assert isinstance(await refused(path), CommitsMissing)


async def test_tables_without_the_files_that_name_them_are_refused(
    images: dict[str, Image], tmp_path: Path
) -> None:
    """RocksDB would begin a new store and remove the tables; ``repair`` leaves them alone, too."""
    path = Path(shutil.copytree(images["closed"].path, tmp_path / "store"))
    for name in contents(path):
        if name in ("CURRENT", MARK_FILE) or name.endswith(".log"):
            (path / name).unlink()
    await refused(path)
    with pytest.raises(StoreCorrupt):
        await accept_loss(path, EngineOptions(clock=FakeClock()))
    await refused(path)
    assert any(name.endswith(".sst") for name in contents(path))


@law("X1")
async def test_a_store_of_an_older_version_gets_a_chain(
    images: dict[str, Image], tmp_path: Path
) -> None:
    """Without links and with the file that older versions wrote, it opens; from then on it is
    protected."""
    path = tmp_path / "store"
    engine = await open_engine(store_url(str(path)))
    assert isinstance(engine, KeyValueEngine)
    engine._core.chain = engine._committer._chain = engine._committer._marks = None
    await engine.publish(TENANT, QUEUE, [NewMessage(b"old")])
    adapter = engine._core.adapter
    adapter.write({}, [(b"\x01\x07\x19", b"\x01\x07\x1a")], True)
    adapter._last_mark = None  # type: ignore[attr-defined]
    await engine.close()
    MarkFile(path).write(None)
    for payload in (b"new", b"newer"):
        engine = await open_engine(store_url(str(path)))
        await engine.publish(TENANT, QUEUE, [NewMessage(payload)])
        await engine.close()
        assert MarkFile(path).read() is not None
    (path / MARK_FILE).unlink()
    assert isinstance(await refused(path), CommitsMissing)


# -- repair --------------------------------------------------------------------------------


@law("X1")
@pytest.mark.parametrize("damage", ["cut", "removed", "mark"])
async def test_a_loss_can_be_accepted(killed: tuple[Image, Path], damage: str) -> None:
    """What is kept is a whole state before the first missing commit, and it can be worked on."""
    image, path = killed
    older = logs(path)[1]
    if damage == "mark":
        (path / MARK_FILE).unlink()
    elif damage == "removed":
        older.unlink()
    else:
        older.write_bytes(older.read_bytes()[:-1])
    assert isinstance(await refused(path), CommitsMissing)
    examined = examine(path)
    assert examined is not None
    await refused(path)
    loss = await accept_loss(path, EngineOptions(clock=FakeClock()))
    assert loss is not None
    assert loss.kept_commit is not None
    if damage != "mark":
        assert loss.marked_commit == image.marked
        assert loss.missing_commits == image.marked - loss.kept_commit > 0
        assert loss.missing_offsets is not None
    await works_again(image, path, loss.kept_commit)


async def works_again(image: Image, path: Path, kept: int) -> None:
    engine = await open_engine(store_url(str(path)), EngineOptions(clock=FakeClock()))
    log = await engine.read_log(TENANT, Offset(0), ALL)
    there = {int(entry.message.id) for entry in log.entries}
    assert there == {id_ for id_, (_, commit) in image.published.items() if commit <= kept}
    stats = await engine.stats(TENANT, QUEUE)
    settled = {id_ for id_, commit in image.settled.items() if commit <= kept}
    assert stats.available + stats.in_flight == len(there) - len(settled)
    reply = await engine.publish(TENANT, QUEUE, [NewMessage(b"new")])
    assert reply.messages[0].id > max(image.published), "an offset was given twice"
    assert len(await engine.list_documents(LOSS_KIND)) == 1
    await engine.close()
    assert examine(path) is None


async def test_a_store_that_opens_has_nothing_to_repair(killed: tuple[Image, Path]) -> None:
    _, path = killed
    assert examine(path) is None
    assert await accept_loss(path, EngineOptions()) is None


# -- power loss ----------------------------------------------------------------------------


@law("P1")
@pytest.mark.parametrize("seed", range(3))
async def test_a_mark_is_never_ahead_of_what_is_synced(tmp_path: Path, seed: int) -> None:
    """Cut every log to what was synced, whatever the mark says: the store has to open."""
    random = Random(seed)
    store, images = tmp_path / "store", []
    with small_files():
        engine = await open_engine(store_url(str(store)))
        assert isinstance(engine, KeyValueEngine)
        adapter, synced = engine._core.adapter, dict[str, int]()
        sync = adapter._sync  # type: ignore[attr-defined]

        def note_sync() -> None:
            before: dict[str, int] = {}
            for log in store.glob("*.log"):
                with suppress(FileNotFoundError):  # RocksDB has removed it.
                    before[log.name] = log.stat().st_size
            sync()
            synced.update(before)

        adapter._sync = note_sync  # type: ignore[attr-defined]
        acknowledged: list[int] = []
        for number in range(60):
            durability: Durability = "os" if random.random() < 0.6 else "fsync"
            batch = [NewMessage(random.randbytes(900)) for _ in range(8)]
            reply = await engine.publish(TENANT, QUEUE, batch, durability)
            if reply.durability == "fsync":
                acknowledged = [*range(reply.messages[-1].id + 1)]
            if number % 6 == 5:
                image = tmp_path / f"image{number}"
                known, promised = dict(synced), list(acknowledged)
                copy_store(store, image)
                images.append((image, known, promised))
        await engine.close()
    for image, known, promised in images:
        newest = max(image.glob("*.log"))
        # Of the newest log some of what was not synced survives; RocksDB has synced the others.
        size = known.get(newest.name, 0)
        left = random.randint(size, max(size, newest.stat().st_size))
        newest.write_bytes(newest.read_bytes()[:left])
        survivor = await open_engine(store_url(str(image)))
        page = await survivor.read_log(TENANT, Offset(0), ALL)
        there = {int(entry.message.id) for entry in page.entries}
        assert there >= set(promised), f"seed {seed}"
        await survivor.close()
