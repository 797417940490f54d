"""The directories of queues are rebuilt in steps, between which queues and messages may go."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.storage.keyvalue.adapters.files import write_behind
from penstock.storage.keyvalue.adapters.files.message_files import MessageFiles
from penstock.storage.keyvalue.adapters.files.queue_folders import QueueFolders


def test_a_queue_is_deleted_while_the_directories_are_rebuilt(tmp_path: Path) -> None:
    for queue in ("a", "b", "c"):
        for state in ("available", "failed"):
            folder = tmp_path / "queues" / queue / state
            folder.mkdir(parents=True)
            (folder / "1").touch()
            (folder / "2").touch()
    for thousand in (0, 1, 2):
        folder = tmp_path / "messages" / f"{thousand:014}"
        folder.mkdir(parents=True)
        (folder / f"{1000 * thousand:017}").touch()
    folders = QueueFolders(tmp_path, MessageFiles(tmp_path))
    steps = folders.rebuild(lambda _: iter(()), lambda offset: offset == 0, lambda _: None)
    next(steps)
    for queue in ("a", "b", "c"):
        shutil.rmtree(tmp_path / "queues" / queue)
    while (tmp_path / "queues").exists() and list((tmp_path / "queues").iterdir()):
        next(steps)
    # Retention removes a directory of messages that is about to be looked at.
    next(steps)
    for path in (tmp_path / "messages").iterdir():
        if not (path / f"{0:017}").exists():
            shutil.rmtree(path)
    list(steps)
    assert [path.name for path in (tmp_path / "messages").iterdir()] == [f"{0:014}"]
    assert list((tmp_path / "queues").iterdir()) == []


def test_a_rebuild_that_fails_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example when the disk is full for a moment."""
    monkeypatch.setattr(write_behind, "_RETRY_S", 0.01)
    files = MessageFiles(tmp_path)
    behind = write_behind.WriteBehind(tmp_path, files, QueueFolders(tmp_path, files))
    finished: list[int] = []
    rounds = iter(range(3))

    def rebuild() -> Iterator[None]:
        number = next(rounds)
        yield
        if number < 2:
            raise OSError("the disk is full")
        finished.append(number)

    behind.start(lambda _: None, rebuild)
    while not finished:
        with suppress(OSError):
            behind.flush()
    behind.flush()
    behind.close()
    assert finished == [2]
