"""A store folder and its copies: which changes of place begin a new epoch (A1)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.errors import StoreCorrupt, StoreUnavailable
from penstock.model.identity import StoreIdentity
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters import place
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import IDENTITY_KEY
from penstock.storage.location import is_same_location
from penstock.testing.laws import law

TENANT = "acme"


async def identity(folder: Path) -> StoreIdentity:
    engine = await open_engine(f"rocksdb://{folder}", EngineOptions())
    try:
        return await engine.identity(TENANT)
    finally:
        await engine.close()


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def move(folder: Path, to: Path) -> None:
    """Rename it, and give every file other permissions and times."""
    folder.rename(to)
    for file in to.iterdir():
        file.chmod(0o600)
        os.utime(file, (1, 1))


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    await identity(tmp_path / "store")
    return tmp_path / "store"


async def test_a_store_that_stays_where_it_is(folder: Path) -> None:
    assert await identity(folder) == await identity(folder)


async def test_a_copy_is_another_epoch_and_the_original_is_not(
    folder: Path, tmp_path: Path
) -> None:
    original = await identity(folder)
    shutil.copytree(folder, tmp_path / "copy")
    copy = await identity(tmp_path / "copy")
    assert copy.store == original.store
    assert copy.epoch != original.epoch
    assert await identity(tmp_path / "copy") == copy
    assert await identity(folder) == original


async def test_a_restored_backup_is_another_epoch(folder: Path, tmp_path: Path) -> None:
    """Removed and restored under the same name, where inode numbers are used again."""
    original = await identity(folder)
    shutil.copytree(folder, tmp_path / "backup")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    restored = await identity(folder)
    assert (restored.store, restored.epoch != original.epoch) == (original.store, True)


async def test_a_restore_into_the_same_folder_is_another_epoch(
    folder: Path, tmp_path: Path
) -> None:
    original = await identity(folder)
    shutil.copytree(folder, tmp_path / "backup")
    empty(folder)
    shutil.copytree(tmp_path / "backup", folder, dirs_exist_ok=True)
    assert (await identity(folder)).epoch != original.epoch


async def test_moving_and_permissions_change_nothing(folder: Path, tmp_path: Path) -> None:
    original = await identity(folder)
    moved = tmp_path / "moved"
    move(folder, moved)
    assert await identity(moved) == original


async def test_a_backup_without_the_file_is_another_epoch(folder: Path) -> None:
    original = await identity(folder)
    (folder / "PLACE").unlink()
    assert (await identity(folder)).epoch != original.epoch


async def test_a_place_that_cannot_be_written(folder: Path) -> None:
    (folder / "PLACE").unlink()
    (folder / "PLACE").symlink_to(folder / "missing" / "file")
    with pytest.raises(StoreUnavailable, match="PLACE"):
        await identity(folder)


async def test_without_a_time_of_birth_the_inode_is_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = await identity(folder)
    monkeypatch.setattr(place, "birth_of", lambda _: None)
    assert await identity(folder) == original


def test_places_are_compared_by_what_both_tell() -> None:
    assert is_same_location("inode=1 birth=2", "inode=1")
    assert is_same_location("", "inode=1")
    assert not is_same_location("inode=1 birth=2", "inode=1 birth=3")


async def test_a_store_of_an_older_penstock_gets_an_identity() -> None:
    adapter = MemoryAdapter()
    await (await KeyValueEngine.open(adapter, EngineOptions())).close()
    adapter.write({IDENTITY_KEY: None}, [], sync=True)
    engine = await KeyValueEngine.open(adapter, EngineOptions())
    given = await engine.identity(TENANT)
    await engine.close()
    again = await KeyValueEngine.open(adapter, EngineOptions())
    assert await again.identity(TENANT) == given
    await again.close()


@law("X1")
async def test_a_record_that_is_cut_short() -> None:
    adapter = MemoryAdapter()
    adapter.write({IDENTITY_KEY: seal(b"short")}, [], sync=True)
    with pytest.raises(StoreCorrupt):
        await KeyValueEngine.open(adapter, EngineOptions())
