"""A clock that moves only when a test moves it, and then runs the callbacks that are due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

__all__ = ["FakeClock"]

#: Any time will do, except zero.
_START_MS: Final = 1_700_000_000_000


class FakeClock:
    """Returns the time that it was set to, in epoch milliseconds."""

    wall: bool = False
    """Every store uses it directly, including one in a database."""

    def __init__(self, now_ms: int = _START_MS) -> None:
        self._now_ms = now_ms
        self._alarms: list[_FakeAlarm] = []
        self._numbers = count()

    def now(self) -> int:
        """Return the current time of the clock."""
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Move forward by ``ms`` and return the new time.

        Callbacks that are due run now, earliest first; the tasks that they wake run when the test
        next awaits something.
        """
        if ms < 0:
            raise ValueError("the clock cannot go back")
        self._now_ms += ms
        while self._alarms and self._alarms[0].at_ms <= self._now_ms:
            heappop(self._alarms).ring()
        return self._now_ms

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> _FakeAlarm:
        """Call back when the clock reaches ``at_ms``; soon, if it already has."""
        alarm = _FakeAlarm(at_ms, next(self._numbers), callback)
        if at_ms <= self._now_ms:
            asyncio.get_running_loop().call_soon(alarm.ring)
        else:
            heappush(self._alarms, alarm)
        return alarm

    def next_alarm(self) -> int | None:
        """The earliest time that a callback waits for, or None."""
        self._alarms = [alarm for alarm in self._alarms if not alarm.cancelled]
        heapify(self._alarms)
        return self._alarms[0].at_ms if self._alarms else None


class _FakeAlarm:
    """One scheduled callback."""

    def __init__(self, at_ms: int, number: int, callback: Callable[[], object]) -> None:
        self.at_ms = at_ms
        self.cancelled = False
        self._number = number
        self._callback = callback

    def __lt__(self, other: _FakeAlarm) -> bool:
        return (self.at_ms, self._number) < (other.at_ms, other._number)

    def cancel(self) -> None:
        self.cancelled = True

    def ring(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            self._callback()
