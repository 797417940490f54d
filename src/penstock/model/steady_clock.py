"""A wall clock that follows a jump only if the jump lasts.

A clock that is set an hour ahead by mistake would end dedup windows (P4), leases and time to
live, and let retention remove too much. While the process runs, the monotonic clock measures
elapsed time: a wall clock that departs from it by more than ``TOLERANCE_MS`` has jumped. The
jump is logged and counted, and ignored at first; if the wall clock still differs after
``HOLD_MS``, it was set on purpose and is followed. Smaller steps and drift are followed
immediately.

Across a restart there is no monotonic clock: a wrong clock cannot be distinguished from downtime.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.model.clock import Alarm, Clock

__all__ = ["HOLD_MS", "TOLERANCE_MS", "SteadyClock"]

#: More than an ordinary step of a time service, less than any window that matters.
TOLERANCE_MS: Final = 5_000
#: Long enough for a time service to correct a bad reading.
HOLD_MS: Final = 5 * 60_000
#: Nanoseconds per millisecond.
_NS: Final = 1_000_000
_log = logging.getLogger("penstock.clock")


def _elapsed_time() -> Callable[[], int]:
    """A function that counts nanoseconds, if possible also while the machine sleeps.

    Every verb reads the time, so this is a C function without a Python wrapper.
    """
    try:
        elapsed = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
        elapsed()
    except (AttributeError, OSError):
        return time.monotonic_ns
    return elapsed


class SteadyClock:
    """The time of ``clock`` without its jumps."""

    wall: bool = True

    def __init__(self, clock: Clock, elapsed_ns: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._wall = clock.now
        self._elapsed_ns = elapsed_ns or _elapsed_time()
        #: Added to the elapsed time.
        self._offset = clock.now() - self._elapsed_ns() // _NS
        #: When the wall clock was first seen to have jumped, in elapsed milliseconds.
        self._jumped_at: int | None = None
        #: How far it had jumped then.
        self._jump = 0
        #: Jumps noticed so far.
        self.jumps = 0

    def now(self) -> int:
        """The current time in epoch milliseconds."""
        elapsed = self._elapsed_ns() // _NS
        wall = self._wall()
        offset = wall - elapsed
        if -TOLERANCE_MS <= offset - self._offset <= TOLERANCE_MS:
            self._offset = offset
            if self._jumped_at is not None:
                self._jumped_at = None
                _log.warning("The clock is right again; its jump was ignored.")
            return wall
        return self._during_jump(wall, self._offset + elapsed, elapsed)

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Alarm:
        """Call back at ``at_ms`` of this clock."""
        return self._clock.call_at(self._clock.now() + at_ms - self.now(), callback)

    def _during_jump(self, wall: int, steady: int, elapsed: int) -> int:
        jump = wall - steady
        if self._jumped_at is None or abs(jump - self._jump) > TOLERANCE_MS:
            # Another jump on top of one has to last by itself.
            self._jumped_at, self._jump = elapsed, jump
            self.jumps += 1
            _log.error(
                "The clock jumped by %+.0f s. The jump is ignored unless it lasts for %d s.",
                jump / 1000,
                HOLD_MS // 1000,
            )
        if elapsed - self._jumped_at < HOLD_MS:
            return steady
        _log.warning("The jump of the clock by %+.0f s is now followed.", jump / 1000)
        self._jumped_at = None
        self._offset = wall - elapsed
        return wall
