"""The clock. All times in Penstock are epoch milliseconds and come from one of these.

Nothing else in the package may read the wall clock; tests inject
``penstock.testing.clock.FakeClock`` and move it by hand. Whoever waits for a time asks the
same clock to be called then, so that a moved clock ends waits too, without any sleeping.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Alarm", "Clock", "SystemClock"]


class Alarm(Protocol):
    """A call that was asked for, and can be called off."""

    def cancel(self) -> None:
        """Do not call. Too late is fine."""
        ...


class Clock(Protocol):
    """Tells the time in epoch milliseconds."""

    @property
    def wall(self) -> bool:
        """Whether it reads the wall clock of this machine.

        A store that several machines share goes by the database's clock instead.
        """
        ...

    def now(self) -> int:
        """Return the present time in epoch milliseconds."""
        ...

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Alarm:
        """Call back from the running event loop when it is ``at_ms``; soon, if it is already.

        A clock that is set back or forward makes the call early or late: whoever depends on
        the time looks at it again.
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
