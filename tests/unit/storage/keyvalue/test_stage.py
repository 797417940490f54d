from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.stage import Stage

# Few keys, so that writes, removed ranges and scans meet; some begin others.
KEYS = st.lists(st.sampled_from(b"\x00ab\xff"), min_size=1, max_size=2).map(bytes)
VALUES = st.binary(max_size=2)
TOP = b"\xff\xff\xff"


class StageMachine(RuleBasedStateMachine):
    """A stage reads as if every verb were in the store already."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter = MemoryAdapter()
        self.stage = Stage(self.adapter)
        self.model: dict[bytes, bytes] = {}
        self.committing = False

    @initialize(pairs=st.dictionaries(KEYS, VALUES))
    def begin(self, pairs: dict[bytes, bytes]) -> None:
        self.adapter.write(pairs, [], sync=True)
        self.model = dict(pairs)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.stage.put(key, value)
        self.model[key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.stage.delete(key)
        self.model.pop(key, None)

    @rule(low=KEYS, high=KEYS)
    def remove_range(self, low: bytes, high: bytes) -> None:
        self.stage.remove_range(low, high)
        self.model = {k: v for k, v in self.model.items() if not low <= k < high}

    @rule()
    @precondition(lambda self: not self.committing)
    def take(self) -> None:
        self.batch = self.stage.take()
        self.committing = True

    @rule()
    @precondition(lambda self: self.committing)
    def write(self) -> None:
        """The thread is done, the loop does not know yet."""
        self.adapter.write(self.batch.writes, self.batch.removed, self.batch.sync)

    @rule()
    @precondition(lambda self: self.committing)
    def committed(self) -> None:
        self.write()
        self.stage.committed()
        self.committing = False

    @rule(start=KEYS, end=KEYS | st.just(TOP), reverse=st.booleans())
    def scan(self, start: bytes, end: bytes, reverse: bool) -> None:
        expected = sorted(pair for pair in self.model.items() if start <= pair[0] < end)
        if reverse:
            expected.reverse()
        assert list(self.stage.scan(start, end, reverse=reverse)) == expected

    @rule(prefix=KEYS.filter(lambda key: key.strip(b"\xff") != b""))
    def prefix(self, prefix: bytes) -> None:
        expected = sorted(pair for pair in self.model.items() if pair[0].startswith(prefix))
        assert list(self.stage.prefix(prefix)) == expected

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.stage.get(key) == self.model.get(key)

    @invariant()
    def everything_is_seen(self) -> None:
        assert dict(self.stage.scan(b"", TOP)) == self.model


TestStage = StageMachine.TestCase


@given(st.dictionaries(KEYS, VALUES), st.dictionaries(KEYS, VALUES | st.none()), st.lists(KEYS))
def test_get_many_looks_through_what_is_staged(
    stored: dict[bytes, bytes], staged: dict[bytes, bytes | None], keys: list[bytes]
) -> None:
    adapter = MemoryAdapter()
    adapter.write(stored, [], sync=True)
    stage = Stage(adapter)
    stage.writes.update(staged)
    expected = [{**stored, **staged}.get(key) for key in keys]
    assert stage.get_many(keys) == expected
    stage.take()
    assert stage.get_many(keys) == expected


def test_a_scan_that_is_under_way_survives_the_commit(stage: Stage, adapter: MemoryAdapter) -> None:
    for number in range(200):
        stage.put(b"%03d" % number, b"")
    scan = stage.scan(b"", TOP)
    seen = [next(scan)[0] for _ in range(100)]
    batch = stage.take()
    adapter.write(batch.writes, batch.removed, batch.sync)
    stage.committed()
    seen += [key for key, _ in scan]
    assert seen == [b"%03d" % number for number in range(200)]


class Dirty:
    """Writes how often it was written."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.written = 0

    def write_to(self, stage: Stage) -> int:
        self.written += 1
        stage.put(self.key, b"%d" % self.written)
        return 0


def test_a_dirty_object_is_encoded_once_a_commit(stage: Stage) -> None:
    dirty = Dirty(b"k")
    stage.mark(dirty)
    stage.mark(dirty)
    assert stage.get(b"k") is None
    assert stage.take().writes == {b"k": b"1"}
    assert stage.get(b"k") == b"1"
    stage.mark(dirty)
    assert stage.take().writes == {b"k": b"2"}
    assert stage.take().writes == {}


def test_an_unmarked_object_is_not_written(stage: Stage) -> None:
    dirty = Dirty(b"k")
    stage.mark(dirty)
    stage.unmark(dirty)
    stage.unmark(dirty)
    assert not stage.has_work
    assert not stage.take()


def test_dirty_objects_write_in_the_order_they_were_marked(stage: Stage) -> None:
    for value in (b"1", b"2"):
        item = Dirty(b"k")
        item.written = int(value) * 10
        stage.mark(item)
    assert stage.take().writes == {b"k": b"21"}


def test_numbers_name_the_commit_that_holds_a_change(stage: Stage) -> None:
    numbers = []
    for _ in range(3):
        numbers.append(stage.number)
        stage.take()
        stage.committed()
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize("change", ["put", "delete", "remove_range", "mark"])
def test_every_change_is_work(stage: Stage, change: str) -> None:
    work = [stage.has_work]
    match change:
        case "put":
            stage.put(b"k", b"")
        case "delete":
            stage.delete(b"k")
        case "remove_range":
            stage.remove_range(b"a", b"b")
        case _:
            stage.mark(Dirty(b"k"))
    work.append(stage.has_work)
    stage.take()
    work.append(stage.has_work)
    assert work == [False, True, False]


def test_a_sync_is_asked_of_one_batch(stage: Stage) -> None:
    stage.put(b"a", b"")
    assert not stage.take().sync
    stage.put(b"b", b"")
    stage.ask_sync()
    assert stage.take().sync
    assert not stage.take().sync


def test_completed_is_the_last_commit_in_the_store(stage: Stage) -> None:
    assert (stage.number, stage.completed) == (1, 0)
    stage.put(b"a", b"1")
    stage.take()
    assert (stage.number, stage.completed) == (2, 0)
    stage.committed()
    assert (stage.number, stage.completed) == (2, 1)


@pytest.mark.parametrize("change", ["put", "delete"])
def test_a_record_is_uncommitted_until_its_commit_is_in_the_store(
    stage: Stage, change: str
) -> None:
    seen = [stage.is_uncommitted(b"a")]
    if change == "put":
        stage.put(b"a", b"1")
    else:
        stage.delete(b"a")
    seen.append(stage.is_uncommitted(b"a"))
    stage.take()
    stage.put(b"b", b"")
    seen.append(stage.is_uncommitted(b"a"))
    stage.committed()
    seen.append(stage.is_uncommitted(b"a"))
    assert seen == [False, True, True, False]
    assert stage.is_uncommitted(b"b")


# -- what a scan costs -------------------------------------------------------------------------


class Counting(bytes):
    """A key that counts how often keys are compared."""

    comparisons = 0

    def __lt__(self, other: bytes) -> bool:
        Counting.comparisons += 1
        return bytes.__lt__(self, other)

    def __le__(self, other: bytes) -> bool:
        Counting.comparisons += 1
        return bytes.__le__(self, other)

    def __gt__(self, other: bytes) -> bool:
        Counting.comparisons += 1
        return bytes.__gt__(self, other)

    def __ge__(self, other: bytes) -> bool:
        Counting.comparisons += 1
        return bytes.__ge__(self, other)

    __hash__ = bytes.__hash__


def _compared(scans: int, work: Callable[[], object]) -> float:
    """Comparisons a scan."""
    Counting.comparisons = 0
    work()
    return Counting.comparisons / scans


@pytest.mark.parametrize("committing", [False, True])
def test_a_scan_costs_what_it_yields_however_much_is_staged(stage: Stage, committing: bool) -> None:
    for number in range(5_000):
        stage.put(Counting(b"key%05d" % number), b"")
    if committing:
        stage.take()
    assert [key for key, _ in stage.scan(b"key02000", b"key02002")] == [b"key02000", b"key02001"]
    starts = [b"key%05d" % number for number in range(0, 5_000, 50)]
    work = _compared(100, lambda: [next(stage.scan(start, b"kez")) for start in starts])
    assert work < 100


def test_a_scan_after_every_write_puts_in_order_what_is_new(stage: Stage) -> None:
    def write_and_scan() -> None:
        for number in range(2_000):
            stage.put(Counting(b"key%05d" % (number * 7919 % 10_000)), b"")
            next(stage.scan(b"key", b"kez"))

    assert _compared(2_000, write_and_scan) < 100


def test_records_that_are_not_scanned_are_not_put_in_order(stage: Stage) -> None:
    for number in range(5_000):
        stage.put(Counting(b"\x01\x01%05d" % number), b"")
    stage.put(b"\x01\x07a", b"")

    assert _compared(1, lambda: list(stage.scan(b"\x01\x07", b"\x01\x08"))) == 0


def test_a_scan_passes_removed_ranges_without_reading_them(
    stage: Stage, adapter: MemoryAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter.write({b"key%05d" % number: b"" for number in range(5_000)}, [], sync=True)
    stage.remove_range(b"key00010", b"key04990")
    stage.remove_range(b"key00001", b"key00010")
    read = []
    scan = adapter.scan

    def counted(
        start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for pair in scan(start, end, reverse=reverse):
            read.append(pair)
            yield pair

    monkeypatch.setattr(adapter, "scan", counted)
    for reverse in (False, True):
        assert len(list(stage.scan(b"key", b"kez", reverse=reverse))) == 11
    assert len(read) == 22
    assert stage.take().removed == [(b"key00001", b"key04990")]
