"""What every adapter does, whatever is below it."""

from __future__ import annotations

import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import StoreCorrupt, StoreLocked, StoreUnavailable
from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.adapters.files.adapter import FilesAdapter
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX, payload_key
from penstock.testing.laws import law
from tests.live_copy import copy_store

TOP = b"\xff\xff\xff"


OPENERS: dict[str, Callable[[Path], Adapter]] = {
    "files": FilesAdapter,
    "memory": lambda _: MemoryAdapter(),
    "rocksdb": RocksDBAdapter,
}


@pytest.fixture(params=sorted(OPENERS))
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Adapter]:
    store = OPENERS[request.param](tmp_path / "store")
    yield store
    store.close()


@pytest.fixture(params=["files", "rocksdb"])
def reopen(request: pytest.FixtureRequest) -> Callable[[Path], Adapter]:
    """Opens a persistent store."""
    return OPENERS[request.param]


def _put(adapter: Adapter, *keys: bytes) -> None:
    adapter.write({key: b"v" + key for key in keys}, [], sync=False)


def _scan(adapter: Adapter, start: bytes, end: bytes, *, reverse: bool = False) -> list[bytes]:
    pairs = list(adapter.scan(start, end, reverse=reverse))
    assert all(value == b"v" + key for key, value in pairs)
    return [key for key, _ in pairs]


def test_get(adapter: Adapter) -> None:
    assert adapter.get(b"a") is None
    adapter.write({b"a": b"1", b"": b"empty key", b"b": b""}, [], sync=True)
    assert adapter.get(b"a") == b"1"
    assert adapter.get(b"") == b"empty key"
    assert adapter.get(b"b") == b""
    adapter.write({b"a": None, b"never": None}, [], sync=True)
    assert adapter.get(b"a") is None


def test_get_many_keeps_the_order_of_the_keys(adapter: Adapter) -> None:
    _put(adapter, b"a", b"b", b"c")
    assert adapter.get_many([b"c", b"x", b"a", b"c"]) == [b"vc", None, b"va", b"vc"]
    assert adapter.get_many([]) == []


@pytest.mark.parametrize(
    "start, end, keys",
    [
        (b"b", b"d", [b"b", b"c"]),
        (b"b", b"c\x00", [b"b", b"c"]),
        (b"b\x00", b"d", [b"c"]),
        (b"", b"b", [b"a"]),
        (b"", TOP, [b"a", b"b", b"c", b"d", b"\xff\xff"]),
        (b"\xff", TOP, [b"\xff\xff"]),
        (b"x", b"y", []),
        (b"b", b"b", []),
        (b"d", b"b", []),
    ],
)
def test_scan_from_inclusive_to_exclusive(
    adapter: Adapter, start: bytes, end: bytes, keys: list[bytes]
) -> None:
    _put(adapter, b"d", b"b", b"\xff\xff", b"a", b"c")
    assert _scan(adapter, start, end) == keys
    assert _scan(adapter, start, end, reverse=True) == keys[::-1]


def test_scan_of_many(adapter: Adapter) -> None:
    keys = [b"%04d" % number for number in range(1000)]
    _put(adapter, *keys)
    assert _scan(adapter, b"", TOP) == keys
    assert _scan(adapter, b"0100", b"0900", reverse=True) == keys[100:900][::-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_write_in_the_middle_of_a_scan_disturbs_nothing(adapter: Adapter, reverse: bool) -> None:
    keys = [b"%04d" % number for number in range(500)]
    _put(adapter, *keys)
    seen = []
    for key, _ in adapter.scan(b"", TOP, reverse=reverse):
        seen.append(key)
        adapter.write({key: None}, [], sync=False)
    assert seen == (keys[::-1] if reverse else keys)
    assert _scan(adapter, b"", TOP) == []


def test_a_scan_can_be_left_early(adapter: Adapter) -> None:
    _put(adapter, b"a", b"b")
    scan = adapter.scan(b"", TOP)
    assert next(iter(scan))[0] == b"a"
    del scan
    assert _scan(adapter, b"", TOP) == [b"a", b"b"]


def test_ranges_are_removed_before_the_writes(adapter: Adapter) -> None:
    _put(adapter, b"a", b"b", b"c", b"d")
    adapter.write({b"c": b"new", b"a": b"new"}, [(b"b", b"d")], sync=True)
    pairs = list(adapter.scan(b"", TOP))
    assert pairs == [(b"a", b"new"), (b"c", b"new"), (b"d", b"vd")]


def test_empty_and_overlapping_ranges(adapter: Adapter) -> None:
    _put(adapter, b"a", b"b", b"c", b"d")
    adapter.write({}, [(b"b", b"b"), (b"a", b"b"), (b"a", b"c")], sync=False)
    assert _scan(adapter, b"", TOP) == [b"c", b"d"]


def test_a_write_of_nothing(adapter: Adapter) -> None:
    adapter.write({}, [], sync=True)
    assert _scan(adapter, b"", TOP) == []


#: Payloads lie apart from the rest, and nothing scans or removes across the border.
KEYS = st.binary(max_size=2).filter(lambda key: key != PAYLOAD_PREFIX)
WRITES = st.dictionaries(KEYS, st.binary(max_size=2) | st.none(), max_size=5)
BATCHES = st.lists(
    st.tuples(
        WRITES, st.lists(st.tuples(KEYS, KEYS).filter(lambda pair: pair[0] <= pair[1]), max_size=2)
    ),
    max_size=5,
)


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(batches=BATCHES, start=KEYS, end=KEYS, reverse=st.booleans())
def test_an_adapter_is_a_sorted_dict(
    adapter: Adapter,
    batches: list[tuple[dict[bytes, bytes | None], list[tuple[bytes, bytes]]]],
    start: bytes,
    end: bytes,
    reverse: bool,
) -> None:
    adapter.write({}, [(b"", TOP)], sync=False)
    model: dict[bytes, bytes] = {}
    for writes, removed in batches:
        adapter.write(writes, removed, sync=False)
        for low, high in removed:
            model = {key: value for key, value in model.items() if not low <= key < high}
        for key, value in writes.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
    expected = sorted(pair for pair in model.items() if start <= pair[0] < end)
    assert list(adapter.scan(b"", TOP)) == sorted(model.items())
    found = list(adapter.scan(start, end, reverse=reverse))
    assert found == (expected[::-1] if reverse else expected)
    keys = [start, end, *model]
    assert adapter.get_many(keys) == [model.get(key) for key in keys]
    assert [adapter.get(key) for key in keys] == [model.get(key) for key in keys]


def test_payloads_are_a_range_of_their_own(adapter: Adapter) -> None:
    keys = [payload_key(offset) for offset in (1, 2, 300, 2**40)]
    adapter.write({key: b"p" + key for key in keys}, [], sync=True)
    adapter.write({b"a": b"1", b"\x01\x02": b"2"}, [], sync=False)
    assert adapter.values(payload_key(2), payload_key(2**41)) == [b"p" + key for key in keys[1:]]
    found = list(adapter.scan(payload_key(0), payload_key(301), reverse=True))
    assert found == [(key, b"p" + key) for key in keys[2::-1]]
    adapter.write({keys[0]: None}, [(payload_key(2), payload_key(301))], sync=True)
    assert adapter.get_many(keys) == [None, None, None, b"p" + keys[3]]
    assert adapter.get(b"a") == b"1"


# -- persistent stores ---------------------------------------------------------------------


def test_what_was_written_is_there_after_reopening(
    tmp_path: Path, reopen: Callable[[Path], Adapter]
) -> None:
    first = reopen(tmp_path / "store")
    first.write({b"a": b"1", b"b": b"2", payload_key(7): b"payload"}, [], sync=True)
    first.write({b"c": b"3"}, [(b"b", b"c")], sync=True)
    first.close()
    second = reopen(tmp_path / "store")
    assert list(second.scan(b"", b"\x01")) == []
    assert list(second.scan(b"\x02", TOP)) == [(b"a", b"1"), (b"c", b"3")]
    assert second.get(payload_key(7)) == b"payload"
    second.close()


def test_a_store_is_open_once(tmp_path: Path, reopen: Callable[[Path], Adapter]) -> None:
    first = reopen(tmp_path / "store")
    with pytest.raises(StoreLocked):
        reopen(tmp_path / "store")
    first.close()
    reopen(tmp_path / "store").close()


def test_stores_of_different_kinds_are_not_mistaken(tmp_path: Path) -> None:
    RocksDBAdapter(tmp_path / "rocksdb").close()
    with pytest.raises(StoreUnavailable, match="RocksDB store"):
        FilesAdapter(tmp_path / "rocksdb")
    FilesAdapter(tmp_path / "files").close()
    with pytest.raises(StoreCorrupt):
        RocksDBAdapter(tmp_path / "files")
    FilesAdapter(tmp_path / "files").close()


# -- RocksDB only --------------------------------------------------------------------------


def test_folders_are_made(tmp_path: Path) -> None:
    RocksDBAdapter(tmp_path / "some" / "where" / "store").close()
    assert (tmp_path / "some" / "where" / "store" / "CURRENT").exists()


def test_a_path_that_is_a_file(tmp_path: Path, reopen: Callable[[Path], Adapter]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="Cannot create"):
        reopen(tmp_path / "file")
    with pytest.raises(StoreUnavailable, match="Cannot create"):
        reopen(tmp_path / "file" / "store")


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    # Root may write anywhere; what the adapter asks is what is tested.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(StoreUnavailable, match="not writable"):
        RocksDBAdapter(folder)


KEY_COUNT = 2000


def _key(number: int) -> bytes:
    return b"k%05d" % number


def _filled(path: Path) -> None:
    """Many blocks, none of which compresses away."""
    source = random.Random(0)
    store = RocksDBAdapter(path)
    pairs = {_key(number): source.randbytes(100) for number in range(KEY_COUNT)}
    store.write(pairs, [], sync=True)
    store._db.flush()
    store.close()


def _damage(path: Path, from_end: int) -> None:
    """Flip a byte of every table: half way, or counted from its end."""
    files = [file for file in path.glob("*.sst") if file.stat().st_size]
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[-from_end if from_end else len(content) // 2] ^= 0xFF
        file.write_bytes(content)


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[RocksDBAdapter]:
    """A store with one damaged block in the middle."""
    _filled(tmp_path / "store")
    _damage(tmp_path / "store", from_end=0)
    store = RocksDBAdapter(tmp_path / "store")
    yield store
    store.close()


def _is_damaged(store: RocksDBAdapter, number: int) -> bool:
    try:
        return len(store.get(_key(number)) or b"") != 100
    except StoreCorrupt:
        return True


@law("X1")
def test_a_damaged_block_is_noticed_when_it_is_read(damaged: RocksDBAdapter) -> None:
    bad = [number for number in range(KEY_COUNT) if _is_damaged(damaged, number)]
    assert 0 < len(bad) < 100
    with pytest.raises(StoreCorrupt):
        damaged.get(_key(bad[0]))
    with pytest.raises(StoreCorrupt):
        damaged.get_many([_key(0), _key(bad[0])])


@law("X1")
@pytest.mark.parametrize("reverse", [False, True])
def test_a_damaged_block_is_noticed_when_it_is_scanned(
    damaged: RocksDBAdapter, reverse: bool
) -> None:
    """A scan that stopped there in silence would look like the end of the queue."""
    with pytest.raises(StoreCorrupt):
        list(damaged.scan(b"", TOP, reverse=reverse))
    assert len(list(damaged.scan(_key(0), _key(100)))) == 100


@law("X1")
def test_a_table_with_a_damaged_index_is_noticed_when_it_is_opened(tmp_path: Path) -> None:
    _filled(tmp_path / "store")
    _damage(tmp_path / "store", from_end=400)
    with pytest.raises(StoreCorrupt):
        RocksDBAdapter(tmp_path / "store")


@law("P2")
def test_a_torn_tail_of_the_log_is_cut_off(tmp_path: Path) -> None:
    """A crash in the middle of a write that nobody was told about."""
    store = RocksDBAdapter(tmp_path / "store")
    store.write({b"a": b"1"}, [], sync=True)
    store.write({b"b": bytes(1000)}, [], sync=True)
    copy_store(tmp_path / "store", tmp_path / "crashed")
    store.close()
    (log,) = [file for file in (tmp_path / "crashed").glob("*.log") if file.stat().st_size]
    log.write_bytes(log.read_bytes()[:-500])
    crashed = RocksDBAdapter(tmp_path / "crashed")
    assert list(crashed.scan(b"", TOP)) == [(b"a", b"1")]
    crashed.close()


@law("X1")
def test_damage_inside_the_log_refuses_to_open(tmp_path: Path) -> None:
    """Not a torn tail: acknowledged commits lie behind it and must not be dropped."""
    store = RocksDBAdapter(tmp_path / "store")
    for number in range(20):
        store.write({b"%d" % number: bytes(10_000)}, [], sync=True)
    copy_store(tmp_path / "store", tmp_path / "damaged")
    store.close()
    (log,) = [file for file in (tmp_path / "damaged").glob("*.log") if file.stat().st_size]
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        RocksDBAdapter(tmp_path / "damaged")
