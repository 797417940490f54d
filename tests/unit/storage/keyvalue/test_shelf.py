"""The shelf against a sorted dict, with eviction, commits and reopening at random.

The law under test (C4, C5): however much of the shelf is on disk, the head is the lowest
claim id of all, and nothing is lost or met twice.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.encoding import pack_utf8, seal
from penstock.storage.keyvalue.entry import LEASE, Entry
from penstock.storage.keyvalue.keys import (
    LANE_SPAN,
    LANES,
    NUMBER_MASK,
    QueueKeys,
    bucket_of,
    claim_id_of,
    message_id_of,
)
from penstock.storage.keyvalue.receipts import Receipts
from penstock.storage.keyvalue.records import AVAILABLE, array
from penstock.storage.keyvalue.shelf import Shelf
from penstock.storage.keyvalue.stage import Stage
from penstock.testing.laws import law

KEYS = QueueKeys("t", "q")
DEAD_KEYS = QueueKeys("t", "q.dlq")
QUEUE_NUMBER = 3
RECEIPTS = Receipts(b"key")
#: Times are small and never 0, so that a lost one shows.
FAILED_AT = 5


class ShelfMachine(RuleBasedStateMachine):
    """What a queue does with its shelf, in any order."""

    dead_letters = False
    keys = KEYS

    @initialize(exponent=st.integers(0, 2))
    def begin(self, exponent: int) -> None:
        self.exponent = exponent
        self.adapter = MemoryAdapter()
        self.stage = Stage(self.adapter)
        self.shelf = Shelf(self.stage, self.keys, dead_letters=self.dead_letters)
        self.waiting: dict[int, int] = {}
        self.held: dict[int, Entry] = {}
        self.gone: set[int] = set()
        self.next_id = 0
        self.grant = 0
        self.completed = 0
        self.committing = False

    # -- choosing ----------------------------------------------------------------------

    def entry(self, claim_id: int, attempts: int) -> Entry:
        entry = Entry.waiting(message_id_of(claim_id), claim_id, attempts, b"%x" % claim_id)
        if self.dead_letters:
            entry.at = FAILED_AT
            entry.rest_failed()
        return entry

    @staticmethod
    def pick(data: st.DataObject, pool: dict[int, int] | dict[int, Entry] | set[int]) -> int:
        return data.draw(st.sampled_from(sorted(pool)))

    # -- moving ------------------------------------------------------------------------

    @rule(priority=st.sampled_from([0, 4, 4, 4, 9]), gap=st.sampled_from([1, 1, 1, 7, 150]))
    def add_new(self, priority: int, gap: int) -> None:
        self.next_id += gap
        claim_id = claim_id_of(self.exponent, priority, self.next_id)
        self.shelf.add(self.entry(claim_id, 0))
        self.waiting[claim_id] = 0

    @rule(priorities=st.lists(st.sampled_from([0, 4, 4, 4, 4, 4, 9]), min_size=1, max_size=30))
    def add_many(self, priorities: list[int]) -> None:
        """A publish: ids follow one another, lanes do not."""
        entries = []
        for priority in priorities:
            self.next_id += 1
            claim_id = claim_id_of(self.exponent, priority, self.next_id)
            entries.append(self.entry(claim_id, 0))
            self.waiting[claim_id] = 0
        self.shelf.add_many(entries)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def add_many_again(self, data: st.DataObject) -> None:
        """In any order, and between what is there already."""
        again = data.draw(st.lists(st.sampled_from(sorted(self.gone)), unique=True))
        self.gone.difference_update(again)
        self.waiting.update(dict.fromkeys(again, 0))
        self.shelf.add_many(self.entry(claim_id, 0) for claim_id in again)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        """A replay: back at its old place, wherever the head is by now."""
        claim_id = self.pick(data, self.gone)
        self.gone.remove(claim_id)
        self.shelf.add(self.entry(claim_id, 0))
        self.waiting[claim_id] = 0

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        claim_id = self.pick(data, self.waiting)
        entry = self.shelf.remove(claim_id)
        self.check_entry(entry, claim_id, self.waiting.pop(claim_id))
        self.gone.add(claim_id)

    @precondition(lambda self: self.waiting)
    @rule(limit=st.integers(1, 12))
    def claim(self, limit: int) -> None:
        """As a claim does: take from the head, bucket by bucket, and hold."""
        while limit and self.waiting:
            bucket = self.shelf.head()
            assert bucket is not None
            claim_id, entry = next(iter(bucket.available.items()))
            assert claim_id == min(self.waiting)
            del bucket.available[claim_id]
            self.shelf.took_from(bucket)
            self.check_entry(entry, claim_id, self.waiting.pop(claim_id))
            self.hold(entry)
            limit -= 1

    def hold(self, entry: Entry) -> None:
        self.grant += 1
        entry.attempts += 1
        entry.claimed_at, entry.consumer = self.grant * 10, f"w{self.grant % 3}"
        entry.grant, entry.epoch = self.grant, self.grant % 2
        lease = LEASE.pack(entry.claim_id, entry.grant, entry.epoch, entry.at)
        entry.lease = lease + pack_utf8(entry.consumer)
        entry.receipt = RECEIPTS.of(QUEUE_NUMBER, entry.claim_id, entry.grant, entry.attempts)
        entry.hold(self.grant * 100)
        self.shelf.hold(entry)
        self.held[entry.claim_id] = entry

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        entry = self.held.pop(self.pick(data, self.held))
        self.shelf.let_go(entry)
        entry.rest()
        if self.dead_letters:
            entry.rest_failed()
        self.shelf.add(entry)
        self.waiting[entry.claim_id] = entry.attempts

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        entry = self.held.pop(self.pick(data, self.held))
        self.shelf.let_go(entry)
        self.gone.add(entry.claim_id)

    # -- looking -----------------------------------------------------------------------

    @rule()
    def head(self) -> None:
        bucket = self.shelf.head()
        if not self.waiting:
            assert bucket is None
            return
        assert bucket is not None
        assert next(iter(bucket.available)) == min(self.waiting)
        assert list(bucket.available) == sorted(bucket.available)

    @rule(lane=st.integers(0, LANES - 1))
    def lane_head(self, lane: int) -> None:
        bucket = self.shelf.lane_head(lane)
        mine = [c for c in self.waiting if (c & NUMBER_MASK) // LANE_SPAN == lane]
        first = None if bucket is None else next(iter(bucket.available))
        assert first == min(mine, default=None)

    @rule(data=st.data())
    def walk(self, data: st.DataObject) -> None:
        known = sorted({*self.waiting, *self.held, *self.gone})
        after = data.draw(st.sampled_from([-1, *known]))
        loaded = set(self.shelf._buckets)
        walked = [(entry.claim_id, entry.attempts) for entry in self.shelf.walk(after)]
        expected = sorted(pair for pair in self.waiting.items() if pair[0] > after)
        assert walked == expected
        assert set(self.shelf._buckets) == loaded

    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        known = sorted({*self.waiting, *self.held, *self.gone})
        assume(known)
        claim_id = data.draw(st.sampled_from(known))
        found = self.shelf.find(claim_id)
        assert (found is not None) == (claim_id in self.waiting)
        if found is not None:
            self.check_entry(found, claim_id, self.waiting[claim_id])
        assert self.shelf.held(claim_id) is self.held.get(claim_id)

    @rule(low=st.integers(0, 400), length=st.integers(0, 200))
    def refers(self, low: int, length: int) -> None:
        high = low + length
        expected = any(low <= message_id_of(c) < high for c in (*self.waiting, *self.held))
        assert (self.shelf.find_any(low, high, self.exponent) is not None) == expected

    def check_entry(self, entry: Entry, claim_id: int, attempts: int) -> None:
        fresh = self.entry(claim_id, attempts)
        assert (entry.claim_id, entry.attempts, entry.at) == (claim_id, attempts, fresh.at)
        assert entry.encoded == fresh.encoded

    # -- between memory and disk -------------------------------------------------------

    @precondition(lambda self: not self.committing)
    @rule()
    def take(self) -> None:
        self.batch = self.stage.take()
        self.committing = True

    @precondition(lambda self: self.committing)
    @rule()
    def committed(self) -> None:
        self.adapter.write(self.batch.writes, self.batch.removed, self.batch.sync)
        self.stage.committed()
        self.completed += 1
        self.committing = False

    @rule(keep=st.integers(0, 6))
    def evict(self, keep: int) -> None:
        self.shelf.evict(keep, self.completed)

    @rule(keep=st.integers(0, 2))
    def commit_and_evict(self, keep: int) -> None:
        if not self.committing:
            self.take()
        self.committed()
        self.evict(keep)

    @rule()
    def reopen(self) -> None:
        for _ in range(2):
            if not self.committing:
                self.take()
            self.committed()
        self.stage = Stage(self.adapter)
        self.completed = 0
        self.shelf = Shelf(self.stage, self.keys, dead_letters=self.dead_letters)
        self.shelf.start(self.exponent, self.next_id)
        before, self.held = self.held, {}
        for entry in self.shelf.load_leases(QUEUE_NUMBER, RECEIPTS):
            self.held[entry.claim_id] = entry
        assert self.held.keys() == before.keys()
        for claim_id, entry in self.held.items():
            old = before[claim_id]
            for field in Entry.__struct_fields__:
                if field != "loaded":
                    assert getattr(entry, field) == getattr(old, field), field

    # -- what always holds -------------------------------------------------------------

    @invariant()
    def what_is_not_loaded_is_spilled(self) -> None:
        for claim_id in self.waiting:
            bucket_id = bucket_of(claim_id)
            if bucket_id not in self.shelf._buckets:
                assert self.shelf._lane(bucket_id).is_spilled(bucket_id)

    @invariant()
    def heads_are_the_loaded_buckets_with_something_available(self) -> None:
        expected = sorted(i for i, bucket in self.shelf._buckets.items() if bucket.available)
        assert sorted(i for lane in self.shelf._lanes for i in lane.heads) == expected
        for lane in self.shelf._lanes:
            assert lane.heads == sorted(lane.heads)

    @invariant()
    def held_entries_are_loaded(self) -> None:
        for claim_id, entry in self.held.items():
            assert self.shelf.held(claim_id) is entry

    @invariant()
    def a_loaded_bucket_is_the_truth(self) -> None:
        for bucket_id, bucket in self.shelf._buckets.items():
            mine = {c for c in self.waiting if bucket_of(c) == bucket_id}
            assert bucket.available.keys() == mine

    def teardown(self) -> None:
        """Hand out what is left: everything, once, in order."""
        if hasattr(self, "shelf"):
            rest = sorted(self.waiting)
            out = []
            while (bucket := self.shelf.head()) is not None:
                claim_id = next(iter(bucket.available))
                out.append(claim_id)
                self.shelf.remove(claim_id)
            assert out == rest


class DeadLetterMachine(ShelfMachine):
    """The same for dead letters, whose waiting entries are failed records."""

    dead_letters = True
    keys = DEAD_KEYS


TestShelf = ShelfMachine.TestCase
TestShelf.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestDeadLetters = DeadLetterMachine.TestCase
TestDeadLetters.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


# -- one thing at a time -------------------------------------------------------------------


def _shelf(stage: Stage, *message_ids: int) -> Shelf:
    shelf = Shelf(stage, KEYS, dead_letters=False)
    for message_id in message_ids:
        shelf.add(Entry.waiting(message_id, claim_id_of(2, 4, message_id), 0, b"m"))
    return shelf


def _ids(shelf: Shelf, after: int = -1) -> list[int]:
    return [entry.message_id for entry in shelf.walk(after)]


def test_a_bucket_is_a_join_of_its_entries(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    _shelf(stage, 7, 8, 150)
    commit()
    first, second = (claim_id_of(2, 4, number).to_bytes(8, "big") for number in (0, 100))
    elements = [AVAILABLE.pack(i, claim_id_of(2, 4, i), 0, 1) + b"m" for i in (7, 8, 150)]
    assert adapter.get(KEYS.active + first) == array(elements[:2]) + b"\0\0"
    assert adapter.get(KEYS.active + second) == array(elements[2:]) + b"\0\0"


def test_an_empty_bucket_has_no_record(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    shelf = _shelf(stage, 7)
    commit()
    shelf.remove(claim_id_of(2, 4, 7))
    commit()
    assert list(adapter.scan(b"", b"\xff")) == []


def test_a_bucket_that_moved_often_is_written_once(stage: Stage) -> None:
    shelf = _shelf(stage)
    for number in range(100):
        shelf.add(Entry.waiting(number, claim_id_of(2, 4, number), 0, b""))
    assert len(stage.take().writes) == 1


@pytest.mark.parametrize("keep", [0, 1, 4])
def test_eviction_leaves_the_head_and_what_cannot_go(
    stage: Stage, commit: Callable[[], int], keep: int
) -> None:
    shelf = _shelf(stage, *range(0, 1000, 100))
    shelf.evict(keep, completed=0)
    assert len(shelf._buckets) == 10, "nothing is committed yet"
    completed = commit()
    shelf.evict(keep, completed)
    # The bucket that was added to last stays, because the next one will be added to it too.
    assert len(shelf._buckets) == max(keep - keep // 4, 1)
    if keep == 4:
        assert min(shelf._buckets) == bucket_of(claim_id_of(2, 4, 0))
    assert _ids(shelf) == list(range(0, 1000, 100))


def test_the_head_comes_back_from_disk_a_few_buckets_at_a_time(
    stage: Stage, commit: Callable[[], int]
) -> None:
    shelf = _shelf(stage, *range(0, 2000, 100))
    shelf.evict(0, commit())
    bucket = shelf.head()
    assert bucket is not None
    assert list(bucket.available) == [claim_id_of(2, 4, 0)]
    assert len(shelf._buckets) == 5


def test_looking_things_up_does_not_fill_memory(stage: Stage, commit: Callable[[], int]) -> None:
    """Nobody commits while somebody reads; what was loaded has to go all the same."""
    shelf = _shelf(stage, *range(0, 5000 * 100, 100))
    completed = commit()
    shelf.evict(2, completed)
    for message_id in range(0, 5000 * 100, 100):
        entry = shelf.find(claim_id_of(2, 4, message_id))
        assert entry is not None
        assert entry.message_id == message_id
        assert len(shelf._buckets) <= 1000
    assert _ids(shelf) == list(range(0, 5000 * 100, 100))


def test_what_is_not_committed_stays_however_much_is_loaded(
    stage: Stage, commit: Callable[[], int]
) -> None:
    shelf = _shelf(stage, *range(0, 3000 * 100, 100))
    assert len(shelf._buckets) == 3000
    assert _ids(shelf) == list(range(0, 3000 * 100, 100))
    commit()
    assert shelf.find(claim_id_of(2, 4, 10**6)) is None
    assert len(shelf._buckets) <= 1000
    assert _ids(shelf) == list(range(0, 3000 * 100, 100))


def test_opening_reads_no_backlog(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    _shelf(stage, *range(500))
    commit()
    reopened = Shelf(Stage(adapter), KEYS, dead_letters=False)
    reopened.start(2, 499)
    assert reopened.load_leases(0, RECEIPTS) == []
    assert reopened._buckets == {}
    assert _ids(reopened) == list(range(500))


def test_a_new_store_has_nothing_spilled(stage: Stage) -> None:
    shelf = Shelf(stage, KEYS, dead_letters=False)
    shelf.start(2, -1)
    assert shelf.head() is None
    assert shelf._buckets == {}


def test_a_discarded_shelf_writes_nothing(stage: Stage) -> None:
    shelf = _shelf(stage, 1, 200)
    shelf.discard()
    assert stage.take().writes == {}


@law("C4")
def test_walk_is_in_claim_order_on_disk_too(stage: Stage, commit: Callable[[], int]) -> None:
    """Entry 0 came back behind 1 and 2, as after a nack; then the bucket left memory."""
    shelf = _shelf(stage, 1, 2, 0, 200)
    shelf.evict(0, commit())
    assert _ids(shelf) == [0, 1, 2, 200]


@law("X1")
def test_a_bucket_with_an_entry_of_another(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    shelf = _shelf(stage, 7, 150)
    commit()
    value = adapter.get(KEYS.active + claim_id_of(2, 4, 0).to_bytes(8, "big"))
    assert value is not None
    adapter.write({KEYS.active + claim_id_of(2, 4, 100).to_bytes(8, "big"): value}, [], sync=True)
    shelf = Shelf(Stage(adapter), KEYS, dead_letters=False)
    shelf.start(2, 150)
    with pytest.raises(StoreCorrupt, match="another bucket"):
        shelf.head()


@law("X1")
def test_a_lease_without_its_bucket(adapter: MemoryAdapter) -> None:
    lease = LEASE.pack(claim_id_of(2, 4, 7), 1, 0, 0) + pack_utf8("w")
    key = KEYS.leases + claim_id_of(2, 4, 0).to_bytes(8, "big")
    adapter.write({key: seal(array([lease]))}, [], sync=True)
    shelf = Shelf(Stage(adapter), KEYS, dead_letters=False)
    with pytest.raises(StoreCorrupt, match="no bucket"):
        shelf.load_leases(0, RECEIPTS)


@law("X1")
def test_a_damaged_lease(adapter: MemoryAdapter) -> None:
    lease = LEASE.pack(claim_id_of(2, 4, 7), 1, 0, 0) + pack_utf8("w")
    suffix = claim_id_of(2, 4, 0).to_bytes(8, "big")
    adapter.write(
        {KEYS.leases + suffix: array([lease]) + bytes(4), KEYS.active + suffix: bytes(4)},
        [],
        sync=True,
    )
    shelf = Shelf(Stage(adapter), KEYS, dead_letters=False)
    with pytest.raises(StoreCorrupt, match="checksum of a lease"):
        shelf.load_leases(0, RECEIPTS)


@law("X1")
def test_a_lease_of_an_entry_that_is_not_in_flight(adapter: MemoryAdapter) -> None:
    lease = LEASE.pack(claim_id_of(2, 4, 7), 1, 0, 0) + pack_utf8("w")
    suffix = claim_id_of(2, 4, 0).to_bytes(8, "big")
    adapter.write(
        {KEYS.leases + suffix: seal(array([lease])), KEYS.active + suffix: bytes(4)}, [], sync=True
    )
    shelf = Shelf(Stage(adapter), KEYS, dead_letters=False)
    with pytest.raises(StoreCorrupt):
        shelf.load_leases(0, RECEIPTS)


@law("X1")
def test_an_entry_in_flight_without_a_lease(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    shelf = _shelf(stage, 7)
    entry = shelf.remove(claim_id_of(2, 4, 7))
    entry.claimed_at, entry.lease = 1, LEASE.pack(entry.claim_id, 1, 0, 0) + pack_utf8("w")
    entry.hold(100)
    shelf.hold(entry)
    commit()
    suffix = claim_id_of(2, 4, 0).to_bytes(8, "big")
    adapter.write({KEYS.leases + suffix: seal(array([]))}, [], sync=True)
    reopened = Shelf(Stage(adapter), KEYS, dead_letters=False)
    reopened.start(2, 7)
    with pytest.raises(StoreCorrupt):
        reopened.load_leases(0, RECEIPTS)
