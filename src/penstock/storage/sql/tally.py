"""Tally: the counters of a queue, stored as differences (Q2).

Every transaction inserts its changes as its own rows, so that no transaction waits for a counter
that another holds. Stats sums them up; the sweep consolidates rows from time to time, so that
there are never many. Counts by phase are not maintained by the verbs. They follow from the runs
that a transaction deletes and writes, so they are correct whenever the runs are.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.storage.sql.phases import DEAD

__all__ = ["DEAD_KINDS", "Kind"]

#: The difference between a counter of the dead letters and the queue's own.
DEAD_KINDS: Final = DEAD


class Kind(IntEnum):
    """What is counted. Phases are counted under their own numbers, which are below these."""

    NEWS = 99
    """No counter: a row that only notifies pollers."""
    GRANTS = 100
    ACKS = 101
    NACKS = 102
    FAILURES = 103
    DEAD_GRANTS = 110
    DEAD_ACKS = 111
    DEAD_NACKS = 112
    DEAD_FAILURES = 113

    @classmethod
    def of(cls, kind: Kind, *, dead: bool) -> Kind:
        """The kind, or its counterpart for the dead letters."""
        return cls(kind + DEAD_KINDS) if dead else kind
