"""Seats: runs in flight as this server wrote them, so that a settle need not read them first.

Whoever settles mostly does so where it claimed. What is remembered may be out of date, another
server may have let a claim lapse; a settle that goes by it has the database compare the whole run
as it writes (S1, S2), and reads it under lock if that fails.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import Place, Row

__all__ = ["Seats"]

#: Runs that are remembered; the oldest are forgotten first.
_MOST: Final = 10_000
_IN_FLIGHT: Final = frozenset({int(Phase.IN_FLIGHT), int(Phase.DEAD_IN_FLIGHT)})


class Seats:
    """Runs in flight by their primary keys."""

    def __init__(self) -> None:
        self._rows: OrderedDict[Place, Row] = OrderedDict()

    def wrote(self, gone: Iterable[Place], put: Iterable[Row]) -> None:
        """A commit has deleted and put these."""
        for place in gone:
            self._rows.pop(place, None)
        for row in put:
            if row.phase in _IN_FLIGHT:
                self._rows[row[:4]] = row
        while len(self._rows) > _MOST:
            self._rows.popitem(last=False)

    def find(self, place: Place) -> Row | None:
        """The run as it was written last, if that is known."""
        return self._rows.get(place)

    def clear(self) -> None:
        """Forget all of them."""
        self._rows.clear()
