"""Counting log entries: how many must still be routed to a queue that is behind.

The log after such a queue's cursor may have millions of records, so they are counted in turns,
with other verbs in between. Meanwhile the log grows and the cursor advances. A record starts with
its number of entries; only a record that contains the cursor is decoded.
"""

from __future__ import annotations

from typing import Final

from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.log_pairs import offset_of
from penstock.storage.keyvalue.records import read_log_value

__all__ = ["EntryCount"]

#: Records, and their bytes, that are counted per turn: about a millisecond.
_RECORDS: Final = 256
_BYTES: Final = 1024 * 1024


class EntryCount:
    """The number of a tenant's entries at or above a cursor, including staged ones."""

    __slots__ = ("_bytes", "_end", "_log", "_records", "_start", "_tenant", "total")

    def __init__(self, log: Log, tenant: str, cursor: int) -> None:
        self._log = log
        self._tenant = log.tenant(tenant)
        #: ``total`` counts the entries from ``_start`` to before ``_end``.
        self._start = self._end = cursor
        self.total = 0
        #: Records and bytes that may still be read in this turn.
        self._records = self._bytes = 0

    def run(self, cursor: int) -> bool:
        """Count for one turn; returns whether to call again, in another turn.

        When it returns False, ``total`` is for this cursor, which may be above earlier ones.
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
        """The number of entries from ``start`` on, and where it stopped: at ``end``, if in time."""
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
