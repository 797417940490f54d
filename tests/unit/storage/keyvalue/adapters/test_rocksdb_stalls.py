"""What happens when compaction cannot keep up and RocksDB wants writers to wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rocksdict import Options

from penstock.storage.keyvalue.adapters import rocksdb
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter, store_options


def _tiny_buffers() -> Options:
    options = store_options()
    options.set_write_buffer_size(64 * 1024)
    options.set_max_write_buffer_number(2)
    options.set_level_zero_file_num_compaction_trigger(2)
    options.set_level_zero_slowdown_writes_trigger(3)
    options.set_level_zero_stop_writes_trigger(4)
    return options


def test_p1_a_stalled_write_waits_outside_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(rocksdb, "store_options", _tiny_buffers)
    monkeypatch.setattr("penstock.storage.keyvalue.adapters.rocksdb.time.sleep", pauses.append)
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
