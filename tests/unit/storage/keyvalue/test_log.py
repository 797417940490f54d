from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.errors import StoreCorrupt
from penstock.model.message import Message, MessageId, Offset
from penstock.storage.keyvalue import log as log_module
from penstock.storage.keyvalue import log_counts, log_pairs
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.batch import Batch
from penstock.storage.keyvalue.encoding import seal, terminated
from penstock.storage.keyvalue.keys import SEQ_BLOCK_KEY, segment_meta_key
from penstock.storage.keyvalue.log import SEGMENT_AGE_MS, SEGMENT_ENTRIES, Log
from penstock.storage.keyvalue.log_counts import EntryCount
from penstock.storage.keyvalue.metadata import encode_metadata
from penstock.storage.keyvalue.stage import Stage
from penstock.testing.laws import law

USER_KEY = b"opendata-queue/penstock/messages/metadata/"


def _message(message_id: int, offset: int | None = None, at: int = 0) -> Message:
    place = message_id if offset is None else offset
    return Message(MessageId(message_id), Offset(place), "t", 4, at, at, None, 0, 0)


def _append(log: Log, tenant: str, count: int, now: int = 0) -> list[int]:
    """As a publish does: reserve, then append; returns the offsets."""
    first = log.reserve(count, now)
    batch = [(_message(offset, at=now)) for offset in range(first, first + count)]
    log.append(log.tenant(tenant), [(message, encode_metadata(message)) for message in batch])
    return [message.offset for message in batch]


def _offsets(log: Log, tenant: str, start: int = 0, *, staged: bool = True) -> list[int]:
    return [message.offset for message, _ in log.read(tenant, start, staged=staged)]


def _count(log: Log, tenant: str, start: int) -> int:
    count = EntryCount(log, tenant, start)
    while count.run(start):
        pass
    return count.total


@pytest.fixture
def log(stage: Stage) -> Log:
    return Log(stage)


@pytest.fixture
def commit_log(log: Log, commit: Callable[[], int]) -> Callable[[], None]:
    def run() -> None:
        commit()
        log.committed()

    return run


# -- sequence blocks -----------------------------------------------------------------------


def test_the_first_block(log: Log, stage: Stage) -> None:
    assert log.reserve(1, now=0) == 0
    assert stage.writes[SEQ_BLOCK_KEY] == bytes.fromhex("0000000000000000 0000000000001000")


def test_a_block_is_written_only_when_one_begins(log: Log, stage: Stage) -> None:
    log.reserve(4096, now=0)
    stage.take()
    assert log.reserve(1, now=0) == 4096
    assert stage.writes[SEQ_BLOCK_KEY] == bytes.fromhex("0000000000001000 0000000000001000")
    stage.take()
    assert log.reserve(4095, now=0) == 4097
    assert SEQ_BLOCK_KEY not in stage.writes


def test_a_large_reservation_takes_a_block_of_its_size(log: Log, stage: Stage) -> None:
    log.reserve(10_000, now=0)
    assert stage.writes[SEQ_BLOCK_KEY] == bytes.fromhex("0000000000000000 0000000000002710")
    assert log.reserve(1, now=0) == 10_000


@law("L1")
def test_a_restart_goes_on_behind_the_block(
    log: Log, adapter: MemoryAdapter, commit_log: Callable[[], None]
) -> None:
    _append(log, "a", 3)
    commit_log()
    reopened = Log(Stage(adapter))
    reopened.load()
    assert reopened.reserve(1, now=0) == 4096
    assert reopened.tenant("a").end == reopened.tenant("a").committed_end == 3


# -- segments ------------------------------------------------------------------------------


def test_golden_segment_meta(log: Log, stage: Stage) -> None:
    log.reserve(1, now=1_000)
    assert stage.writes[segment_meta_key(1)] == bytes.fromhex("0000000000000000 00000000000003e8")


def test_golden_log_entry(log: Log, stage: Stage) -> None:
    """Segment 1, which begins at offset 0; a commit whose first offset is 100."""
    log.reserve(100, now=0)
    _append(log, "k", 2)
    writes = stage.take().writes
    key = bytes.fromhex("0301 00000001 10") + terminated(USER_KEY + b"k") + bytes.fromhex("1064")
    elements = [encode_metadata(_message(offset)) for offset in (100, 101)]
    assert writes[key] == b"\x02\x00" + b"".join(
        offset.to_bytes(8, "little") + len(raw).to_bytes(4, "little") + raw
        for offset, raw in zip((100, 101), elements, strict=True)
    )
    assert writes[bytes.fromhex("0301 00000001 40") + USER_KEY + b"k"] == b""


def test_a_segment_is_sealed_by_age(log: Log) -> None:
    log.reserve(5, now=0)
    log.reserve(5, now=SEGMENT_AGE_MS - 1)
    assert len(log.segments) == 1
    log.reserve(5, now=SEGMENT_AGE_MS)
    assert [(s.number, s.start, s.started_at) for s in log.segments] == [
        (1, 0, 0),
        (2, 10, SEGMENT_AGE_MS),
    ]


def test_a_segment_is_sealed_by_size(log: Log) -> None:
    log.reserve(SEGMENT_ENTRIES, now=0)
    assert len(log.segments) == 1
    log.reserve(1, now=0)
    assert [segment.start for segment in log.segments] == [0, SEGMENT_ENTRIES]


def test_what_is_staged_when_a_segment_is_sealed_stays_in_it(
    log: Log, adapter: MemoryAdapter, commit_log: Callable[[], None]
) -> None:
    """One commit, two segments."""
    _append(log, "a", 2)
    _append(log, "a", 2, now=SEGMENT_AGE_MS)
    commit_log()
    low, high = bytes.fromhex("0301 00000001"), bytes.fromhex("0301 00000003")
    kinds = [key[5:7] for key, _ in adapter.scan(low, high)]
    assert kinds == [b"\x01\x10", b"\x01\x40", b"\x02\x10", b"\x02\x40"]
    assert _offsets(log, "a", staged=False) == [0, 1, 2, 3]


def test_removing_a_segment_takes_its_records_and_no_others(
    log: Log, stage: Stage, adapter: MemoryAdapter, commit_log: Callable[[], None]
) -> None:
    _append(log, "a", 2)
    _append(log, "b", 1)
    _append(log, "a", 2, now=SEGMENT_AGE_MS)
    commit_log()
    assert [(t.name, m.offset) for t, m in log.last_entries(0)] == [("a", 1), ("b", 2)]
    assert [log.segment_end(index) for index in (0, 1)] == [3, 5]
    assert log.remove_segment(0) == 3
    commit_log()
    assert _offsets(log, "a") == [3, 4]
    assert _offsets(log, "b") == []
    reopened = Log(Stage(adapter))
    reopened.load()
    assert [segment.number for segment in reopened.segments] == [2]
    assert _offsets(reopened, "a") == [3, 4]


# -- reading -------------------------------------------------------------------------------


@law("L2")
def test_readers_see_what_is_committed_and_nothing_else(
    log: Log, stage: Stage, adapter: MemoryAdapter
) -> None:
    _append(log, "a", 2)
    assert _offsets(log, "a", staged=False) == []
    assert _offsets(log, "a", staged=True) == [0, 1]
    batch = stage.take()
    _append(log, "a", 1)
    assert _offsets(log, "a", staged=False) == []
    assert _offsets(log, "a", staged=True) == [0, 1, 2]
    adapter.write(batch.writes, batch.removed, batch.sync)
    stage.committed()
    log.committed()
    assert _offsets(log, "a", staged=False) == [0, 1]
    assert _offsets(log, "a", staged=True) == [0, 1, 2]


class LogMachine(RuleBasedStateMachine):
    """Tenants, segments, commits and restarts at random, against plain lists."""

    @initialize()
    def begin(self) -> None:
        self.adapter = MemoryAdapter()
        self.now = 0
        self.all: dict[str, list[int]] = {"a": [], "b": []}
        self.committed_count = {"a": 0, "b": 0}
        self.newest: dict[int, int] = {}
        self.replacing: list[tuple[int, int]] = []
        self.owner: dict[int, str] = {}
        self.open()

    def open(self) -> None:
        self.stage = Stage(self.adapter)
        self.log = Log(self.stage)
        self.log.load()
        self.batch: Batch | None = None

    @rule(tenant=st.sampled_from("ab"), count=st.integers(1, 20))
    def append(self, tenant: str, count: int) -> None:
        offsets = _append(self.log, tenant, count, self.now)
        assert offsets[0] > max((*self.all["a"], *self.all["b"]), default=-1)
        self.all[tenant] += offsets
        self.owner.update(dict.fromkeys(offsets, tenant))

    @precondition(lambda self: self.owner)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.owner)))
        tenant = self.owner[message_id]
        offset = self.log.reserve(1, self.now)
        message = _message(message_id, offset)
        self.log.append(self.log.tenant(tenant), [(message, encode_metadata(message))])
        self.log.replaced(message_id, offset)
        self.all[tenant].append(offset)
        self.newest[message_id] = offset
        self.replacing.append((offset, message_id))

    @rule(waste=st.integers(1, 5000))
    def refuse(self, waste: int) -> None:
        """A publish that was refused leaves a gap."""
        self.log.reserve(waste, self.now)

    @rule()
    def seal(self) -> None:
        self.now += SEGMENT_AGE_MS

    @precondition(lambda self: self.batch is None)
    @rule()
    def take(self) -> None:
        self.batch = self.stage.take()
        self.taken = {tenant: len(offsets) for tenant, offsets in self.all.items()}

    @precondition(lambda self: self.batch is not None)
    @rule()
    def committed(self) -> None:
        assert self.batch is not None
        self.adapter.write(self.batch.writes, self.batch.removed, self.batch.sync)
        self.stage.committed()
        self.log.committed()
        self.committed_count = self.taken
        self.batch = None

    @rule()
    def reopen(self) -> None:
        for _ in range(2):
            if self.batch is None:
                self.take()
            self.committed()
        self.open()

    def starts(self) -> st.SearchStrategy[int]:
        return st.integers(0, self.log.next_offset + 1) | st.sampled_from(
            [0, *self.all["a"], *self.all["b"]]
        )

    @rule(data=st.data(), tenant=st.sampled_from("ab"), staged=st.booleans())
    def read(self, data: st.DataObject, tenant: str, staged: bool) -> None:
        start = data.draw(self.starts())
        count = None if staged else self.committed_count[tenant]
        expected = [offset for offset in self.all[tenant][:count] if offset >= start]
        assert _offsets(self.log, tenant, start, staged=staged) == expected

    @rule(data=st.data(), tenant=st.sampled_from("ab"))
    def count_from(self, data: st.DataObject, tenant: str) -> None:
        start = data.draw(self.starts())
        expected = sum(offset >= start for offset in self.all[tenant])
        assert _count(self.log, tenant, start) == expected

    @rule(data=st.data(), tenant=st.sampled_from("ab"))
    def at(self, data: st.DataObject, tenant: str) -> None:
        offset = data.draw(self.starts())
        found = self.log.at(tenant, offset)
        assert (found is not None) == (offset in self.all[tenant])
        if found is not None:
            assert found[0].offset == offset
            assert found[1] == encode_metadata(found[0])

    @rule(data=st.data(), tenant=st.sampled_from("ab"))
    def pick(self, data: st.DataObject, tenant: str) -> None:
        committed = self.all[tenant][: self.committed_count[tenant]]
        offsets = sorted(data.draw(st.sets(self.starts(), max_size=8)))
        offsets = [offset for offset in offsets if committed and offset <= committed[-1]]
        found = list(self.log.pick(tenant, offsets))
        assert [message.offset for message, _ in found] == [o for o in offsets if o in committed]
        assert all(metadata == encode_metadata(message) for message, metadata in found)

    @precondition(lambda self: self.owner)
    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.owner)))
        tenant = self.owner[message_id]
        found = self.log.find(tenant, message_id)
        assert found is not None
        newest = self.newest.get(message_id, message_id)
        assert (found[0].id, found[0].offset) == (message_id, newest)
        assert self.log.find("b" if tenant == "a" else "a", message_id) is None

    @rule(low=st.integers(0, 6000), length=st.integers(0, 6000))
    def replacements(self, low: int, length: int) -> None:
        expected = [pair for pair in self.replacing if low <= pair[0] < low + length]
        assert list(self.log.replacements(low, low + length)) == expected


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_entries_far_apart_are_looked_for_and_near_ones_passed_by(
    log: Log, commit_log: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        _append(log, "a", 1)
        _append(log, "b", 2)
        commit_log()
    everything = _offsets(log, "a")
    for most in (1, 3, 64):
        monkeypatch.setattr(log_module, "_MAX_PASSED", most)
        for step in (1, 2, 5, 9, 19):
            wanted = everything[::step]
            found = [message.offset for message, _ in log.pick("a", [*wanted, wanted[-1] + 1])]
            assert found == wanted


@pytest.mark.parametrize("seed", range(20))
def test_entries_are_counted_while_the_log_grows_and_the_cursor_moves(
    log: Log, commit_log: Callable[[], None], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(log_counts, "_RECORDS", random.choice([1, 3, 10]))
    now = 0

    def grow(commits: int) -> None:
        nonlocal now
        for _ in range(commits):
            for _ in range(random.randint(1, 3)):
                _append(log, random.choice("aab"), random.randint(1, 4), now)
                log.reserve(random.randint(0, 2), now)  # Offsets that nothing was stored at.
            now += random.choice([0, 0, SEGMENT_AGE_MS])
            if random.random() < 0.8:
                commit_log()

    grow(40)
    cursor = random.randint(0, 60)
    count = EntryCount(log, "a", cursor)
    turns = 1
    while count.run(cursor):
        turns += 1
        if turns < 60:
            grow(random.randint(0, 2))
            cursor += random.choice([0, 0, 2, 9])
    assert turns > 1
    assert count.total == len(_offsets(log, "a", cursor))


def test_an_unknown_tenant_has_an_empty_log(log: Log) -> None:
    assert _offsets(log, "nobody") == []
    assert list(log.pick("nobody", [0, 1])) == []
    assert log.at("nobody", 0) is None
    assert "nobody" not in log.tenants
    assert _count(log, "nobody", 0) == 0


def test_a_commit_of_more_messages_than_an_array_counts_is_several_entries(
    log: Log,
    adapter: MemoryAdapter,
    commit_log: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_pairs, "_MAX_ENTRY", 2)
    _append(log, "a", 5)
    commit_log()
    prefix = log.tenant("a").keys.prefix(1)
    counts = [value[0] for _, value in adapter.scan(prefix, prefix + b"\xff")]
    assert counts == [2, 2, 1]
    assert _offsets(log, "a", 3) == [3, 4]


@law("A1")
def test_how_far_the_archive_is_survives_and_never_goes_back(
    log: Log, adapter: MemoryAdapter, commit_log: Callable[[], None]
) -> None:
    _append(log, "a", 3)
    log.archive("a", 1)
    log.archive("a", 0)
    commit_log()
    key = bytes.fromhex("01070f 61")
    assert adapter.get(key) == seal(bytes.fromhex("0300000000000000 0100000000000000"))
    reopened = Log(Stage(adapter))
    reopened.load()
    assert reopened.tenant("a").archived == 1


@law("X1")
def test_an_entry_under_the_wrong_offset(
    log: Log, adapter: MemoryAdapter, commit_log: Callable[[], None]
) -> None:
    _append(log, "a", 1)
    commit_log()
    keys = log.tenant("a").keys
    value = adapter.get(keys.entry(1, 0))
    assert value is not None
    adapter.write({keys.entry(1, 5): value, keys.entry(1, 0): None}, [], sync=True)
    with pytest.raises(StoreCorrupt, match="below its own"):
        _offsets(log, "a")
