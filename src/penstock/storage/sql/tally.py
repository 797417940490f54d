"""Tally: the numbers of a queue, kept as differences (Q2).

Every transaction adds what it changed as rows of its own, so nobody waits for a counter that
somebody else holds. Stats is their sum; the sweep adds rows up now and then, so that there are
never many. Counts by phase are not told by the verbs but follow from the runs that a
transaction deletes and puts, so they cannot be wrong where the runs are right.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.storage.sql.phases import DEAD

__all__ = ["DEAD_KINDS", "Kind"]

#: Added to a counter's number for the same of the dead letters.
DEAD_KINDS: Final = DEAD


class Kind(IntEnum):
    """What is counted. Phases count under their own numbers, which are all below these."""

    NEWS = 99
    """Nothing: a row that others notice."""
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
        """The same of the dead letters, if ``dead``."""
        return cls(kind + DEAD_KINDS) if dead else kind
