"""An assignment: what a router outside the broker says of a stretch of the log (R1).

Every engine asks the same questions before it takes one; they are here, so that routers are told
the same by all of them. See ``Engine.assign``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from msgspec import Struct

from penstock.errors import Conflict

__all__ = ["Assignment"]


class Assignment(Struct, frozen=True):
    """Of the entries in ``[start, end)``, those that a queue with this filter may take."""

    filter: str
    start: int
    end: int
    offsets: Sequence[int]
    """Rising, and inside the range."""

    def is_due(self, queue: str, filter: str, cursor: int | None) -> bool:
        """Whether the queue, as it is now, has something to gain; refuses what does not fit it."""
        if filter != self.filter:
            raise Conflict(
                f"The filter of queue {queue!r} is another by now; nothing was assigned.",
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
        """Refuse a range that reaches beyond what is in the log: more may appear there (L2)."""
        if self.end > log_end:
            raise Conflict(
                f"end is {self.end}; the log is known up to {log_end}.", field="end", limit=log_end
            )

    def left(self, cursor: int) -> Sequence[int]:
        """The offsets that nobody has routed meanwhile."""
        return self.offsets[bisect_left(self.offsets, cursor) :]

    def check_found(self, left: Sequence[int], found: Collection[int]) -> None:
        """Refuse offsets at which the log has nothing: whoever names them has read another log."""
        if len(found) < len(left):
            missing = next(offset for offset in left if offset not in found)
            raise Conflict(
                f"There is no entry at offset {missing}; nothing was assigned.", field="offsets"
            )
