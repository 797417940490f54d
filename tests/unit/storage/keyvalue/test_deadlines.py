from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.keyvalue.deadlines import Deadlines
from penstock.storage.keyvalue.entry import Entry
from penstock.testing.laws import law

TIMES = st.integers(0, 20)


def _held(claim_id: int, deadline: int) -> Entry:
    entry = Entry.waiting(claim_id, claim_id, 1, b"")
    entry.deadline = deadline
    return entry


def _ids(entries: list[Entry]) -> list[int]:
    return [entry.claim_id for entry in entries]


def test_nothing_is_next_of_nothing() -> None:
    assert Deadlines().next is None
    assert Deadlines().lapsed(10**15, 100) == []


def test_earliest_first_and_in_claim_order() -> None:
    deadlines = Deadlines()
    for claim_id, deadline in ((3, 20), (2, 10), (1, 10), (4, 30)):
        deadlines.add(_held(claim_id, deadline))
    assert deadlines.next == 10
    assert _ids(deadlines.lapsed(9, 100)) == []
    assert _ids(deadlines.lapsed(20, 100)) == [1, 2, 3]


@law("C5")
def test_what_is_not_discarded_lapses_again() -> None:
    """A move that fails half way through them leaves the others to the next claim."""
    deadlines = Deadlines()
    entries = [_held(n, 10) for n in range(4)]
    for entry in entries:
        deadlines.add(entry)
    assert _ids(deadlines.lapsed(10, 100)) == [0, 1, 2, 3]
    deadlines.discard(entries[0])
    assert deadlines.next == 10
    assert _ids(deadlines.lapsed(10, 100)) == [1, 2, 3]


def test_the_bound_cuts_and_loses_nothing() -> None:
    deadlines = Deadlines()
    entries = [_held(n, 10 + n // 3) for n in range(7)]
    for entry in entries:
        deadlines.add(entry)
    seen: list[int] = []
    while lapsed := deadlines.lapsed(99, 2):
        seen += _ids(lapsed)
        for entry in lapsed:
            deadlines.discard(entry)
    assert seen == list(range(7))
    assert deadlines.next is None


def test_settled_entries_are_let_go() -> None:
    """However long the lease was: memory follows what is in flight."""
    deadlines = Deadlines()
    for n in range(5000):
        entry = _held(n, 10**9 + n)
        deadlines.add(entry)
        deadlines.discard(entry)
    assert deadlines._by_time == {}
    assert len(deadlines._times) <= 2 * 1024 + 8


@given(st.lists(st.tuples(st.sampled_from("adl"), st.integers(0, 6), TIMES), max_size=60))
def test_against_a_plain_dict(steps: list[tuple[str, int, int]]) -> None:
    deadlines = Deadlines()
    model: dict[int, Entry] = {}
    for step, claim_id, time in steps:
        if step == "a" and claim_id not in model:
            model[claim_id] = _held(claim_id, time)
            deadlines.add(model[claim_id])
        elif step == "d" and claim_id in model:
            deadlines.discard(model.pop(claim_id))
        elif step == "l":
            due = [entry for entry in model.values() if entry.deadline <= time]
            due.sort(key=lambda entry: (entry.deadline, entry.claim_id))
            assert _ids(deadlines.lapsed(time, 100)) == _ids(due)
        earliest = min((entry.deadline for entry in model.values()), default=None)
        assert deadlines.next == earliest
