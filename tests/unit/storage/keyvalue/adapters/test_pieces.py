"""Commits that are written in pieces, and what a crash between two pieces leaves behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from penstock.errors import CommitFailed, StoreCorrupt
from penstock.model.limits import MAX_HEADERS, MAX_HEADERS_BYTES
from penstock.model.message import NewMessage, Offset
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters import Writes
from penstock.storage.keyvalue.adapters.pieces import MAX_PIECE_BYTES, cut, removal
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import PIECES_KEY, SEQ_BLOCK_KEY, payload_key, tenant_key
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

KIB = 1024
PAGE = Path(__file__).resolve().parents[5] / "docs" / "formats.md"


def _bytes_of(piece: Writes) -> int:
    return sum(len(value or b"") for value in piece.values())


def test_a_commit_is_cut_into_pieces_that_are_small_enough() -> None:
    payloads = {payload_key(number): bytes(300 * KIB) for number in range(10)}
    writes = payloads | {tenant_key("t"): b"end", SEQ_BLOCK_KEY: b"block", b"\x01\x02x": None}
    pieces, rest = cut(writes)
    assert rest == {
        tenant_key("t"): b"end",
        SEQ_BLOCK_KEY: b"block",
        b"\x01\x02x": None,
        PIECES_KEY: None,
    }
    record, *others = pieces
    assert list(record) == [PIECES_KEY]
    assert {key: value for piece in others for key, value in piece.items()} == payloads
    assert len(others) == 4
    assert all(_bytes_of(piece) <= MAX_PIECE_BYTES for piece in others)


def test_a_record_above_the_limit_is_a_piece_of_its_own() -> None:
    large = bytes(2 * MAX_PIECE_BYTES)
    pieces, _ = cut({payload_key(1): b"a", payload_key(2): large, payload_key(3): b"b"})
    assert [list(piece) for piece in pieces[1:]] == [
        [payload_key(1)],
        [payload_key(2)],
        [payload_key(3)],
    ]


def test_a_commit_without_new_records_is_not_cut() -> None:
    writes = {tenant_key("t"): bytes(2 * MAX_PIECE_BYTES), payload_key(1): None}
    assert cut(writes) == ([], writes)


def test_the_record_of_the_pieces_is_the_one_of_the_page() -> None:
    (record, *_), _ = cut({payload_key(7): b"x"})
    value = record[PIECES_KEY]
    assert value is not None
    assert removal(value) == {payload_key(7): None, PIECES_KEY: None}
    assert value.hex() in re.sub(r"\s", "", PAGE.read_text())
    with pytest.raises(StoreCorrupt, match="checksum"):
        removal(value[:-1] + b"\x00")


class _Power:
    """Lets some writes of RocksDB succeed, and refuses all later ones."""

    def __init__(self, adapter: RocksDBAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        self.writes = 0
        self._write: Callable[[WriteBatch], bool] = adapter._write_unless_stalled
        monkeypatch.setattr(adapter, "_write_unless_stalled", self.write)

    def write(self, batch: WriteBatch) -> bool:
        self.writes += 1
        if self.left == 0:
            raise OSError("the power is gone")
        self.left -= 1
        return self._write(batch)


def _large() -> list[NewMessage]:
    """Messages whose payloads and headers both exceed a piece."""
    size = MAX_HEADERS_BYTES // MAX_HEADERS - len("header-00")
    headers = {f"header-{number:02}": "x" * size for number in range(MAX_HEADERS)}
    return [NewMessage(bytes([number]) * 64 * KIB, headers) for number in range(150)]


async def _open(path: Path) -> tuple[KeyValueEngine, RocksDBAdapter]:
    adapter = RocksDBAdapter(path)
    return await KeyValueEngine.open(adapter, EngineOptions(clock=FakeClock())), adapter


@law("P1", "P2")
@pytest.mark.parametrize("written", range(0, 14, 3))
async def test_an_interrupted_commit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    engine, adapter = await _open(tmp_path / "store")
    await engine.publish("t", "before", [NewMessage(b"kept")])
    power = _Power(adapter, monkeypatch)
    power.left = written
    with pytest.raises(CommitFailed):
        await engine.publish("t", "large", _large())
    assert power.writes == written + 1
    await engine.close()

    engine, adapter = await _open(tmp_path / "store")
    assert adapter.get(PIECES_KEY) is None
    reply = await engine.publish("t", "after", [NewMessage(b"new")])
    page = await engine.read_log("t", Offset(0), 1000, payloads=True)
    assert [(entry.message.topic, entry.payload) for entry in page.entries] == [
        ("before", b"kept"),
        ("after", b"new"),
    ]
    assert [entry.message.id for entry in page.entries][1] == reply.messages[0].id
    assert len(list(adapter.scan(payload_key(0), payload_key(2**63)))) == 2
    await engine.close()


@law("P3")
async def test_a_commit_in_pieces_is_read_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, adapter = await _open(tmp_path / "store")
    power = _Power(adapter, monkeypatch)
    await engine.publish("t", "large", _large())
    assert power.writes > 10
    await engine.close()
    engine, adapter = await _open(tmp_path / "store")
    assert adapter.get(PIECES_KEY) is None
    page = await engine.read_log("t", Offset(0), 1000, payloads=True)
    sent = _large()
    assert [entry.payload for entry in page.entries] == [one.payload for one in sent]
    assert [dict(entry.message.headers) for entry in page.entries] == [one.headers for one in sent]
    await engine.close()
