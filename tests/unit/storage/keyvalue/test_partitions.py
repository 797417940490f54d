from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import StoreCorrupt
from penstock.filters import parse
from penstock.model.delivery import Receipt
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.model.message import Message, MessageId, Offset
from penstock.model.queue import Ordering, QueuePolicy
from penstock.model.states import Transition
from penstock.storage.keyvalue import partitions as module
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import claim_id_of
from penstock.storage.keyvalue.metadata import encode_metadata
from penstock.storage.keyvalue.notifications import Notifier
from penstock.storage.keyvalue.partitions import Partition, Partitions, fair_share
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.receipts import Receipts
from penstock.storage.keyvalue.stage import Stage
from penstock.testing.laws import law

TakeBack: TypeAlias = Callable[[Entry, Transition], object]


def _queue(stage: Stage, concurrency: int = 1) -> tuple[Queue, Partitions]:
    policy = QueuePolicy(ordering=Ordering.PARTITION, partition_concurrency=concurrency)
    queue = Queue(
        stage, "t", "q", 0, policy, parse("TRUE"), notifier=Notifier(), receipts=Receipts(b"key")
    )
    queue.partitions = Partitions(queue)
    return queue, queue.partitions


def _entry(message_id: int, partition: str | None, priority: int = 4) -> Entry:
    message = Message(
        MessageId(message_id),
        Offset(message_id),
        "t",
        priority,
        0,
        0,
        None,
        0,
        0,
        partition_key=partition,
    )
    claim_id = claim_id_of(2, priority, message_id)
    return Entry.waiting(message_id, claim_id, 0, encode_metadata(message), message)


def _fill(partitions: Partitions, names: Iterable[str]) -> dict[str, Entry]:
    """One delivery a partition; ids in the order of the names given."""
    entries = {name: _entry(number, name) for number, name in enumerate(names)}
    for entry in entries.values():
        partitions.added(entry)
    return entries


def _never(entry: Entry, by: Transition) -> object:
    raise AssertionError(f"message {entry.message_id} was taken back by {by}")


def _hold(queue: Queue, partitions: Partitions, entry: Entry) -> None:
    entry.receipt = Receipt(f"r{entry.message_id}")
    queue.claims[entry.receipt] = entry
    partitions.held(entry)


def _leave(partitions: Partitions, consumer: str, take_back: TakeBack) -> None:
    partitions.leave(consumer)
    assert partitions.free_departed(take_back) == (0, False)


def _owned(partitions: Partitions, consumer: str) -> list[str]:
    return [partition.name for partition in partitions.owned_by(consumer, None, 1_000)]


# -- fair shares ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "partitions, consumers, shares",
    [
        (10, 1, [10]),
        (10, 2, [5, 5]),
        (10, 3, [4, 3, 3]),
        (11, 3, [4, 4, 3]),
        (2, 3, [1, 1, 1]),
        (0, 2, [1, 1]),
        (3, 3, [1, 1, 1]),
    ],
)
def test_fair_share(partitions: int, consumers: int, shares: list[int]) -> None:
    assert [fair_share(partitions, consumers, rank) for rank in range(consumers)] == shares


@given(st.integers(0, 1000), st.integers(1, 50))
def test_fair_shares_cover_everything_and_differ_by_one(partitions: int, consumers: int) -> None:
    shares = [fair_share(partitions, consumers, rank) for rank in range(consumers)]
    assert sum(shares) == max(partitions, sum(shares) if partitions < consumers else 0)
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)
    assert min(shares) >= 1


# -- who owns what -------------------------------------------------------------------------


@law("O1")
def test_consumers_share_by_joining(stage: Stage) -> None:
    _, partitions = _queue(stage)
    _fill(partitions, "abcd")
    partitions.join("w1", 0, _never)
    assert _owned(partitions, "w1") == ["a", "b", "c", "d"]
    partitions.join("w2", 0, _never)
    assert _owned(partitions, "w2") == []
    partitions.join("w1", 0, _never)
    assert _owned(partitions, "w1") == ["a", "b"]
    partitions.join("w2", 0, _never)
    assert _owned(partitions, "w2") == ["c", "d"]


@law("O1")
def test_every_ownership_has_a_new_epoch(stage: Stage) -> None:
    queue, partitions = _queue(stage)
    _fill(partitions, "ab")
    epochs = []
    for consumer in ("w1", "w2", "w1"):
        partitions.join(consumer, 0, _never)
        epochs += [partition.epoch for partition in partitions.owned_by(consumer, None, 9)]
        _leave(partitions, consumer, _never)
    assert epochs == [1, 2, 3, 4, 5, 6]
    assert queue.epoch == 6


def test_idle_partitions_are_released_first_then_by_name_from_the_last(stage: Stage) -> None:
    queue, partitions = _queue(stage)
    entries = _fill(partitions, "abcdef")
    partitions.join("w1", 0, _never)
    for name in "bef":
        _hold(queue, partitions, entries[name])
    partitions.consumers["w2"] = CONSUMER_LEASE_MS
    # a, c and d are idle: they go, although e and f come after them.
    partitions.join("w1", 0, _never)
    assert _owned(partitions, "w1") == ["b", "e", "f"]


def test_busy_partitions_are_released_when_there_are_no_idle_ones(stage: Stage) -> None:
    queue, partitions = _queue(stage)
    entries = _fill(partitions, "abcd")
    partitions.join("w1", 0, _never)
    for name in "abcd":
        _hold(queue, partitions, entries[name])
    partitions.consumers["w2"] = CONSUMER_LEASE_MS
    back: list[tuple[int, Transition]] = []
    partitions.join("w1", 0, lambda entry, by: back.append((entry.message_id, by)))
    assert _owned(partitions, "w1") == ["a", "b"]
    assert back == [(entries[name].message_id, Transition.RELEASE) for name in "dc"]


def test_leaving_gives_everything_back_in_publish_order(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    queue, partitions = _queue(stage, concurrency=3)
    entries = [_entry(number, "p") for number in range(3)]
    for entry in entries:
        partitions.added(entry)
    partitions.join("w1", 0, _never)
    commit()
    assert adapter.get(queue.keys.consumer + b"w1") is not None
    for entry in reversed(entries):
        _hold(queue, partitions, entry)
    back: list[tuple[int, Transition]] = []
    _leave(partitions, "w1", lambda entry, by: back.append((entry.message_id, by)))
    commit()
    assert back == [(number, Transition.RELEASE) for number in range(3)]
    assert partitions.by_name["p"].owner is None
    assert adapter.get(queue.keys.consumer + b"w1") is None
    _leave(partitions, "unknown", _never)


def test_a_consumer_without_a_heartbeat_is_forgotten(stage: Stage) -> None:
    queue, partitions = _queue(stage)
    entries = _fill(partitions, "ab")
    partitions.join("w1", 0, _never)
    _hold(queue, partitions, entries["a"])
    partitions.drop_dead(CONSUMER_LEASE_MS - 1)
    assert partitions.free_departed(_never) == (0, False)
    taken: list[tuple[int, Transition]] = []
    partitions.drop_dead(CONSUMER_LEASE_MS)
    back = partitions.free_departed(lambda entry, by: taken.append((entry.message_id, by)))
    assert back == (1, False)
    assert taken == [(0, Transition.LAPSE)]
    assert partitions.consumers == {}
    assert _owned(partitions, "w1") == []


def test_a_heartbeat_renews_the_lease_and_takes_over_from_the_dead(stage: Stage) -> None:
    _, partitions = _queue(stage)
    _fill(partitions, "ab")
    partitions.join("w1", 0, _never)
    partitions.join("w2", 20_000, _never)
    partitions.join("w2", CONSUMER_LEASE_MS, _never)
    assert partitions.consumers == {"w2": 2 * CONSUMER_LEASE_MS}
    assert _owned(partitions, "w2") == ["a", "b"]


# -- records -------------------------------------------------------------------------------


def test_golden_records(stage: Stage) -> None:
    queue, partitions = _queue(stage)
    partitions.added(_entry(7, "p"))
    partitions.join("w1", 0, _never)
    writes = stage.take().writes
    name = "742f7100"
    claim = "0700b2d3595bf026"
    assert writes[bytes.fromhex(f"01070a{name}70")] == seal(
        bytes.fromhex("0100000000000000 0100000000000000 01 0200 7731")
    )
    assert writes[bytes.fromhex(f"01070b{name}7000 0000000000000007")] == seal(bytes.fromhex(claim))
    assert writes[bytes.fromhex(f"01070c{name}7731")] == seal(bytes.fromhex("3075000000000000"))
    assert queue.epoch == 1


def test_a_partition_without_an_owner(stage: Stage) -> None:
    _, partitions = _queue(stage)
    partitions.added(_entry(7, None))
    writes = stage.take().writes
    assert writes[bytes.fromhex("01070a 742f7100")] == seal(
        bytes.fromhex("0000000000000000 0100000000000000 00")
    )


def test_a_partition_that_is_empty_has_no_record(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    queue, partitions = _queue(stage)
    entry = _entry(7, "p")
    partitions.added(entry)
    commit()
    partitions.removed(entry)
    assert partitions.by_name == {}
    commit()
    assert list(adapter.scan(queue.keys.partition, queue.keys.partition + b"\xff")) == []
    assert list(adapter.scan(queue.keys.sequence, queue.keys.sequence + b"\xff")) == []


def test_a_partition_that_comes_back_in_the_same_commit_has_one(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    queue, partitions = _queue(stage)
    entry = _entry(7, "p")
    partitions.added(entry)
    partitions.removed(entry)
    partitions.added(entry)
    commit()
    assert adapter.get(queue.keys.partition + b"p") is not None


@law("X1")
@pytest.mark.parametrize("record", ["partition", "consumer"])
def test_damaged_records(stage: Stage, adapter: MemoryAdapter, record: str) -> None:
    queue, partitions = _queue(stage)
    adapter.write({getattr(queue.keys, record) + b"x": bytes(21)}, [], sync=True)
    with pytest.raises(StoreCorrupt, match=f"checksum of a {record}"):
        partitions.load()


# -- what may be handed out ----------------------------------------------------------------


def _drain(queue: Queue, partitions: Partitions, partition: Partition) -> list[int]:
    by_claim = {claim_id_of(2, 4, number): number for number in range(10_000)}
    out = []
    while partition.unsettled:
        claim_id = partitions.next_of(partition)
        assert claim_id is not None
        out.append(by_claim[claim_id])
        partitions.removed(_entry(by_claim[claim_id], partition.name))
    return out


@law("C4")
@pytest.mark.parametrize("count", [1, 127, 128, 129, 255, 256, 257, 1000])
def test_a_deep_partition_is_handed_out_in_order(stage: Stage, count: int) -> None:
    queue, partitions = _queue(stage)
    for number in range(count):
        partitions.added(_entry(number, "p"))
    partition = partitions.by_name["p"]
    assert len(partition.window or ()) <= 256
    assert _drain(queue, partitions, partition) == list(range(count))


@law("C4")
def test_a_deep_partition_after_a_restart(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    _, partitions = _queue(stage)
    for number in range(700):
        partitions.added(_entry(number, "p"))
    commit()
    queue, partitions = _queue(Stage(adapter))
    partitions.load()
    partition = partitions.by_name["p"]
    assert (partition.unsettled, partition.window) == (700, None)
    assert partitions.first_unsettled(partition) == 0
    assert len(partition.window or ()) == 128
    assert _drain(queue, partitions, partition) == list(range(700))


@law("C4")
def test_a_replayed_delivery_goes_first_again(stage: Stage) -> None:
    queue, partitions = _queue(stage)
    for number in range(1, 600):
        partitions.added(_entry(number, "p"))
    partitions.added(_entry(0, "p"))
    assert partitions.next_of(partitions.by_name["p"]) == claim_id_of(2, 4, 0)
    assert _drain(queue, partitions, partitions.by_name["p"]) == list(range(600))


@law("C4")
def test_priority_does_not_overtake_inside_a_partition(stage: Stage) -> None:
    _, partitions = _queue(stage)
    partitions.added(_entry(0, "p", priority=0))
    partitions.added(_entry(1, "p", priority=9))
    assert partitions.next_of(partitions.by_name["p"]) == claim_id_of(2, 0, 0)


class PartitionMachine(RuleBasedStateMachine):
    """One partition with a window of two, against a sorted list."""

    @initialize(concurrency=st.integers(1, 3))
    def begin(self, concurrency: int) -> None:
        self.adapter = MemoryAdapter()
        self.stage = Stage(self.adapter)
        self.concurrency = concurrency
        self.queue, self.partitions = _queue(self.stage, concurrency)
        self.entries: dict[int, Entry] = {}
        self.in_flight: set[int] = set()
        self.delayed: set[int] = set()
        self.gone: set[int] = set()
        self.next_id = 0

    @property
    def partition(self) -> Partition:
        return self.partitions.by_name["p"]

    def pick(self, data: st.DataObject, pool: Iterable[int]) -> int:
        choices = sorted(pool)
        assume(choices)
        return data.draw(st.sampled_from(choices))

    def add(self, message_id: int) -> None:
        self.entries[message_id] = _entry(message_id, "p")
        self.partitions.added(self.entries[message_id])

    @rule(count=st.integers(1, 6))
    def add_new(self, count: int) -> None:
        for _ in range(count):
            self.next_id += 1
            self.add(self.next_id)

    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        message_id = self.pick(data, self.gone)
        self.gone.remove(message_id)
        self.add(message_id)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        message_id = self.pick(data, self.entries.keys() - self.in_flight - self.delayed)
        self.partitions.removed(self.entries.pop(message_id))
        self.gone.add(message_id)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        message_id = self.pick(data, self.in_flight)
        self.let_go_of(message_id)
        self.partitions.removed(self.entries.pop(message_id))
        self.gone.add(message_id)

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.let_go_of(self.pick(data, self.in_flight))

    def let_go_of(self, message_id: int) -> None:
        entry = self.entries[message_id]
        del self.queue.claims[entry.receipt]
        self.partitions.let_go(entry)
        self.in_flight.remove(message_id)

    def place(self, message_id: int) -> bytes:
        return self.queue.keys.place + self.entries[message_id].claim_id.to_bytes(8, "big")

    @rule(data=st.data())
    def delay(self, data: st.DataObject) -> None:
        message_id = self.pick(data, self.entries.keys() - self.in_flight - self.delayed)
        self.stage.put(self.place(message_id), seal(bytes(8)))
        self.delayed.add(message_id)
        self.queue.delayed_count += 1

    @rule(data=st.data())
    def due(self, data: st.DataObject) -> None:
        message_id = self.pick(data, self.delayed)
        self.stage.delete(self.place(message_id))
        self.delayed.remove(message_id)
        self.queue.delayed_count -= 1

    def expected(self) -> int | None:
        if len(self.in_flight) >= self.concurrency:
            return None
        for message_id in sorted(self.entries):
            if message_id not in self.in_flight and message_id not in self.delayed:
                return message_id
            if self.concurrency == 1:
                return None
        return None

    @precondition(lambda self: self.entries)
    @rule(claim=st.booleans())
    def next_of(self, claim: bool) -> None:
        claim_id = self.partitions.next_of(self.partition)
        expected = self.expected()
        assert claim_id == (None if expected is None else claim_id_of(2, 4, expected))
        if claim and expected is not None:
            _hold(self.queue, self.partitions, self.entries[expected])
            self.in_flight.add(expected)

    @precondition(lambda self: self.entries)
    @rule()
    def first_unsettled(self) -> None:
        assert self.partitions.first_unsettled(self.partition) == min(self.entries)

    @rule()
    def commit(self) -> None:
        batch = self.stage.take()
        self.adapter.write(batch.writes, batch.removed, batch.sync)
        self.stage.committed()

    @rule()
    def reopen(self) -> None:
        self.commit()
        self.stage = Stage(self.adapter)
        claims = self.queue.claims
        self.queue, self.partitions = _queue(self.stage, self.concurrency)
        self.queue.claims = claims
        self.queue.delayed_count = len(self.delayed)
        self.partitions.load()

    @invariant()
    def counts_agree(self) -> None:
        assert ("p" in self.partitions.by_name) == bool(self.entries)
        if self.entries:
            assert self.partition.unsettled == len(self.entries)
            assert self.partition.in_flight_count == len(self.in_flight)

    @invariant()
    def the_window_is_a_prefix(self) -> None:
        if self.entries:
            ids = [message_id for message_id, _ in self.partition.window or ()]
            assert ids == sorted(self.entries)[: len(ids)]
            assert self.partition.partial or len(ids) == len(self.entries)


@law("C4")
def test_any_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WINDOW", 2)
    run_state_machine_as_test(
        PartitionMachine, settings=settings(stateful_step_count=60, deadline=None)
    )
