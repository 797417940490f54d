"""Checks on the history of a delivery: C1, C2, C3, D1, S2 and S3.

Events are counted rather than followed: they are sorted by time, and a clock that was set back
puts them into a wrong order. These hold in any order:

- S3: each event is a transition of the table in ``penstock.model.states``, and one of them
  led to the current state.
- C1: every grant has ended once, except the one in flight.
- C2: attempts are the grants since the last replay.
- C3: grants lie between ``deliver_at`` and ``expires_at``; a failed delivery does not expire.
- S2: an ack is the last one, unless a replay followed.
- D1: a failed delivery has the event of its failure, and an error if one was reported.

An engine keeps a bounded number of events, so a long history may have lost its beginning;
it is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.model.delivery import Event, Snapshot
from penstock.model.limits import MAX_HISTORY_EVENTS, is_dead_letter
from penstock.model.states import TRANSITIONS, State, Transition
from penstock.verify.deliveries import CLOCK_STEP_MS, Defect

__all__ = ["history_defects", "is_whole"]

#: The transitions that end a grant.
_ENDINGS: Final = frozenset(
    {Transition.ACK, Transition.NACK, Transition.RELEASE, Transition.LAPSE, Transition.REJECT}
)
_RETURNS: Final = frozenset({State.AVAILABLE, State.DELAYED})
#: (transition, state afterwards) of the table.
_STEPS: Final = frozenset(
    (transition, after) for (_, transition), states in TRANSITIONS.items() for after in states
)


def is_whole(events: Sequence[Event]) -> bool:
    """Whether no event can be missing at the beginning."""
    return len(events) <= MAX_HISTORY_EVENTS


def history_defects(shown: Snapshot, events: Sequence[Event]) -> Iterator[Defect]:
    """Defects between a delivery and its whole history, both read while it did not move."""
    failed = any(event.state is State.FAILED or is_dead_letter(event.queue) for event in events)
    yield from _impossible(events, failed=failed)
    yield from _unexplained(shown, events)
    yield from _unbalanced(shown, events)
    yield from _miscounted(shown, events)
    yield from _mistimed(shown, events, failed=failed)


def _count(events: Sequence[Event], transition: Transition) -> int:
    return sum(event.transition is transition for event in events)


def _impossible(events: Sequence[Event], *, failed: bool) -> Iterator[Defect]:
    for event in events:
        if (event.transition, event.state) in _STEPS:
            continue
        # In a dead-letter queue, every ending that does not settle a delivery returns it.
        if failed and event.transition in _ENDINGS and event.state in _RETURNS:
            continue
        after = "nothing" if event.state is None else event.state.value
        yield Defect("S3", f"at {event.at} a {event.transition.value} led to {after}")


def _unexplained(shown: Snapshot, events: Sequence[Event]) -> Iterator[Defect]:
    """Finds a delivery whose state no event explains."""
    replayed = _count(events, Transition.REPLAY) > 0
    led_to = {event.state for event in events}
    if shown.state in (State.DONE, State.IN_FLIGHT, State.EXPIRED):
        if shown.state not in led_to:
            yield Defect("S3", f"it is {shown.state.value}, and no event led there")
    elif shown.state is State.FAILED:
        if State.FAILED not in led_to and not replayed:
            yield Defect("D1", "it failed, and its history does not say how")
        if shown.error is None and not replayed and any(event.error for event in events):
            yield Defect("D1", "its last error is lost")


def _unbalanced(shown: Snapshot, events: Sequence[Event]) -> Iterator[Defect]:
    grants = _count(events, Transition.CLAIM)
    ended = sum(event.transition in _ENDINGS for event in events)
    held = int(shown.state is State.IN_FLIGHT)
    if grants - ended != held:
        yield Defect(
            "C1", f"it was granted {grants} times, {ended} grants ended, and {held} is in flight"
        )
    acks, replays = _count(events, Transition.ACK), _count(events, Transition.REPLAY)
    if acks > replays + (shown.state is State.DONE):
        yield Defect("S2", f"it was acked {acks} times and replayed {replays} times")


def _miscounted(shown: Snapshot, events: Sequence[Event]) -> Iterator[Defect]:
    """Finds attempts that differ from the grants since the last replay."""
    grants = [event.at for event in events if event.transition is Transition.CLAIM]
    replays = [event.at for event in events if event.transition is Transition.REPLAY]
    least = most = len(grants)
    if replays:
        if not _is_orderly(events):
            return
        # Within one step of the clock, the order is unknown.
        least = sum(at > max(replays) + CLOCK_STEP_MS for at in grants)
        most = sum(at >= max(replays) - CLOCK_STEP_MS for at in grants)
    if not least <= shown.attempts <= most:
        since = " since its last replay" if replays else ""
        yield Defect("C2", f"attempts are {shown.attempts}, grants on record {most}{since}")


def _is_orderly(events: Sequence[Event]) -> bool:
    """Whether grants and their ends alternate, so that no clock was set back in between."""
    held = False
    for event in events:
        if event.transition is Transition.CLAIM or event.transition is Transition.REPLAY:
            if held:
                return False
            held = event.transition is Transition.CLAIM
        elif event.transition in _ENDINGS:
            if not held:
                return False
            held = False
    return True


def _mistimed(shown: Snapshot, events: Sequence[Event], *, failed: bool) -> Iterator[Defect]:
    message = shown.message
    delayed = message.deliver_at > message.published_at
    for event in events:
        if event.transition is not Transition.CLAIM:
            continue
        if delayed and event.at + CLOCK_STEP_MS < message.deliver_at:
            yield Defect(
                "C3", f"it was granted at {event.at}, before its deliver_at {message.deliver_at}"
            )
        expires_at = message.expires_at
        if expires_at is not None and not failed and event.at >= expires_at + CLOCK_STEP_MS:
            yield Defect("C3", f"it was granted at {event.at}, after its expires_at {expires_at}")
