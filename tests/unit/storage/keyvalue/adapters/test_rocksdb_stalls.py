"""What happens when compaction cannot keep up and RocksDB wants writers to wait."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rocksdict import Options

from penstock.storage.keyvalue.adapters import rocksdb
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter, store_options
from penstock.testing.laws import law


def _tiny_buffers() -> dict[str, Options]:
    families = {"payloads": store_options(), "default": store_options()}
    for options in families.values():
        options.set_write_buffer_size(64 * 1024)
        options.set_max_write_buffer_number(2)
        options.set_level_zero_file_num_compaction_trigger(2)
        options.set_level_zero_slowdown_writes_trigger(3)
        options.set_level_zero_stop_writes_trigger(4)
    return families


@law("P1")
def test_a_stalled_write_waits_outside_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    # Pauses that take no time would use up their bound before compaction has caught up.
    monkeypatch.setattr(rocksdb, "_MAX_STALL_PAUSES", sys.maxsize)
    monkeypatch.setattr(rocksdb, "_families", _tiny_buffers)
    # The adapter's own: other threads of the process sleep too.
    monkeypatch.setattr(rocksdb, "time", SimpleNamespace(sleep=pauses.append))
    adapter = RocksDBAdapter(tmp_path / "store")
    written: dict[bytes, bytes] = {}
    while not pauses or len(written) < 400:
        batch = {b"\x01\x02" + os.urandom(8): os.urandom(4096) for _ in range(4)}
        adapter.write(batch, [], sync=False)
        written |= batch
        assert len(written) < 40_000, "RocksDB never asked anybody to wait"
    adapter.write({}, [], sync=True)
    assert dict(adapter.scan(b"\x01\x02", b"\x01\x03")) == written
    adapter.close()


class _Refusing:
    """A RocksDB that answers every write with the same error."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.writes = 0

    def write(self, *_: object) -> None:
        self.writes += 1
        raise Exception(self.text)


def _refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> tuple[_Refusing, OSError, list[float]]:
    """Write to a store that refuses everything with ``text``; what came of it."""
    pauses: list[float] = []
    # The adapter's own: other threads of the process sleep too.
    monkeypatch.setattr(rocksdb, "time", SimpleNamespace(sleep=pauses.append))
    adapter = RocksDBAdapter(tmp_path / "store")
    refusing = _Refusing(text)
    with monkeypatch.context() as patch:
        patch.setattr(adapter, "_db", refusing)
        with pytest.raises(OSError) as caught:  # noqa: PT011  (the caller looks at its errno)
            adapter.write({b"\x01\x02": b"value"}, [], sync=True)
    adapter.close()
    return refusing, caught.value, pauses


def test_a_full_disk_below_a_path_with_stall_in_it_is_not_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "IO error: No space left on device: While appending to file: "
        "/srv/install/000012.log: No space left on device"
    )
    refusing, error, pauses = _refused(tmp_path, monkeypatch, text)
    assert (error.errno, refusing.writes, pauses) == (errno.ENOSPC, 1, [])


def test_a_stall_that_does_not_end_fails_the_commit_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rocksdb, "_MAX_STALL_PAUSES", 2_500)
    text = "Result incomplete: Write stall"
    with caplog.at_level(logging.WARNING):
        refusing, error, pauses = _refused(tmp_path, monkeypatch, text)
    assert (error.errno, refusing.writes, len(pauses)) == (errno.ETIMEDOUT, 2_500, 2_500)
    assert caplog.text.count("Compaction of") == 2
