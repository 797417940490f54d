"""Who may read the folder of a store."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.storage.keyvalue.adapters import store_folder
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter


def modes(folder: Path) -> set[int]:
    found: set[int] = set()
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # RocksDB removes files of an open store at any moment.
            found.add(mode(file))
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    """A store as earlier versions left it."""
    path = tmp_path / "store"
    adapter = RocksDBAdapter(path)
    adapter.write({b"a": b"1"}, (), True)
    adapter.close()
    path.chmod(0o755)
    for file in path.iterdir():
        file.chmod(0o644)
    return path


def test_a_new_store_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    adapter = RocksDBAdapter(path)
    assert mode(path) == 0o700
    assert modes(path) == {0o600}
    adapter.write({b"a": b"1"}, (), True)
    adapter.close()
    assert (mode(path), modes(path)) == (0o700, {0o600})


def test_an_older_store_is_tightened_when_it_is_opened(loose: Path) -> None:
    adapter = RocksDBAdapter(loose)
    assert (mode(loose), modes(loose)) == (0o700, {0o600})
    adapter.close()


def test_files_of_others_are_left_alone(loose: Path) -> None:
    (loose / "notes.txt").write_text("mine")
    (loose / "notes.txt").chmod(0o644)
    RocksDBAdapter(loose).close()
    assert mode(loose / "notes.txt") == 0o644


@pytest.mark.parametrize("kept", [0o755, 0o1777], ids=["something else", "sticky"])
def test_a_shared_folder_is_not_tightened_but_warned_about(
    tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "somebody's file").write_text("x")
    tmp_path.chmod(kept)
    with caplog.at_level(logging.WARNING):
        RocksDBAdapter(tmp_path).close()
    assert mode(tmp_path) == kept
    assert "Other users may be able to read the store" in caplog.text


def test_a_folder_that_cannot_be_tightened_is_warned_about(
    loose: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "chmod", refuse)
    with caplog.at_level(logging.WARNING):
        RocksDBAdapter(loose).close()
    assert "Other users may be able to read the store" in caplog.text
    assert "cannot be set to mode 0600" in caplog.text


def test_a_folder_of_another_user_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with caplog.at_level(logging.WARNING):
        store_folder.prepare_folder(tmp_path)
    assert f"belongs to user {os.getuid()}" in caplog.text
