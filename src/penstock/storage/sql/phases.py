"""Phases: where a run of deliveries is, as the database sorts them.

A phase is a state and a side: the queue's own, or its dead letters' (D1), which are ten
higher. What is available is kept in two places. *Fresh* runs were put there by a publish and
were never handed out: new ones only ever appear at their end, so a claim need not look at what
lies before the first of them. *Returned* runs came back, from a claim, a delay or a replay,
to wherever their place is.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.model.states import State

__all__ = ["DEAD", "LIVE", "OWN_PHASES", "Phase", "is_dead", "phases_of", "state_of"]

#: What is added to a phase of the queue to name the same of its dead letters.
DEAD: Final = 10


class Phase(IntEnum):
    """The phases. ``DEAD_RETURNED`` is what has failed and can be claimed from ``Q.dlq``."""

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


#: What a queue still has to deliver.
LIVE: Final = (Phase.FRESH, Phase.RETURNED, Phase.DELAYED, Phase.IN_FLIGHT)
#: Every phase of a queue itself, its dead letters left out.
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
    """Whether the phase is one of the dead letters."""
    return phase >= DEAD


def state_of(phase: Phase) -> State:
    """The state, as whoever looks at that side sees it: what failed is available there."""
    return _STATES[phase]


def phases_of(state: State, *, dead: bool) -> tuple[Phase, ...]:
    """Where the deliveries in ``state`` are; ``failed`` of a queue is kept with its letters."""
    if state is State.FAILED:
        return () if dead else (Phase.DEAD_RETURNED,)
    return tuple(p for p, s in _STATES.items() if s is state and is_dead(p) is dead)
