"""New offsets for the entries of a key-value store in a database (L1).

In a key-value store offsets are consecutive, and messages of any size and tenant follow each other.
In a database an offset is a segment and an index in it, and a segment has one tenant and little
data. So entries get new offsets, in the same order. The new offsets begin above all old ones: an
old id never denotes another message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

__all__ = ["Numbering"]


class Numbering:
    """The new offsets of one tenant's entries and positions, added in ascending order."""

    def __init__(self) -> None:
        #: Runs of consecutive numbers: the first old one, the first new one, and how many.
        self._old = array("Q")
        self._new = array("Q")
        self._counts = array("Q")

    def add(self, old: int, new: int) -> None:
        """Record a new offset."""
        if self._old:
            count = self._counts[-1]
            if old == self._old[-1] + count and new == self._new[-1] + count:
                self._counts[-1] += 1
                return
        self._old.append(old)
        self._new.append(new)
        self._counts.append(1)

    def find(self, old: int) -> int | None:
        """The new offset; None if nothing is there any more."""
        run = bisect_right(self._old, old) - 1
        if run < 0 or old - self._old[run] >= self._counts[run]:
            return None
        return self._new[run] + old - self._old[run]

    def at_or_after(self, old: int) -> int | None:
        """The new offset of the first entry at or after an old offset; None at the end."""
        found = self.find(old)
        if found is not None:
            return found
        run = bisect_right(self._old, old)
        return self._new[run] if run < len(self._new) else None
