"""Seats: a cache of the runs in flight that this server wrote, so that settles need no read.

Most deliveries are settled on the server that claimed them. The cache may be outdated, for
example if another server let a claim lapse. So a settle that uses it has the database compare the
whole run as it writes (S1, S2), and reads it under lock if that fails.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import Place, Row

__all__ = ["Seats"]

#: Cached runs; the oldest are evicted first.
_MOST: Final = 10_000
_IN_FLIGHT: Final = frozenset({int(Phase.IN_FLIGHT), int(Phase.DEAD_IN_FLIGHT)})


class Seats:
    """Runs in flight by their primary keys."""

    def __init__(self) -> None:
        self._rows: OrderedDict[Place, Row] = OrderedDict()

    def wrote(self, gone: Iterable[Place], put: Iterable[Row]) -> None:
        """Record the rows that a commit deleted and wrote."""
        for place in gone:
            self._rows.pop(place, None)
        for row in put:
            if row.phase in _IN_FLIGHT:
                self._rows[row[:4]] = row
        while len(self._rows) > _MOST:
            self._rows.popitem(last=False)

    def find(self, place: Place) -> Row | None:
        """The run as last written, if it is cached."""
        return self._rows.get(place)

    def clear(self) -> None:
        """Drop all entries."""
        self._rows.clear()
