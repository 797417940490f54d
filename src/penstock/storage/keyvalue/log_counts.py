"""Counting log entries: how many a queue that is behind still has to be routed.

The log that such a queue has before it may have millions of records, so they are counted some at a
time, and other verbs run in between. Meanwhile the log grows and the queue's cursor moves on. A
record says how many entries it holds; only one that the cursor is inside of is decoded.
"""

from __future__ import annotations

from typing import Final

from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.log_pairs import offset_of
from penstock.storage.keyvalue.records import read_log_value

__all__ = ["EntryCount"]

#: Records, and their bytes, that are counted in one turn: about a millisecond.
_RECORDS: Final = 256
_BYTES: Final = 1024 * 1024


class EntryCount:
    """How many entries of a tenant, staged ones included, are at or above a cursor."""

    __slots__ = ("_bytes", "_end", "_log", "_records", "_start", "_tenant", "total")

    def __init__(self, log: Log, tenant: str, cursor: int) -> None:
        self._log = log
        self._tenant = log.tenant(tenant)
        #: The total is of the entries from ``_start`` to before ``_end``.
        self._start = self._end = cursor
        self.total = 0
        #: What may still be looked at in this turn.
        self._records = self._bytes = 0

    def run(self, cursor: int) -> bool:
        """Count for one turn; returns whether to call again, in another turn.

        If not, the total is that of the cursor, which may be above that of the call before.
        """
        self._records, self._bytes = _RECORDS, _BYTES
        if cursor >= self._end:
            self._start = self._end = cursor
            self.total = 0
        end = self._tenant.end
        self.total += self._count_to(end)
        if self._end < end:
            return True
        self.total -= self._count_passed(cursor)
        return self._start < cursor

    def _count_to(self, end: int) -> int:
        """Count entries from ``_end`` on, and move it."""
        count, self._end = self._count(self._end, end)
        return count

    def _count_passed(self, cursor: int) -> int:
        """Count the entries that the cursor has passed since the count began."""
        count, self._start = self._count(self._start, cursor)
        return count

    def _count(self, start: int, end: int) -> tuple[int, int]:
        """The number of entries from ``start`` on, and up to where: ``end``, if there was time."""
        if start >= end:
            return 0, start
        tenant = self._tenant
        is_all = end == tenant.end
        total = 0
        for first, value in self._log.records(tenant, start):
            if first >= min(end, tenant.committed_end):
                break
            if self._records <= 0 or self._bytes <= 0:
                return total, max(start, first)
            self._records -= 1
            self._bytes -= len(value)
            if is_all and first >= start:
                total += int.from_bytes(value[:2], "little")
            else:
                total += sum(start <= offset_of(pair) < end for pair in read_log_value(value))
        return total + sum(entry[0].offset < end for entry in tenant.uncommitted(start)), end
