"""What may be concluded from a history, and what may not."""

from __future__ import annotations

from penstock.model.delivery import Event, Snapshot
from penstock.model.message import Message, MessageId, Offset
from penstock.model.states import State, Transition
from penstock.testing.laws import law
from penstock.verify.histories import history_defects, is_whole

T = Transition
MESSAGE = Message(
    id=MessageId(7),
    offset=Offset(7),
    topic="jobs",
    priority=4,
    published_at=0,
    deliver_at=0,
    expires_at=None,
    size=0,
    checksum=0,
)
LEADS_TO = {
    T.PUBLISH: State.AVAILABLE,
    T.CLAIM: State.IN_FLIGHT,
    T.NACK: State.AVAILABLE,
    T.RELEASE: State.AVAILABLE,
    T.REJECT: State.FAILED,
    T.REPLAY: State.AVAILABLE,
    T.ACK: State.DONE,
}


def life(*steps: tuple[int, Transition]) -> list[Event]:
    """Events as history gives them: sorted by time."""
    events = [
        Event(at=at, queue="jobs", transition=transition, state=LEADS_TO[transition])
        for at, transition in steps
    ]
    return sorted(events, key=lambda event: event.at)


def laws(state: State, attempts: int, events: list[Event]) -> list[str]:
    shown = Snapshot(queue="jobs", message=MESSAGE, state=state, attempts=attempts)
    return [defect.law for defect in history_defects(shown, events)]


@law("C2")
def test_attempts_are_grants() -> None:
    events = life((0, T.PUBLISH), (1, T.CLAIM), (2, T.NACK), (3, T.CLAIM))
    assert laws(State.IN_FLIGHT, 2, events) == []
    assert laws(State.IN_FLIGHT, 1, events) == ["C2"]
    assert laws(State.IN_FLIGHT, 3, events) == ["C2"]


@law("C2")
def test_a_replay_begins_again() -> None:
    events = life(
        (0, T.PUBLISH), (10, T.CLAIM), (20, T.REJECT), (60_000, T.REPLAY), (90_000, T.CLAIM)
    )
    assert laws(State.IN_FLIGHT, 1, events) == []
    assert laws(State.IN_FLIGHT, 2, events) == ["C2"]


@law("C2")
def test_around_a_replay_the_clock_decides_nothing() -> None:
    """All within a second: which grants came after the replay cannot be said."""
    events = life((0, T.PUBLISH), (10, T.CLAIM), (20, T.REJECT), (30, T.REPLAY), (40, T.CLAIM))
    assert laws(State.IN_FLIGHT, 1, events) == []
    assert laws(State.IN_FLIGHT, 3, events) == ["C2"]


def test_a_clock_that_was_set_back_breaks_no_law() -> None:
    """Released at 200,000; then the clock went back, and the second grant is sorted before."""
    events = life((0, T.PUBLISH), (100_000, T.CLAIM), (200_000, T.RELEASE), (150_000, T.CLAIM))
    assert laws(State.IN_FLIGHT, 2, events) == []
    # Rejected at 200,000, replayed and granted again at what the clock then said.
    events = life(
        (0, T.PUBLISH),
        (100_000, T.CLAIM),
        (200_000, T.REJECT),
        (50_000, T.REPLAY),
        (60_000, T.CLAIM),
    )
    assert laws(State.IN_FLIGHT, 1, events) == []


@law("C1")
def test_a_grant_that_never_ended() -> None:
    events = life((0, T.PUBLISH), (1, T.CLAIM), (2, T.CLAIM))
    assert laws(State.IN_FLIGHT, 2, events) == ["C1"]
    assert laws(State.AVAILABLE, 2, events) == ["C1"]


@law("S2")
def test_an_ack_after_an_ack() -> None:
    events = life((0, T.PUBLISH), (1, T.CLAIM), (2, T.ACK), (3, T.CLAIM), (4, T.ACK))
    assert laws(State.DONE, 2, events) == ["S2"]
    replayed = life(
        (0, T.PUBLISH), (1, T.CLAIM), (2, T.ACK), (3, T.REPLAY), (4, T.CLAIM), (5, T.ACK)
    )
    assert laws(State.DONE, 1, replayed) == []


def test_a_long_history_may_have_lost_its_beginning() -> None:
    nacked = [step for n in range(40) for step in ((2 * n, T.CLAIM), (2 * n + 1, T.NACK))]
    assert is_whole(life((0, T.PUBLISH), *nacked))
    assert not is_whole(life((0, T.PUBLISH), *nacked, *nacked))
