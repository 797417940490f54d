"""The state machine of a delivery, as data.

::

  publish ─▶ delayed ──due──▶ available ──claim──▶ in_flight ──ack──▶ done ──retention──▶ (gone)
                ▲                ▲   │                │ │ └─reject / no attempts left─▶ failed
                │                │   ├──ttl──▶ expired│ │                                  │
                │                │   └──exhaust──▶ failed                                  │
                └──with a delay──┴────nack / release / lapse (attempts left)   replay ◀────┘

A delivery is in exactly one state (S3); ``Q.dlq`` hands out the ``failed`` deliveries of Q.
``model/decisions.py`` chooses among the states of this table. ``penstock verify`` and the
conformance suite check histories against it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["LIVE", "SETTLED", "TRANSITIONS", "State", "Transition", "may_follow"]


class State(StrEnum):
    """The state of a delivery."""

    DELAYED = "delayed"
    AVAILABLE = "available"
    IN_FLIGHT = "in_flight"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"


class Transition(StrEnum):
    """What moves a delivery to another state."""

    PUBLISH = "publish"
    DUE = "due"
    CLAIM = "claim"
    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    LAPSE = "lapse"
    REJECT = "reject"
    EXPIRE = "expire"
    REPLAY = "replay"
    PURGE = "purge"
    RETAIN = "retention"
    EXHAUST = "exhaust"
    """A claim reached it with no attempts left, after ``max_attempts`` was lowered."""
    CANCEL = "cancel"
    """Removed by its message id, in any state. Never recorded: the history goes too."""


#: States with deliveries still to be settled: they count against ``max_depth``.
LIVE: Final = frozenset({State.DELAYED, State.AVAILABLE, State.IN_FLIGHT})
#: Settled states, which a delivery leaves only by replay, or by being removed.
SETTLED: Final = frozenset({State.DONE, State.FAILED, State.EXPIRED})

#: (from, transition) -> the possible states afterwards; None is "not in the queue".
TRANSITIONS: Final[dict[tuple[State | None, Transition], frozenset[State | None]]] = {
    (None, Transition.PUBLISH): frozenset({State.DELAYED, State.AVAILABLE}),
    (State.DELAYED, Transition.DUE): frozenset({State.AVAILABLE}),
    (State.AVAILABLE, Transition.CLAIM): frozenset({State.IN_FLIGHT}),
    (State.AVAILABLE, Transition.EXHAUST): frozenset({State.FAILED}),
    (State.IN_FLIGHT, Transition.ACK): frozenset({State.DONE}),
    (State.IN_FLIGHT, Transition.NACK): frozenset(
        {State.AVAILABLE, State.DELAYED, State.FAILED, State.EXPIRED}
    ),
    (State.IN_FLIGHT, Transition.RELEASE): frozenset(
        {State.AVAILABLE, State.DELAYED, State.FAILED, State.EXPIRED}
    ),
    (State.IN_FLIGHT, Transition.LAPSE): frozenset({State.AVAILABLE, State.FAILED, State.EXPIRED}),
    (State.IN_FLIGHT, Transition.REJECT): frozenset({State.FAILED}),
    (State.DELAYED, Transition.EXPIRE): frozenset({State.EXPIRED}),
    (State.AVAILABLE, Transition.EXPIRE): frozenset({State.EXPIRED}),
    (State.FAILED, Transition.REPLAY): frozenset({State.AVAILABLE, State.DELAYED}),
    (State.DONE, Transition.REPLAY): frozenset({State.AVAILABLE, State.DELAYED}),
    (State.EXPIRED, Transition.REPLAY): frozenset({State.AVAILABLE, State.DELAYED}),
    (None, Transition.REPLAY): frozenset({State.AVAILABLE, State.DELAYED}),
    (State.DELAYED, Transition.PURGE): frozenset({None}),
    (State.AVAILABLE, Transition.PURGE): frozenset({None}),
    (State.FAILED, Transition.PURGE): frozenset({None}),
    (State.DONE, Transition.PURGE): frozenset({None}),
    (State.EXPIRED, Transition.PURGE): frozenset({None}),
    (State.DONE, Transition.RETAIN): frozenset({None}),
    (State.EXPIRED, Transition.RETAIN): frozenset({None}),
    (State.FAILED, Transition.RETAIN): frozenset({None}),
    **{(state, Transition.CANCEL): frozenset({None}) for state in State},
}


def may_follow(before: State | None, transition: Transition, after: State | None) -> bool:
    """Whether ``transition`` may lead from ``before`` to ``after``."""
    return after in TRANSITIONS.get((before, transition), frozenset())
