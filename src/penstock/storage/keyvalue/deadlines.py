"""Lease deadlines: the in-flight entries of a queue by deadline.

A settled entry is removed immediately, so memory is proportional to the open claims and not to all
claims of the last lease period.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from penstock.storage.keyvalue.entry import Entry

__all__ = ["Deadlines"]

#: Unused deadlines are dropped from the heap when they outnumber the others.
_SLACK: Final = 1024


class Deadlines:
    """In-flight entries, earliest deadline first."""

    __slots__ = ("_by_time", "_times")

    def __init__(self) -> None:
        self._by_time: dict[int, dict[int, Entry]] = {}
        #: A heap of deadlines; some may no longer have entries.
        self._times: list[int] = []

    @property
    def next(self) -> int | None:
        """The earliest deadline, or None."""
        while self._times and self._times[0] not in self._by_time:
            heappop(self._times)
        return self._times[0] if self._times else None

    def add(self, entry: Entry) -> None:
        """Track an in-flight entry under its deadline."""
        self.group(entry.deadline)[entry.claim_id] = entry

    def group(self, deadline: int) -> dict[int, Entry]:
        """The entries of one deadline, by claim id. The caller must add one if it is empty."""
        group = self._by_time.get(deadline)
        if group is None:
            group = self._by_time[deadline] = {}
            if len(self._times) > 2 * len(self._by_time) + _SLACK:
                self._times = list(self._by_time)
                heapify(self._times)
            else:
                heappush(self._times, deadline)
        return group

    def discard(self, entry: Entry) -> None:
        """Remove an entry before it leaves flight or gets another deadline."""
        group = self._by_time[entry.deadline]
        del group[entry.claim_id]
        if not group:
            del self._by_time[entry.deadline]

    def lapsed(self, now: int, limit: int) -> list[Entry]:
        """Up to ``limit`` entries whose lease has ended; they stay until they are discarded."""
        out: list[Entry] = []
        looked: list[int] = []
        while (time := self.next) is not None and time <= now and len(out) < limit:
            while self._times and self._times[0] == time:
                heappop(self._times)  # A deadline that was emptied and reused is in the heap twice.
            looked.append(time)
            out += islice(self._by_time[time].values(), limit - len(out))
        for time in looked:
            heappush(self._times, time)
        return sorted(out, key=lambda entry: (entry.deadline, entry.claim_id))
