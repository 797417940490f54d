"""The clock. All times in Penstock are epoch milliseconds and come from one of these.

Nothing else in the package may read the wall clock; tests inject
``penstock.testing.clock.FakeClock`` and move it by hand. Waits use ``call_at`` of the same
clock, so that moving the clock ends them too, without any sleeping.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Alarm", "Clock", "SystemClock"]


class Alarm(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing if it was made already."""
        ...


class Clock(Protocol):
    """A clock in epoch milliseconds."""

    @property
    def wall(self) -> bool:
        """Whether it reads the wall clock of this machine.

        A store that several machines share uses the database's clock instead.
        """
        ...

    def now(self) -> int:
        """The current time in epoch milliseconds."""
        ...

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Alarm:
        """Call back from the running event loop at ``at_ms``; soon, if that has passed.

        A clock that is set back or forward makes the call early or late, so the callback has
        to check the time again.
        """
        ...


class SystemClock:
    """The machine's wall clock."""

    wall: bool = True

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Alarm:
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0, at_ms - self.now()) / 1000, callback)
