"""An assignment: the entries of a range of the log that an external router found for a queue (R1).

The checks are shared, so that every engine refuses the same assignments with the same errors. See
``Engine.assign``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from msgspec import Struct

from penstock.errors import Conflict

__all__ = ["Assignment"]


class Assignment(Struct, frozen=True):
    """The entries in ``[start, end)`` that a queue with this filter may take."""

    filter: str
    start: int
    end: int
    offsets: Sequence[int]
    """Ascending, and inside the range."""

    def is_due(self, queue: str, filter: str, cursor: int | None) -> bool:
        """Whether any of the range is yet to be routed. Raises ``Conflict`` if it does not fit."""
        if filter != self.filter:
            raise Conflict(
                f"The filter of queue {queue!r} has changed; nothing was assigned.",
                field="filter",
            )
        if cursor is None or cursor >= self.end:
            return False
        if cursor < self.start:
            raise Conflict(
                f"Queue {queue!r} is routed up to offset {cursor}; an assignment from "
                f"{self.start} on would leave a gap.",
                field="start",
                limit=cursor,
            )
        return True

    def check_end(self, log_end: int) -> None:
        """Refuse a range beyond the end of the log: more entries may appear there (L2)."""
        if self.end > log_end:
            raise Conflict(
                f"end is {self.end}; the log ends at {log_end}.", field="end", limit=log_end
            )

    def left(self, cursor: int) -> Sequence[int]:
        """The offsets that are not routed yet."""
        return self.offsets[bisect_left(self.offsets, cursor) :]

    def check_found(self, left: Sequence[int], found: Collection[int]) -> None:
        """Refuse offsets without a log entry: they were read from another log."""
        if len(found) < len(left):
            missing = next(offset for offset in left if offset not in found)
            raise Conflict(
                f"There is no entry at offset {missing}; nothing was assigned.", field="offsets"
            )
