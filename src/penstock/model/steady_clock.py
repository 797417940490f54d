"""A wall clock that does not follow a jump until the jump has lasted.

A clock that is set an hour ahead by mistake would end dedup windows (P4), leases and time to live,
and let retention remove what should stay. While the process runs, elapsed time is known from
the monotonic clock: a wall clock that departs from it by more than ``TOLERANCE_MS`` has jumped.
The jump is logged and counted, and time goes on as before; if the wall clock still differs after
``HOLD_MS``, it was set on purpose and is followed. Smaller steps and drift are followed at once.

Before the process started there is no monotonic clock: a clock that is wrong then cannot be
told from a server that was down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.model.clock import Alarm, Clock

__all__ = ["HOLD_MS", "TOLERANCE_MS", "SteadyClock"]

#: More than a step that a time service makes in passing, less than any window that matters.
TOLERANCE_MS: Final = 5_000
#: Long enough for a time service to correct a bad reading.
HOLD_MS: Final = 5 * 60_000
#: Of a millisecond.
_NS: Final = 1_000_000
_log = logging.getLogger("penstock.clock")


def _elapsed_time() -> Callable[[], int]:
    """A function that counts nanoseconds, also while the machine sleeps where it can.

    Every verb reads the time, so it is one of the C library, without one of ours around it.
    """
    try:
        elapsed = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
        elapsed()
    except (AttributeError, OSError):
        return time.monotonic_ns
    return elapsed


class SteadyClock:
    """Tells the time of ``clock``, without its jumps."""

    wall: bool = True

    def __init__(self, clock: Clock, elapsed_ns: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._wall = clock.now
        self._elapsed_ns = elapsed_ns or _elapsed_time()
        #: What is added to the elapsed time.
        self._offset = clock.now() - self._elapsed_ns() // _NS
        #: When the wall clock was first seen to have jumped, in elapsed milliseconds.
        self._jumped_at: int | None = None
        #: How far it had jumped then.
        self._jump = 0
        #: Jumps that were noticed.
        self.jumps = 0

    def now(self) -> int:
        """Return the present time in epoch milliseconds."""
        elapsed = self._elapsed_ns() // _NS
        steady = self._offset + elapsed
        wall = self._wall()
        if -TOLERANCE_MS <= wall - steady <= TOLERANCE_MS:
            if self._jumped_at is not None:
                self._jumped_at = None
                _log.warning("The clock is right again; its jump was not followed.")
            self._offset = wall - elapsed
            return wall
        return self._during_jump(wall, steady, elapsed)

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Alarm:
        """Call back when this clock says ``at_ms``."""
        return self._clock.call_at(self._clock.now() + at_ms - self.now(), callback)

    def _during_jump(self, wall: int, steady: int, elapsed: int) -> int:
        jump = wall - steady
        if self._jumped_at is None or abs(jump - self._jump) > TOLERANCE_MS:
            # Another jump on top of one has to last by itself.
            self._jumped_at, self._jump = elapsed, jump
            self.jumps += 1
            _log.error(
                "The clock jumped by %+.0f s. It is not followed unless that lasts for %d s.",
                jump / 1000,
                HOLD_MS // 1000,
            )
        if elapsed - self._jumped_at < HOLD_MS:
            return steady
        _log.warning("The clock is followed now, %+.0f s from before.", jump / 1000)
        self._jumped_at = None
        self._offset = wall - elapsed
        return wall
