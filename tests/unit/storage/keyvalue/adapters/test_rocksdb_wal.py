"""Finding a gap in write-ahead logs, and what a power loss may leave of commits without a sync."""

from __future__ import annotations

from pathlib import Path

from penstock.model.message import NewMessage
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters.rocksdb_wal import logs_after_gap
from tests.live_copy import copy_store


async def build(path: Path) -> tuple[list[Path], Path]:
    """A store with two logs of unsynced commits; returns the logs of the copy, and the copy."""
    engine = await open_engine(f"rocksdb://{path}")
    await engine.publish("default", "t", [NewMessage(b"synced")])
    adapter = engine._core.adapter  # type: ignore[attr-defined]
    for number in range(20):
        if number == 10:
            # A new log, with the old one still needed: the other family is not written out.
            adapter._payloads.flush(True)
        await engine.publish("default", "t", [NewMessage(b"%d" % number)], "os")
    copy = copy_store(path, path.with_name("copy"))
    await engine.close()
    return sorted(copy.glob("*.log")), copy


async def test_logs_that_follow_one_another_have_no_gap(tmp_path: Path) -> None:
    logs, copy = await build(tmp_path / "store")
    assert len(logs) == 2
    assert logs_after_gap(copy) == []


async def test_a_log_after_a_gap_is_found(tmp_path: Path) -> None:
    logs, copy = await build(tmp_path / "store")
    logs[0].write_bytes(logs[0].read_bytes()[:-1])
    assert logs_after_gap(copy) == [logs[1]]
