"""The database's clock, as a server reads it without asking every time (C1, O1, C3).

Servers that share a store compare times that others wrote: leases, delays, expiry. They all go
by the one clock that they share, the database's. It is asked when the store is opened and every
ten seconds, and in between the steady clock of this machine says how much time has passed. The
wall clock of this machine is never read, so it may be wrong by any amount.

An answer is as of some moment between the question and its arrival. So the reading is off by
one such round trip at the most, the shortest of a few, a millisecond of rounding, and what two
steady clocks drift apart in ten seconds, which is five milliseconds if one of them is being
corrected as fast as can be. Two servers differ by twice that. C1 and O1 do not depend on it: who
has a lease is decided under the database's locks. What it shifts is the moment at which a lease
lapses or a delay is over.

The reading goes back only if the database's clock was set back by a second or more; below that
it stands still until the time has caught up. A machine that was suspended is behind until the
next answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from penstock.model.clock import Alarm, Clock
from penstock.storage.sql.database import Database
from penstock.storage.sql.ending import end

__all__ = ["DatabaseClock", "clock_for"]

#: Seconds between two measurements, and after one that failed.
_EVERY_S: Final = 10.0
_AGAIN_S: Final = 1.0
#: How often the database is asked for one measurement; the shortest round trip counts.
_ASKED: Final = 3
#: A correction backwards by less is waited out.
_STEP_MS: Final = 1_000

_log = logging.getLogger("penstock.storage")


async def clock_for(database: Database, clock: Clock) -> Clock:
    """The clock that the engine lives by: the database's, unless a test brought its own.

    A ``DatabaseClock`` is running already, and its ``close`` has to be called.
    """
    if not clock.wall:
        return clock
    return await DatabaseClock.start(database)


class DatabaseClock:
    """Tells the time of a database."""

    wall: bool = False

    def __init__(self, database: Database, steady: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._steady = steady
        #: What is added to the steady clock's milliseconds; None: nobody knows yet.
        self._ahead: float | None = None
        self._last = 0
        self._doubted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, database: Database) -> DatabaseClock:
        """Measure, and go on doing so until ``close``. Raises what the database raises."""
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
        """Measure soon: the connection was lost, and another machine may have taken over."""
        self._doubted.set()

    async def measure(self) -> None:
        """Ask the database for the time, and go by its answer."""
        earliest, latest = min(
            [await self._ask() for _ in range(_ASKED)], key=lambda found: found[1] - found[0]
        )
        if self._ahead is None:
            self._ahead = (earliest + latest) / 2
            return
        # What was known stays as long as it can be right, so a slow answer spoils nothing.
        ahead = min(max(self._ahead, earliest), latest)
        if ahead <= self._ahead - _STEP_MS:
            self._last = 0
        self._ahead = ahead

    async def close(self) -> None:
        """Measure no more. What is known is still told."""
        await end(self._task)
        self._task = None

    def _read(self) -> int:
        assert self._ahead is not None
        return int(self._steady() * 1000 + self._ahead)

    async def _ask(self) -> tuple[float, float]:
        """The least and the most by which the database can be ahead of the steady clock."""
        asked = self._steady() * 1000
        answer = await self._database.now()
        answered = self._steady() * 1000
        # The answer is a whole number: it is rounded, up or down, by less than one.
        return answer - 1 - answered, answer + 1 - asked

    async def _keep(self) -> None:
        """Measure now and then. Without an answer the last one holds."""
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
            except Exception as error:  # noqa: BLE001  (told, and tried again)
                if not failing:
                    _log.warning("The database does not tell the time: %s", error)
                failing = True
            else:
                failing = False
