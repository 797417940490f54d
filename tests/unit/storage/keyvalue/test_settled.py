"""The settled shelf against a dict, with eviction, commits and reopening at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, settings
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
from penstock.storage.keyvalue import settled as module
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.keys import (
    NUMBER_MASK,
    QueueKeys,
    bucket_of,
    claim_id_of,
    message_id_of,
)
from penstock.storage.keyvalue.records import SETTLED, array
from penstock.storage.keyvalue.settled import SLOT_MS, Settled, SettledShelf
from penstock.storage.keyvalue.stage import Stage
from penstock.testing.laws import law

KEYS = QueueKeys("t", "q")
KIND = 1
#: (message id, claim id, at, attempts, metadata)
Row = tuple[int, int, int, int, bytes]


def _encoded(row: Row) -> bytes:
    return SETTLED.pack(*row[:-1], len(row[-1])) + row[-1]


def _row(item: Settled) -> Row:
    return item.message_id, item.claim_id, item.at, item.attempts, item.metadata


class SettledMachine(RuleBasedStateMachine):
    """Entries come in any order and under any exponent; a message is here at most once."""

    @initialize(sealed=st.booleans())
    def begin(self, sealed: bool) -> None:
        self.sealed = sealed
        self.adapter = MemoryAdapter()
        self.model: dict[int, Row] = {}
        self.open()

    def open(self) -> None:
        self.stage = Stage(self.adapter)
        self.shelf = SettledShelf(self.stage, KEYS, KEYS.done, KIND, sealed=self.sealed)
        self.completed = 0

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.model)))

    @rule(
        exponent=st.integers(0, 4),
        priority=st.sampled_from([0, 4, 9]),
        message_id=st.integers(0, 300),
        at=st.integers(0, 5 * SLOT_MS),
    )
    def add(self, exponent: int, priority: int, message_id: int, at: int) -> None:
        assume(message_id not in {row[0] for row in self.model.values()})
        claim_id = claim_id_of(exponent, priority, message_id)
        row = (message_id, claim_id, at, message_id % 7, b"m" * (message_id % 5))
        self.shelf.add(claim_id, at, _encoded(row))
        self.model[claim_id] = row

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        claim_id = self.pick(data)
        self.shelf.remove(claim_id)
        del self.model[claim_id]

    @rule(priority=st.sampled_from([0, 4, 9]), message_id=st.integers(0, 300))
    def find(self, priority: int, message_id: int) -> None:
        ids = {claim_id_of(exponent, priority, message_id) for exponent in range(5)}
        expected = next((row for claim_id, row in self.model.items() if claim_id in ids), None)
        found = self.shelf.find(priority, message_id)
        assert (None if found is None else _row(found)) == expected

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        claim_id = self.pick(data)
        found = self.shelf.get(claim_id)
        assert found is not None
        assert _row(found) == self.model[claim_id]

    @rule(data=st.data())
    def walk(self, data: st.DataObject) -> None:
        numbers = sorted({claim_id & NUMBER_MASK for claim_id in self.model})
        after = data.draw(st.sampled_from([-1, *numbers]))
        expected = sorted(
            (row for claim_id, row in self.model.items() if claim_id & NUMBER_MASK > after),
            key=lambda row: row[1] & NUMBER_MASK,
        )
        assert [_row(item) for item in self.shelf.walk(after)] == expected

    @rule(low=st.integers(0, 300), length=st.integers(0, 100))
    def refers(self, low: int, length: int) -> None:
        expected = any(low <= message_id_of(claim_id) < low + length for claim_id in self.model)
        assert (self.shelf.find_any(low, low + length) is not None) == expected

    @rule()
    def commit(self) -> None:
        batch = self.stage.take()
        self.adapter.write(batch.writes, batch.removed, batch.sync)
        self.stage.committed()
        self.completed += 1

    @rule()
    def evict(self) -> None:
        self.shelf.evict(self.completed)

    @rule()
    def reopen(self) -> None:
        self.commit()
        self.open()

    @invariant()
    def every_entry_has_a_slot(self) -> None:
        for claim_id, row in self.model.items():
            key = KEYS.slot(KIND, row[2] // SLOT_MS, bucket_of(claim_id))
            assert self.stage.get(key) == b""


def test_any_settled_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two buckets, so that many leave memory."""
    monkeypatch.setattr(module, "_KEEP", 2)
    run_state_machine_as_test(
        SettledMachine, settings=settings(stateful_step_count=60, deadline=None)
    )


def _add(shelf: SettledShelf, *message_ids: int) -> None:
    for message_id in message_ids:
        claim_id = claim_id_of(2, 4, message_id)
        shelf.add(claim_id, 0, _encoded((message_id, claim_id, 0, 1, b"")))


def test_memory_stays_bounded(stage: Stage, commit: Callable[[], int]) -> None:
    shelf = SettledShelf(stage, KEYS, KEYS.done, KIND, sealed=False)
    _add(shelf, *range(0, 5000, 100))
    shelf.evict(completed=0)
    assert len(shelf._buckets) == 50
    shelf.evict(commit())
    assert len(shelf._buckets) == 8
    assert [item.message_id for item in shelf.walk(-1)] == list(range(0, 5000, 100))


def test_an_empty_bucket_has_no_record_but_keeps_its_slot(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    """The slot goes when retention has looked at it."""
    shelf = SettledShelf(stage, KEYS, KEYS.done, KIND, sealed=False)
    _add(shelf, 7)
    commit()
    shelf.remove(claim_id_of(2, 4, 7))
    commit()
    bucket_id = bucket_of(claim_id_of(2, 4, 7))
    assert [key for key, _ in adapter.scan(b"", b"\xff")] == [KEYS.slot(KIND, 0, bucket_id)]


def test_a_discarded_shelf_writes_no_bucket(stage: Stage) -> None:
    shelf = SettledShelf(stage, KEYS, KEYS.done, KIND, sealed=False)
    _add(shelf, 7)
    shelf.discard()
    assert not any(key.startswith(KEYS.done) for key in stage.take().writes)


@law("X1")
def test_a_damaged_bucket(stage: Stage, adapter: MemoryAdapter) -> None:
    bucket_id = bucket_of(claim_id_of(2, 4, 7))
    adapter.write({KEYS.done + bucket_id.to_bytes(8, "big"): b"\x01\x00"}, [], sync=True)
    shelf = SettledShelf(stage, KEYS, KEYS.done, KIND, sealed=False)
    with pytest.raises(StoreCorrupt):
        shelf.get(claim_id_of(2, 4, 7))
    with pytest.raises(StoreCorrupt):
        list(shelf.walk(-1))


@pytest.mark.parametrize("sealed", [False, True])
def test_done_buckets_are_the_rfcs_and_expired_ones_are_sealed(stage: Stage, sealed: bool) -> None:
    shelf = SettledShelf(stage, KEYS, KEYS.expired, KIND, sealed=sealed)
    _add(shelf, 7)
    claim_id = claim_id_of(2, 4, 7)
    value = array([_encoded((7, claim_id, 0, 1, b""))])
    written = stage.take().writes[KEYS.expired + bucket_of(claim_id).to_bytes(8, "big")]
    assert written == (seal(value) if sealed else value)
