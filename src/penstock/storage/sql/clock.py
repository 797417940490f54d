"""The database's clock, extrapolated by each server between measurements (C1, O1, C3).

Servers that share a store compare times that other servers wrote: leases, delays, expiry. So they
all use the clock that they share, the database's. A server reads it when the store is opened and
then every ten seconds; in between it adds the time elapsed on this machine's steady clock. The
wall clock of this machine is never read, so it may be wrong by any amount.

The database's answer is a time between the request and its arrival. So the reading is off by at
most one round trip (the shortest of a few), a millisecond of rounding, and the drift of two
steady clocks in ten seconds, which is five milliseconds if one of them is being corrected at the
maximum rate. Two servers differ by at most twice that. C1 and O1 do not depend on it: the
database's locks decide who has a lease. The error only shifts the moment at which a lease lapses
or a delay ends.

The reading goes back only if the database's clock was set back by a second or more; for a smaller
step it stands still until the time has caught up. The steady clock includes the time in suspend
where the system has such a clock; elsewhere, and after a virtual machine was paused, the reading is
behind until the next measurement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.model.clock import Alarm, Clock
from penstock.storage.sql.claim_numbers import steady_s
from penstock.storage.sql.database import Database, end

__all__ = ["DatabaseClock", "clock_for"]

#: Seconds between two measurements, and after a failed one.
_EVERY_S: Final = 10.0
_AGAIN_S: Final = 1.0
#: Requests per measurement; the one with the shortest round trip counts.
_ASKED: Final = 3
#: A smaller step back makes the clock stand still.
_STEP_MS: Final = 1_000

_log = logging.getLogger("penstock.storage")


async def clock_for(database: Database, clock: Clock) -> Clock:
    """The engine's clock: the database's, unless a test supplied one.

    A ``DatabaseClock`` is already running; the caller must ``close`` it.
    """
    if not clock.wall:
        return clock
    return await DatabaseClock.start(database)


class DatabaseClock:
    """The time of a database."""

    wall: bool = False

    def __init__(self, database: Database, steady: Callable[[], float] = steady_s) -> None:
        self._database = database
        self._steady = steady
        #: The database's time minus the steady clock, in milliseconds; None before a measurement.
        self._ahead: float | None = None
        self._last = 0
        self._doubted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, database: Database) -> DatabaseClock:
        """Measure now, and then regularly until ``close``. Raises the database's errors."""
        clock = cls(database)
        await clock.measure()
        clock._task = asyncio.get_running_loop().create_task(clock._keep())
        return clock

    def now(self) -> int:
        self._last = max(self._last, self._read())
        return self._last

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Alarm:
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0, at_ms - self._read()) / 1000, callback)

    def doubt(self) -> None:
        """Measure soon: the connection was lost, and the database may have failed over."""
        self._doubted.set()

    async def measure(self) -> None:
        """Ask the database for the time, and correct the offset."""
        earliest, latest = min(
            [await self._ask() for _ in range(_ASKED)], key=lambda found: found[1] - found[0]
        )
        if self._ahead is None:
            self._ahead = (earliest + latest) / 2
            return
        # Keep the known offset while the answer is consistent with it: a slow answer is imprecise.
        ahead = min(max(self._ahead, earliest), latest)
        if ahead <= self._ahead - _STEP_MS:
            self._last = 0
        self._ahead = ahead

    async def close(self) -> None:
        """Stop measuring. ``now`` continues from the last measurement."""
        await end(self._task)
        self._task = None

    def _read(self) -> int:
        assert self._ahead is not None
        return int(self._steady() * 1000 + self._ahead)

    async def _ask(self) -> tuple[float, float]:
        """The bounds of the database's lead over the steady clock."""
        asked = self._steady() * 1000
        answer = await self._database.now()
        answered = self._steady() * 1000
        # The answer is a whole number, rounded up or down by less than one.
        return answer - 1 - answered, answer + 1 - asked

    async def _keep(self) -> None:
        """Measure regularly. While measurements fail, the last one remains in use."""
        failing = False
        while True:
            try:
                async with asyncio.timeout(_AGAIN_S if failing else _EVERY_S):
                    await self._doubted.wait()
            except TimeoutError:
                pass
            self._doubted.clear()
            try:
                await self.measure()
            except Exception as error:  # noqa: BLE001  (logged, and retried)
                if not failing:
                    _log.warning("Cannot read the database's clock: %s", error)
                failing = True
            else:
                failing = False
