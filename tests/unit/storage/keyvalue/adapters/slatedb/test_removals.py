"""Large range removals on SlateDB: hidden at once, deleted in batches (S3)."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from penstock.storage.keyvalue.adapters.slatedb.adapter import SlateDBAdapter
from penstock.storage.keyvalue.adapters.slatedb.location import Location, parse_location
from penstock.storage.keyvalue.adapters.slatedb.reader import SlateDBReader
from penstock.storage.keyvalue.adapters.slatedb.removals import (
    RECORDS,
    Removal,
    Removals,
    removal_record,
)
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX, WRITER_KEY
from penstock.testing.laws import law

KEYS = [b"k%03d" % number for number in range(100)]
PAYLOADS = [PAYLOAD_PREFIX + offset.to_bytes(8) for offset in range(100)]
Open = Callable[[], SlateDBAdapter]


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return parse_location(urlsplit(f"slatedb+file://{tmp_path}/store?lease_ms=600000"))


@pytest.fixture
def reopened(location: Location, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens the store anew; only ``finish`` deletes what was removed."""
    monkeypatch.setattr(SlateDBAdapter, "removed_at_once", 10)
    monkeypatch.setattr(SlateDBAdapter, "_remove_in_background", lambda _: None)
    opened: list[SlateDBAdapter] = []

    def open_() -> SlateDBAdapter:
        if opened:
            opened.pop().close()
        opened.append(SlateDBAdapter(location, id="1"))
        return opened[-1]

    yield open_
    opened.pop().close()


def finish(adapter: SlateDBAdapter) -> None:
    while adapter.removals:
        adapter._remove_some()


def stored(adapter: SlateDBAdapter) -> list[bytes]:
    """Every key of the store but those of the writer, hidden ones included."""
    return [key for key in adapter.stored_keys(b"", b"\xff") if key != WRITER_KEY]


@law("S3")
def test_a_removed_range_is_hidden_at_once_and_deleted_later(
    location: Location, reopened: Open
) -> None:
    adapter = reopened()
    adapter.write(dict.fromkeys([*KEYS, *PAYLOADS], b"v"), (), sync=True)
    adapter.write({b"a": b"1"}, [(KEYS[3], KEYS[97]), (PAYLOADS[1], PAYLOADS[99])], sync=True)
    kept, payloads = [*KEYS[:3], *KEYS[97:]], [PAYLOADS[0], PAYLOADS[99]]
    for again in (False, True):
        if again:
            adapter = reopened()
        assert len(stored(adapter)) > 200
        for reader in (adapter, SlateDBReader(location), SlateDBReader(location, held=True)):
            assert [key for key, _ in reader.scan(b"k", b"l")] == kept
            assert [key for key, _ in reader.scan(b"k", b"l", reverse=True)] == kept[::-1]
            assert reader.values(PAYLOADS[0], PAYLOADS[99]) == [b"v"]
            assert reader.get_many(PAYLOADS[:3]) == [b"v", None, None]
            assert [key for key in PAYLOADS if reader.get(key)] == payloads
            if reader is not adapter:
                reader.close()
    finish(adapter)
    assert stored(adapter) == [*payloads, b"a", *kept]
    assert [key for key, _ in reopened().scan(b"k", b"l")] == kept


def test_a_range_that_is_written_to_again_is_deleted_before(reopened: Open) -> None:
    adapter = reopened()
    adapter.write(dict.fromkeys(KEYS, b"old"), (), sync=True)
    adapter.write({}, [(b"k", b"l")], sync=True)
    adapter.write({KEYS[50]: b"new"}, (), sync=True)
    assert list(adapter.scan(b"k", b"l")) == [(KEYS[50], b"new")]
    # In the same commit: the range is removed first.
    adapter.write(dict.fromkeys(KEYS, b"old"), (), sync=True)
    adapter.write({KEYS[7]: b"new"}, [(b"k", b"l")], sync=True)
    assert list(adapter.scan(b"k", b"l")) == [(KEYS[7], b"new")]
    assert not adapter.removals


@pytest.mark.parametrize("seed", range(3))
def test_a_random_program_leaves_what_a_map_would_have(reopened: Open, seed: int) -> None:
    random = Random(seed)
    expected: dict[bytes, bytes] = {}
    adapter = reopened()
    for number in range(150):
        low, high = sorted(random.sample(KEYS, 2))
        removed = [(low, high)] if random.random() < 0.5 else []
        writes = {} if removed and random.random() < 0.7 else _writes(random, number)
        adapter.write(writes, removed, sync=True)
        for start, end in removed:
            expected = {k: v for k, v in expected.items() if not start <= k < end}
        expected |= {k: v for k, v in writes.items() if v is not None}
        for key in (key for key, value in writes.items() if value is None):
            expected.pop(key, None)
        if adapter.removals and random.random() < 0.3:
            adapter._remove_some()
        if random.random() < 0.03:
            adapter = reopened()
        low, high = sorted(random.sample(KEYS, 2))
        seen = [(k, expected[k]) for k in sorted(expected) if low <= k < high]
        assert list(adapter.scan(low, high)) == seen
        assert adapter.get_many(KEYS[:20]) == [expected.get(key) for key in KEYS[:20]]
    finish(adapter)
    assert stored(adapter) == sorted(expected)


def _writes(random: Random, number: int) -> dict[bytes, bytes | None]:
    keys = random.sample(KEYS, random.choice([1, 3, 60]))
    return {key: None if random.random() < 0.1 else b"%d" % number for key in keys}


def test_the_thread_of_the_writer_deletes_what_was_removed(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlateDBAdapter, "removed_at_once", 10)
    adapter = SlateDBAdapter(location, id="1")
    finished, finish = threading.Event(), adapter.removals.finish

    def finish_and_tell(removal: Removal) -> None:
        finish(removal)
        finished.set()

    monkeypatch.setattr(adapter.removals, "finish", finish_and_tell)
    adapter.write(dict.fromkeys(KEYS, b"v"), (), sync=True)
    adapter.write({}, [(b"k", b"l")], sync=True)
    assert finished.wait(60)
    assert stored(adapter) == []
    adapter.close()


def test_visible_parts_of_a_range() -> None:
    removals = Removals()
    removals.add([Removal(0, b"c", b"e"), Removal(1, b"g", b"i"), Removal(2, b"d", b"f")])
    whole = [(b"a", b"c"), (b"f", b"g"), (b"i", b"z")]
    assert removals.visible(b"a", b"z") == whole
    assert removals.visible(b"a", b"z", reverse=True) == whole[::-1]
    assert removals.visible(b"c", b"f") == []
    assert removals.visible(b"d", b"h") == [(b"f", b"g")]
    assert [key for key in (b"b", b"c", b"f", b"h", b"i") if removals.hides(key)] == [b"c", b"h"]


def test_the_golden_record_is_on_the_page_of_formats() -> None:
    key, value = removal_record(Removal(1, b"\x01\x02a", b"\x01\x02b"))
    assert RECORDS[0] <= key < RECORDS[1]
    page = Path("docs/formats.md").read_text("utf-8").replace(" ", "")
    assert f"key{key.hex()}\nvalue{value.hex()}\n" in page
