from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreCorrupt
from penstock.model.limits import MAX_HISTORY_EVENTS
from penstock.model.states import State, Transition
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.trail import Mark, Trail
from penstock.testing.laws import law

MARKS = st.builds(
    Mark,
    at=st.integers(0, 2**62),
    transition=st.sampled_from(Transition),
    state=st.none() | st.sampled_from(State),
    error=st.none() | st.text(max_size=20),
    dead=st.booleans(),
)
TRAILS = st.builds(
    Trail,
    released=st.integers(0, 2**16 - 1),
    replayed_grant=st.integers(0, 2**64 - 1),
    marks=st.lists(MARKS, max_size=8).map(tuple),
)
#: Numbers on disk. Somebody who reorders the enumerations makes old stores lie.
TRANSITIONS = {
    "publish": 0,
    "due": 1,
    "claim": 2,
    "ack": 3,
    "nack": 4,
    "release": 5,
    "lapse": 6,
    "reject": 7,
    "expire": 8,
    "replay": 9,
    "purge": 10,
    "retention": 11,
    "exhaust": 12,
    "cancel": 13,
}
STATES = {"delayed": 0, "available": 1, "in_flight": 2, "done": 3, "failed": 4, "expired": 5}


def test_golden_trail() -> None:
    """Released once, then rejected with the error "bad"."""
    trail = (
        Trail()
        .then(1_000, Transition.RELEASE, State.AVAILABLE, None, 1)
        .then(2_000, Transition.REJECT, State.FAILED, "bad", 2)
    )
    body = bytes.fromhex(
        "0100 0000000000000000 0200"  # released, grant before the last replay, marks
        "e803000000000000 05 01 00"
        "d007000000000000 07 04 01 0300 626164"
    )
    assert trail.encode() == seal(body)
    assert Trail.decode(seal(body)) == trail
    assert trail.last_error == "bad"


def test_golden_trail_of_a_dead_letter() -> None:
    """Rejected, nacked in the dead-letter queue: 128 is added to the transition there."""
    trail = (
        Trail()
        .then(1_000, Transition.REJECT, State.FAILED, None, 1)
        .then(2_000, Transition.NACK, State.AVAILABLE, "bad", 2, dead=True)
    )
    body = bytes.fromhex(
        "0000 0000000000000000 0200e803000000000000 07 04 00d007000000000000 84 01 01 0300 626164"
    )
    assert trail.encode() == seal(body)
    assert Trail.decode(seal(body)) == trail


@given(TRAILS)
def test_a_trail_is_found_again(trail: Trail) -> None:
    assert Trail.decode(trail.encode()) == trail


@pytest.mark.parametrize("transition", Transition)
@pytest.mark.parametrize("state", [*State, None])
def test_numbers_of_transitions_and_states(transition: Transition, state: State | None) -> None:
    encoded = Trail(marks=(Mark(0, transition, state, None),)).encode()
    assert encoded[20] == TRANSITIONS[transition.value]
    assert encoded[21] == (255 if state is None else STATES[state.value])


def test_no_record_is_an_empty_trail() -> None:
    assert Trail.decode(None) == Trail()
    assert Trail().last_error is None


@law("C2")
def test_released_grants_are_counted_until_a_replay() -> None:
    trail = Trail()
    for grant in (1, 2):
        trail = trail.then(0, Transition.RELEASE, State.AVAILABLE, None, grant)
    trail = trail.then(0, Transition.NACK, State.AVAILABLE, "e", 3)
    assert (trail.released, trail.replayed_grant) == (2, 0)
    trail = trail.then(0, Transition.REPLAY, State.AVAILABLE, None, 3)
    assert (trail.released, trail.replayed_grant) == (0, 3)


def test_a_replay_begins_without_an_error() -> None:
    trail = Trail().then(0, Transition.NACK, State.FAILED, "old", 1)
    assert trail.last_error == "old"
    trail = trail.then(1, Transition.REPLAY, State.AVAILABLE, None, 1)
    assert trail.last_error is None
    assert [mark.error for mark in trail.marks] == ["old", None], "history keeps it"
    trail = trail.then(2, Transition.NACK, State.AVAILABLE, "new", 2)
    assert trail.then(3, Transition.LAPSE, State.AVAILABLE, None, 3).last_error == "new"


def test_only_the_newest_marks_are_kept() -> None:
    trail = Trail()
    for at in range(MAX_HISTORY_EVENTS + 36):
        trail = trail.then(at, Transition.RELEASE, State.AVAILABLE, None, at)
    assert [mark.at for mark in trail.marks] == list(range(36, MAX_HISTORY_EVENTS + 36))
    assert trail.released == MAX_HISTORY_EVENTS + 36


@law("D1")
def test_the_last_error_is_kept_with_the_newest_marks() -> None:
    trail = Trail().then(0, Transition.NACK, State.AVAILABLE, "bad", 0)
    for at in range(1, 2 * MAX_HISTORY_EVENTS):
        trail = trail.then(at, Transition.NACK, State.AVAILABLE, None, at)
    assert trail.last_error == "bad"
    assert len(trail.marks) == MAX_HISTORY_EVENTS + 1
    trail = trail.then(1_000, Transition.NACK, State.AVAILABLE, "worse", 1_000)
    assert trail.last_error == "worse"
    assert len(trail.marks) == MAX_HISTORY_EVENTS


def test_a_replay_within_the_dead_letters_keeps_the_error() -> None:
    trail = Trail().then(0, Transition.REJECT, State.FAILED, "bad", 0)
    trail = trail.then(1, Transition.ACK, State.DONE, None, 1, dead=True)
    assert trail.then(2, Transition.REPLAY, State.AVAILABLE, None, 1, dead=True).last_error == "bad"
    assert trail.then(2, Transition.REPLAY, State.AVAILABLE, None, 1).last_error is None


def test_a_delivery_may_be_released_for_ever() -> None:
    """Dead letters have no max_attempts that would end it."""
    trail = Trail(released=65_535).then(0, Transition.RELEASE, State.AVAILABLE, None, 1)
    assert Trail.decode(trail.encode()).released == 65_535


@law("X1")
@given(TRAILS, st.data())
def test_any_flipped_bit(trail: Trail, data: st.DataObject) -> None:
    damaged = bytearray(trail.encode())
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreCorrupt):
        Trail.decode(bytes(damaged))


@law("X1")
def test_a_trail_that_does_not_say_its_length() -> None:
    body = Trail(marks=(Mark(0, Transition.NACK, None, None),)).encode()[:-4]
    for wrong in (body[:-1], body + b"\x00"):
        with pytest.raises(StoreCorrupt):
            Trail.decode(seal(wrong))
