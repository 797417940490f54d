"""The tree of a store in files: journals, checkpoints, message files, permissions."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from penstock.errors import CommitsMissing, StoreCorrupt, StoreTooNew, StoreUnavailable
from penstock.storage.keyvalue.adapters.files import adapter as adapter_module
from penstock.storage.keyvalue.adapters.files import checkpoint as checkpoint_module
from penstock.storage.keyvalue.adapters.files import journal as journal_module
from penstock.storage.keyvalue.adapters.files import write_behind
from penstock.storage.keyvalue.adapters.files.adapter import FilesAdapter
from penstock.storage.keyvalue.adapters.files.message_files import MessageFiles
from penstock.storage.keyvalue.adapters.files.tree import README
from penstock.storage.keyvalue.keys import payload_key
from penstock.testing.laws import law

PAYLOADS = {payload_key(number): b"payload %d" % number for number in range(5)}


def killed(source: Path, target: Path) -> Path:
    """The store as a kill leaves it: a copy while it is open."""
    shutil.copytree(source, target, symlinks=True)
    return target


def journals(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "journal").iterdir())


def message(store: Path, offset: int) -> Path:
    return store / "messages" / f"{offset // 1000:014}" / f"{offset:017}"


def test_the_tree_of_a_new_store_explains_itself(tmp_path: Path) -> None:
    adapter = FilesAdapter(tmp_path)
    adapter.write(PAYLOADS, (), True)
    adapter.flush()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"PENSTOCK", "README", "inbox", "journal", "messages", "queues"}
    assert (tmp_path / "README").read_text() == README
    assert all(f"{name}/" in README for name in ("journal", "messages", "queues", "inbox"))
    assert message(tmp_path, 3).read_bytes() == b"payload 3"
    adapter.close()


def test_the_store_is_its_owners_alone(tmp_path: Path) -> None:
    adapter = FilesAdapter(tmp_path / "store")
    adapter.write(PAYLOADS, (), True)
    adapter.close()
    found = {True: set[int](), False: set[int]()}
    for path in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
        found[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    assert found == {True: {0o700}, False: {0o600}}


def test_payloads_are_not_in_memory(tmp_path: Path) -> None:
    adapter = FilesAdapter(tmp_path)
    adapter.write({**PAYLOADS, b"a": b"1"}, (), True)
    adapter.flush()
    assert list(adapter._records) == [b"a"]
    message(tmp_path, 3).write_bytes(b"changed")
    assert adapter.get(payload_key(3)) == b"changed"  # The engine's checksum detects it.
    message(tmp_path, 4).unlink()
    assert adapter.get(payload_key(4)) is None
    adapter.close()


def test_a_payload_is_read_from_the_journal_until_it_has_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = MessageFiles.write

    def wait(self: MessageFiles, offset: int, payload: bytes) -> None:
        gate.wait()
        write(self, offset, payload)

    monkeypatch.setattr(MessageFiles, "write", wait)
    adapter = FilesAdapter(tmp_path)
    adapter.write(PAYLOADS, (), True)
    assert adapter.get_many(list(PAYLOADS)) == list(PAYLOADS.values())
    assert not message(tmp_path, 0).exists()
    assert adapter.space() is not None
    gate.set()
    adapter.flush()
    assert message(tmp_path, 0).exists()
    assert adapter.get_many(list(PAYLOADS)) == list(PAYLOADS.values())
    adapter.close()


def test_removed_payloads_take_their_files_along(tmp_path: Path) -> None:
    adapter = FilesAdapter(tmp_path)
    adapter.write({payload_key(number): b"x" for number in range(2500)}, (), True)
    adapter.write({}, [(payload_key(0), payload_key(2400))], True)
    adapter.flush()
    left = [path.name for path in (tmp_path / "messages").iterdir()]
    assert left == [f"{2:014}"]
    assert len(list((tmp_path / "messages" / left[0]).iterdir())) == 100
    adapter.close()


# -- checkpoints ---------------------------------------------------------------------------


@pytest.fixture
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_module, "CHECKPOINT_BYTES", 2000)


def fill(adapter: FilesAdapter, start: int, end: int) -> None:
    for number in range(start, end):
        adapter.write({payload_key(number): bytes(300), b"k%d" % number: b"v"}, (), True)


def check(adapter: FilesAdapter, end: int) -> None:
    assert [key for key, _ in adapter.scan(b"k", b"l")] == sorted(b"k%d" % n for n in range(end))
    assert adapter.values(payload_key(0), payload_key(10**6)) == [bytes(300)] * end


@pytest.mark.usefixtures("small_journals")
def test_a_checkpoint_replaces_the_journal(tmp_path: Path) -> None:
    adapter = FilesAdapter(tmp_path)
    fill(adapter, 0, 20)
    assert adapter._checkpoint is not None
    assert adapter._checkpoint.wait() is not None
    fill(adapter, 20, 40)  # There is one checkpoint at a time.
    assert adapter._checkpoint.wait() is not None
    number = adapter._checkpoint._number
    assert number > 2
    assert journals(tmp_path) == [f"{number:010}.journal", f"{number:010}.snapshot"]
    check(adapter, 40)
    adapter.close()
    reopened = FilesAdapter(tmp_path)
    check(reopened, 40)
    reopened.close()


@law("P1")
@pytest.mark.usefixtures("small_journals")
@pytest.mark.parametrize("step", ["sync", "write", "remove"])
def test_a_crash_in_a_checkpoint_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The checkpoint stops for good before a step; the store goes on, and is copied as it is."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "stopped here")

    adapter = FilesAdapter(tmp_path / "store")
    fill(adapter, 0, 4)
    with monkeypatch.context() as patch:
        if step == "sync":
            patch.setattr(checkpoint_module, "sync_file_system", refuse)
        elif step == "write":
            patch.setattr(adapter_module, "write_snapshot", refuse)
        else:
            patch.setattr(checkpoint_module.Checkpoint, "remove_older", staticmethod(refuse))
        fill(adapter, 4, 30)
        assert adapter._checkpoint is not None
        adapter._checkpoint.wait()
        copy = killed(tmp_path / "store", tmp_path / "copy")
    shutil.rmtree(copy / "messages")  # None of them is synced.
    if step != "remove":
        recovered = FilesAdapter(copy)
        check(recovered, 30)
        recovered.close()
        assert len(journals(copy)) == 2
    else:
        # Files of journals that the snapshot replaces were synced before it was written.
        shutil.copytree(tmp_path / "store" / "messages", copy / "messages")
        recovered = FilesAdapter(copy)
        check(recovered, 30)
        recovered.close()
    adapter.close()


@law("P1")
def test_a_journal_whose_creation_was_interrupted_is_removed(tmp_path: Path) -> None:
    adapter = FilesAdapter(tmp_path / "store")
    fill(adapter, 0, 4)
    for size in (0, 20, 41, 100):
        copy = killed(tmp_path / "store", tmp_path / f"copy{size}")
        title = (copy / "journal" / f"{1:010}.journal").read_bytes()[:size]
        (copy / "journal" / f"{2:010}.journal").write_bytes(title)
        recovered = FilesAdapter(copy)
        check(recovered, 4)
        recovered.close()
    adapter.close()


def test_a_creation_that_was_interrupted_is_repeated(tmp_path: Path) -> None:
    FilesAdapter(tmp_path / "store").close()
    for number, names in enumerate(
        [("PENSTOCK",), ("PENSTOCK", "0000000001.snapshot"), ("PENSTOCK", "journal"), ("journal",)]
    ):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "store", copy)
        for name in names:
            path = copy / name if (copy / name).exists() else copy / "journal" / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if names == ("journal",):
            with pytest.raises(CommitsMissing):
                FilesAdapter(copy)
            continue
        adapter = FilesAdapter(copy)
        fill(adapter, 0, 2)
        adapter.close()


@law("X1")
def test_a_store_without_its_mark_file_is_not_created_anew(tmp_path: Path) -> None:
    adapter = FilesAdapter(tmp_path / "store")
    fill(adapter, 0, 2)
    copy = killed(tmp_path / "store", tmp_path / "copy")
    adapter.close()
    for store in (copy, tmp_path / "store"):
        (store / "PENSTOCK").unlink()
        before = {path.name: path.read_bytes() for path in (store / "journal").iterdir()}
        with pytest.raises(CommitsMissing):
            FilesAdapter(store)
        assert {path.name: path.read_bytes() for path in (store / "journal").iterdir()} == before


def test_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FilesAdapter(tmp_path).close()
    monkeypatch.setattr(journal_module, "FORMAT", 0)
    with pytest.raises(StoreTooNew):
        FilesAdapter(tmp_path)


# -- errors --------------------------------------------------------------------------------


@law("P2")
def test_after_a_failed_sync_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = FilesAdapter(tmp_path)
    fill(adapter, 0, 2)

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="no"):
            adapter.write({b"k2": b"v"}, (), True)
    with pytest.raises(OSError, match="earlier write"):
        adapter.write({b"k3": b"v"}, (), True)
    with pytest.raises(OSError, match="earlier write"):
        adapter.write({}, (), True)
    adapter.close()
    reopened = FilesAdapter(tmp_path)
    assert reopened.get(b"k3") is None
    reopened.close()


@law("P1")
def test_message_files_that_cannot_be_written_are_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(write_behind, "_RETRY_S", 0.01)
    monkeypatch.setattr(write_behind, "MAX_BEHIND_BYTES", 1000)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(MessageFiles, "write", refuse)
        adapter = FilesAdapter(tmp_path)
        fill(adapter, 0, 2)
        with pytest.raises(OSError, match="full"):  # Noticed when there is no room for more.
            fill(adapter, 2, 10)
        with pytest.raises(OSError, match="full"):
            adapter.flush()
        assert adapter.get(payload_key(1)) == bytes(300)
    assert "The journal has everything" in caplog.text
    while True:
        try:
            adapter.flush()
            break
        except OSError:
            continue
    assert message(tmp_path, 1).read_bytes() == bytes(300)
    adapter.close()
    reopened = FilesAdapter(tmp_path)
    assert reopened.get(payload_key(1)) == bytes(300)
    reopened.close()


def test_inodes_count_as_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = FilesAdapter(tmp_path)
    facts = os.statvfs(tmp_path)

    class Facts:
        f_bavail, f_frsize, f_blocks = 900, 4096, 1000
        f_favail, f_files = 10, 1000

    assert facts.f_blocks
    monkeypatch.setattr(os, "statvfs", lambda _: Facts)
    assert adapter.space() == (10 * 4096, 1000 * 4096)
    monkeypatch.setattr(Facts, "f_files", 0)  # A file system without a table of inodes.
    assert adapter.space() == (900 * 4096, 1000 * 4096)
    adapter.close()


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StoreUnavailable, match="without locks"):
        FilesAdapter(tmp_path)


@law("X1")
def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    adapter = FilesAdapter(tmp_path)
    fill(adapter, 0, 3)
    adapter.close()
    (snapshot,) = (tmp_path / "journal").glob("*.snapshot")
    content = snapshot.read_bytes()
    for size in (0, 30, len(content) // 2, len(content) - 1):
        snapshot.write_bytes(content[:size])
        with pytest.raises(StoreCorrupt):
            FilesAdapter(tmp_path)
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 16
        snapshot.write_bytes(damaged)
        with pytest.raises(StoreCorrupt):
            FilesAdapter(tmp_path)
    snapshot.write_bytes(content)
    FilesAdapter(tmp_path).close()
