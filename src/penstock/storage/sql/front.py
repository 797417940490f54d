"""The front of a queue: the groups that its next claims hand out, as this server last saw them.

Mostly one server claims from a queue. It knows which groups it left there and which it appended,
so it need not read them again: a claim takes them from here, and the statement that writes it
checks that they are unchanged and that no other group comes first (``FirstGroups``). If that fails,
nothing was written, the front is dropped, and the claim reads the groups from the database. So a
front that misses the changes of another server costs a statement, and never the order (C1, C4).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from penstock.storage.sql.database import Row
from penstock.storage.sql.deliveries import Phase, PrimaryKey
from penstock.storage.sql.deliveries import Row as GroupRow

__all__ = ["LAST", "Front", "Fronts", "Position", "Side"]

#: A rank and a row key: groups that wait are handed out in this order.
Position: TypeAlias = tuple[int, int]
#: Queue number and side (true for the dead letters).
Side: TypeAlias = tuple[int, bool]

#: Behind every position.
LAST: Final = (1 << 15, 1 << 62)
#: The most groups of a front. A claim that needs more reads them.
_MOST_GROUPS: Final = 256
#: The most fronts; the least recently used is dropped first. Both together are at most some 30 MB.
_MOST_FRONTS: Final = 256

_SIDES: Final = {
    int(Phase.FRESH): False,
    int(Phase.RETURNED): False,
    int(Phase.DEAD_RETURNED): True,
}


class Front:
    """All groups that wait in a queue, up to a position."""

    __slots__ = ("_end", "_keys", "_rows")

    def __init__(self, rows: Iterable[Row], end: Position | None) -> None:
        """``end`` is the last position that is known; None: there are no other groups."""
        found = {(row[2], row[3], row[1]): row for row in rows}
        self._rows = {key: row for key, row in found.items() if end is None or key[:2] <= end}
        #: Rank, row key and phase.
        self._keys = sorted(self._rows)
        self._end = end

    @property
    def size(self) -> int:
        """The number of groups."""
        return len(self._keys)

    def serves(self, groups: int, deliveries: int) -> bool:
        """Whether a claim can take so many groups from here, or all that there are, and at least so
        many deliveries."""
        if self._end is not None and len(self._keys) < groups:
            return False
        found = 0
        for row in self._rows.values():
            found += row[5]
            if found >= deliveries:
                return True
        return False

    def first(self, groups: int) -> tuple[list[Row], Position | None]:
        """The first groups, and the last position before the next; None if there is none."""
        rows = [self._rows[key] for key in self._keys[:groups]]
        if len(self._keys) <= groups:
            return rows, self._end
        rank, row_key, _ = self._keys[groups]
        return rows, (rank, row_key - 1)

    def count_through(self, position: Position) -> int:
        """The number of groups at or before the position."""
        return bisect_right(self._keys, (*position, max(_SIDES)))

    def remove(self, key: PrimaryKey) -> None:
        """A group is gone."""
        _, phase, rank, row_key = key
        known = (rank, row_key, phase)
        if self._rows.pop(known, None) is not None:
            del self._keys[bisect_left(self._keys, known)]

    def add(self, row: Row) -> None:
        """A group was written."""
        key = (row[2], row[3], row[1])
        if self._end is not None and key[:2] > self._end:
            return
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = row
        if len(self._keys) > _MOST_GROUPS:
            last = self._keys.pop()
            del self._rows[last]
            self._end = (last[0], last[1] - 1)


class Fronts:
    """The fronts of the queues that this server claims from."""

    def __init__(self) -> None:
        self._known: OrderedDict[Side, Front] = OrderedDict()

    def find(self, side: Side) -> Front | None:
        """The front of this side of a queue, if it is known."""
        front = self._known.get(side)
        if front is not None:
            self._known.move_to_end(side)
        return front

    def read(self, side: Side, rows: Sequence[Row], end: Position | None) -> Front:
        """The front that was just read, up to its end."""
        front = Front(rows, end)
        if front.size > _MOST_GROUPS:
            self._known.pop(side, None)
            return front
        self._known[side] = front
        self._known.move_to_end(side)
        if len(self._known) > _MOST_FRONTS:
            self._known.popitem(last=False)
        return front

    def wrote(self, gone: Iterable[PrimaryKey], put: Iterable[GroupRow]) -> None:
        """Record the groups that a commit of this server deleted and wrote."""
        for key in gone:
            front = self._of(key[0], key[1])
            if front is not None:
                front.remove(key)
        for row in put:
            front = self._of(row.queue, row.phase)
            if front is not None:
                front.add(row)

    def _of(self, queue: int, phase: int) -> Front | None:
        side = _SIDES.get(phase)
        return None if side is None else self._known.get((queue, side))

    def knows(self, queue: int) -> bool:
        """Whether one of the queue's fronts is known."""
        return any((queue, dead) in self._known for dead in (False, True))

    def drop(self, queue: int) -> None:
        """Forget the fronts of a queue that turned out to be outdated."""
        for dead in (False, True):
            self._known.pop((queue, dead), None)

    def clear(self) -> None:
        """Forget all fronts."""
        self._known.clear()
