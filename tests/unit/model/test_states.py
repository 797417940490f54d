"""The table of transitions is complete, and says what docs/semantics.md draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.model.states import LIVE, SETTLED, TRANSITIONS, State, Transition, may_follow
from penstock.testing.laws import law

SEMANTICS = Path(__file__).resolve().parents[3] / "docs" / "semantics.md"
EVERY_STATE: list[State | None] = [*State, None]
#: What the page calls the transitions.
NAMES = {
    "publish": Transition.PUBLISH,
    "due": Transition.DUE,
    "ttl": Transition.EXPIRE,
    "claim": Transition.CLAIM,
    "ack": Transition.ACK,
    "nack": Transition.NACK,
    "release": Transition.RELEASE,
    "lapse of the lease": Transition.LAPSE,
    "reject": Transition.REJECT,
    "replay": Transition.REPLAY,
    "purge": Transition.PURGE,
    "retention": Transition.RETAIN,
    "exhaust": Transition.EXHAUST,
    "cancel": Transition.CANCEL,
}


def test_every_state_is_live_or_settled() -> None:
    assert frozenset(State) == LIVE | SETTLED
    assert frozenset() == LIVE & SETTLED


def test_every_transition_is_in_the_table_and_leads_somewhere() -> None:
    assert {transition for _, transition in TRANSITIONS} == set(Transition)
    assert all(TRANSITIONS.values())


@law("S3")
@pytest.mark.parametrize("before", EVERY_STATE)
@pytest.mark.parametrize("transition", Transition)
@pytest.mark.parametrize("after", EVERY_STATE)
def test_only_what_is_in_the_table_may_follow(
    before: State | None, transition: Transition, after: State | None
) -> None:
    allowed = TRANSITIONS.get((before, transition), frozenset())
    assert may_follow(before, transition, after) == (after in allowed)


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_entered_and_left(state: State) -> None:
    assert any(state in after and before != state for (before, _), after in TRANSITIONS.items())
    assert any(before == state for before, _ in TRANSITIONS)


@law("S2")
def test_only_replay_brings_a_settled_delivery_back() -> None:
    back = {
        transition
        for (before, transition), after in TRANSITIONS.items()
        if before in SETTLED and after & LIVE
    }
    assert back == {Transition.REPLAY}


def test_only_a_claim_leads_into_flight() -> None:
    assert [key for key, after in TRANSITIONS.items() if State.IN_FLIGHT in after] == [
        (State.AVAILABLE, Transition.CLAIM)
    ]


def test_what_is_in_flight_cannot_be_purged() -> None:
    assert (State.IN_FLIGHT, Transition.PURGE) not in TRANSITIONS


def _drawn() -> dict[tuple[State | None, Transition], set[State | None]]:
    """The table of docs/semantics.md: from, by, to; what we have a name for."""
    words: dict[str, State | None] = {state.value: state for state in State}
    words |= {"new": None, "gone": None}
    out: dict[tuple[State | None, Transition], set[State | None]] = {}
    section = SEMANTICS.read_text().split("| from | by | to |")[1].split("\n\n")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or not cells[0].strip("-"):
            continue
        before, by, after = (re.sub("`[^`]*`", "", cell) for cell in cells)
        targets = {words[word] for word in re.findall(r"[a-z_]+", after) if word in words}
        for name in re.split(r", ", by):
            if name in NAMES:
                for word in re.findall(r"[a-z_]+", before):
                    out.setdefault((words[word], NAMES[name]), set()).update(targets)
    return out


def test_the_page_draws_the_same_table() -> None:
    drawn = _drawn()
    assert drawn == {key: set(after) for key, after in TRANSITIONS.items()}
