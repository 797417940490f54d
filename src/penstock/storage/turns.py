"""Turns: long work runs in slices of a few milliseconds, shared fairly between tenants.

All calls on a store run on one event loop. A call with more work than one slice (a preview of the
whole log, the routing of a large batch through a thousand filters) waits for a turn before each
slice. One slice runs at a time. Waiting tenants take turns round robin, and the calls of one tenant
queue behind each other, so ten previews of one tenant cost another tenant no more than one does.
While short calls are in progress, the loop is free after every slice for as long as the slice took.

A cancelled caller leaves its line, which ends its work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

__all__ = ["SLICE_S", "Slice", "Turns"]

#: After how long a slice ends. It finishes the step that it is in, and must not take 5 ms in all.
SLICE_S: Final = 0.0045
#: The longest pause after a slice.
_LONGEST_PAUSE_S: Final = 0.05
#: Timers have this resolution, so shorter slices are added up until they justify a pause.
_SHORTEST_PAUSE_S: Final = 0.001


class Turns:
    """Decides which call runs the next slice of long work in one store."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self.slice_s = slice_s
        #: By tenant, the calls that wait. The tenant whose turn is next comes first.
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        #: The loop that grants the next turn; None while no call waits.
        self._granting: asyncio.AbstractEventLoop | None = None
        self._began = 0.0
        #: The time that slices took since the last pause.
        self._owed = 0.0
        #: Short calls in progress, maintained by ``Shares``.
        self.short_calls = 0
        #: Slices granted so far, for tests and measurements.
        self.granted = 0

    async def take(self, tenant: str) -> None:
        """Wait for the tenant's next turn; it lasts until the caller awaits something else."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._granting is not loop:
            if self._granting is not None:
                self._lines.clear()  # Those callers died with their loop.
            self._granting = loop
            loop.call_soon(self._grant, loop)
        self._lines.setdefault(tenant, deque()).append(future)
        await future

    def _grant(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the first caller of the next tenant."""
        while self._lines:
            tenant = next(iter(self._lines))
            line = self._lines.pop(tenant)
            while line and line[0].done():
                line.popleft()  # Cancelled.
            if not line:
                continue
            line.popleft().set_result(None)
            if line:
                self._lines[tenant] = line  # Now last in the round.
            self.granted += 1
            self._began = loop.time()
            # Runs after the slice: the caller is resumed in the next loop iteration, before this.
            loop.call_soon(self._after_slice, loop)
            return
        self._granting = None

    def _after_slice(self, loop: asyncio.AbstractEventLoop) -> None:
        self._owed = self._owed + loop.time() - self._began if self.short_calls else 0.0
        if self._owed >= _SHORTEST_PAUSE_S:
            pause, self._owed = min(self._owed, _LONGEST_PAUSE_S), 0.0
            loop.call_later(pause, self._grant, loop)
        else:
            self._grant(loop)


class Slice:
    """Splits one call into slices: waits for a turn whenever a slice's time is used up."""

    __slots__ = ("_ends", "_tenant", "_time", "_turns")

    def __init__(self, turns: Turns, tenant: str) -> None:
        self._turns = turns
        self._tenant = tenant
        #: The loop's clock, so that a simulated loop decides where slices end.
        self._time = asyncio.get_running_loop().time
        self._ends = self._time() + turns.slice_s

    async def run(self, steps: Iterable[object]) -> None:
        """Run the steps, as many per slice as its time allows."""
        for _ in steps:
            if self.is_over:
                await self.next()

    @property
    def is_over(self) -> bool:
        """Whether the time of the slice is used up."""
        return self._time() >= self._ends

    async def next(self) -> None:
        """Wait for the next turn."""
        await self._turns.take(self._tenant)
        self._ends = self._time() + self._turns.slice_s
