"""A clock that moves only when a test moves it."""

from __future__ import annotations

from typing import Final

__all__ = ["FakeClock"]

#: Any time will do, as long as nobody mistakes it for zero.
_START_MS: Final = 1_700_000_000_000


class FakeClock:
    """Tells the time that it was set to, in epoch milliseconds."""

    def __init__(self, now_ms: int = _START_MS) -> None:
        self._now_ms = now_ms

    def now(self) -> int:
        """Return the time that the clock was moved to."""
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Move forward by ``ms`` and return the new time."""
        if ms < 0:
            raise ValueError("time does not go back")
        self._now_ms += ms
        return self._now_ms
