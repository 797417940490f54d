"""The clock. All times in Penstock are epoch milliseconds and come from one of these.

Nothing else in the package may read the wall clock; tests inject
``penstock.testing.clock.FakeClock`` and move it by hand.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Tells the time in epoch milliseconds."""

    def now(self) -> int:
        """Return the present time in epoch milliseconds."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000
