"""Phases: the states of a run, as the database sorts them.

A phase is a state and a side: the queue's own, or its dead letters' (D1), which are ten higher.
Available runs are in two phases. *Fresh* runs were added by a publish and never handed out: new
ones only appear at the end, so a claim need not search before the first of them (``floors``).
*Returned* runs came back from a claim, a delay or a replay, anywhere in the order.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.model.states import State

__all__ = ["DEAD", "LIVE", "OWN_PHASES", "Phase", "is_dead", "phases_of", "state_of"]

#: The difference between a phase of the dead letters and the queue's own.
DEAD: Final = 10


class Phase(IntEnum):
    """The phases. ``DEAD_RETURNED`` holds failed deliveries, which ``Q.dlq`` hands out."""

    FRESH = 0
    RETURNED = 1
    DELAYED = 2
    IN_FLIGHT = 3
    DONE = 4
    EXPIRED = 5
    DEAD_RETURNED = 11
    DEAD_DELAYED = 12
    DEAD_IN_FLIGHT = 13
    DEAD_DONE = 14


#: The phases of unsettled deliveries.
LIVE: Final = (Phase.FRESH, Phase.RETURNED, Phase.DELAYED, Phase.IN_FLIGHT)
#: Every phase of a queue itself, without its dead letters.
OWN_PHASES: Final = (*LIVE, Phase.DONE, Phase.EXPIRED)

_STATES: Final = {
    Phase.FRESH: State.AVAILABLE,
    Phase.RETURNED: State.AVAILABLE,
    Phase.DELAYED: State.DELAYED,
    Phase.IN_FLIGHT: State.IN_FLIGHT,
    Phase.DONE: State.DONE,
    Phase.EXPIRED: State.EXPIRED,
    Phase.DEAD_RETURNED: State.AVAILABLE,
    Phase.DEAD_DELAYED: State.DELAYED,
    Phase.DEAD_IN_FLIGHT: State.IN_FLIGHT,
    Phase.DEAD_DONE: State.DONE,
}


def is_dead(phase: Phase) -> bool:
    """Whether the phase belongs to the dead letters."""
    return phase >= DEAD


def state_of(phase: Phase) -> State:
    """The state as seen from that side: a failed delivery is available in ``Q.dlq``."""
    return _STATES[phase]


def phases_of(state: State, *, dead: bool) -> tuple[Phase, ...]:
    """The phases of deliveries in ``state``; failed ones of a queue are its dead letters."""
    if state is State.FAILED:
        return () if dead else (Phase.DEAD_RETURNED,)
    return tuple(p for p, s in _STATES.items() if s is state and is_dead(p) is dead)
