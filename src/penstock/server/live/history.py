"""The recent past of a queue or of a tenant: an hour by the second, a day by the minute.

A sample is written only when something changed, and once more when it stopped, so a quiet queue
takes no memory. Rings are arrays of 32-bit numbers: 200 KB for a queue that is always busy.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Final

from penstock.server.live.board import Deltas, Level

__all__ = ["HISTORY_COLUMNS", "History", "Ring"]

#: What a sample holds. The last five count what happened since the sample before it.
HISTORY_COLUMNS: Final = (
    *("at_s", "delayed", "available", "in_flight", "failed_now", "oldest_s"),
    *("entered", "claimed", "acked", "nacked", "failed"),
)
_WIDTH: Final = len(HISTORY_COLUMNS)
HOUR: Final = 3600
DAY_MINUTES: Final = 24 * 60
_U32_MAX: Final = 2**32 - 1


class Ring:
    """The newest samples, oldest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values = array("I")
        self._next = 0
        """Where the next sample goes, once the ring is full."""

    def __len__(self) -> int:
        return len(self._values) // _WIDTH

    def add(self, sample: tuple[int, ...]) -> None:
        """Append a sample, and drop the oldest one once the ring is full."""
        values = [min(max(value, 0), _U32_MAX) for value in sample]
        if len(self) < self.most:
            self._values.extend(values)
            return
        start = self._next * _WIDTH
        self._values[start : start + _WIDTH] = array("I", values)
        self._next = (self._next + 1) % self.most

    def samples(self, since_s: int) -> Iterator[list[int]]:
        """The samples at or after a time, oldest first."""
        count = len(self)
        for number in range(count):
            start = (self._next + number) % count * _WIDTH
            if self._values[start] >= since_s:
                yield self._values[start : start + _WIDTH].tolist()

    def dump(self) -> bytes:
        """All samples, as little-endian numbers."""
        start = self._next * _WIDTH
        ordered = self._values[start:] + self._values[:start]
        if sys.byteorder == "big":
            ordered.byteswap()
        return ordered.tobytes()

    def restore(self, data: bytes) -> None:
        """The samples of ``dump``; raises ``ValueError`` if they are damaged."""
        if len(data) % (4 * _WIDTH):
            raise ValueError("a history ends within a sample")
        self._values = array("I", data[-4 * self.most * _WIDTH :])
        if sys.byteorder == "big":
            self._values.byteswap()
        self._next = 0


class History:
    """Both rings of one queue, or of a tenant."""

    def __init__(self) -> None:
        self.hour = Ring(HOUR)
        self.day = Ring(DAY_MINUTES)
        self._minute = 0
        self._sums = [0] * 5
        self._last: tuple[int, Level] | None = None
        self.changed_s = 0

    def add(self, since_s: int, at_s: int, level: Level, deltas: Deltas) -> None:
        """Record a reading, and what happened between two moments."""
        happened = (deltas.entered, deltas.claimed, deltas.acked, deltas.nacked, deltas.failed)
        last = self._last
        if last is not None and last[1] == level and not any(happened):
            return
        if last is not None and last[0] < since_s:
            # Nothing changed until then: a chart draws a level, not a slope.
            self.hour.add((since_s, *_numbers(last[1]), *[0] * 5))
        if at_s // 60 != self._minute:
            self._end_minute()
            self._minute = at_s // 60
        self.hour.add((at_s, *_numbers(level), *happened))
        self._sums = [a + b for a, b in zip(self._sums, happened, strict=True)]
        self._last = at_s, level
        self.changed_s = at_s

    def _end_minute(self) -> None:
        if self._last is not None:
            self.day.add((self._minute * 60 + 59, *_numbers(self._last[1]), *self._sums))
        self._sums = [0] * 5

    def recent(self, now_s: int, *, day: bool) -> list[list[int]]:
        """The samples of the last day or hour, and one of now, oldest first."""
        since = now_s - (DAY_MINUTES * 60 if day else HOUR)
        out = list((self.day if day else self.hour).samples(since))
        if day and self._last is not None and self._minute * 60 >= since:
            out.append([self._last[0], *_numbers(self._last[1]), *self._sums])
        return out


def _numbers(level: Level) -> tuple[int, ...]:
    return level.delayed, level.available, level.in_flight, level.failed, level.oldest_s
