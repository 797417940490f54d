"""Lines: those who wait for the same thing, and how none of them is forgotten (C5).

Everyone who waits for the same queue stands in one line, first come first served, with one
alarm between them; while nothing happens, nothing runs. No wake-up is lost:

- A line counts what it is told. Whoever looks remembers the count from before the look and
  rests only if it is still the same: being told in the middle of a look means looking
  again, unless another one has begun to look since.
- Being told wakes the first in line; on an ordered queue everybody, as the first may own no
  partition that has something. Whoever was woken and found nothing keeps its place, and
  if it is looking just then it has a moment to look again before the next is woken.
- A line is *quiet* when somebody has looked in vain since it was last told, and has set the
  alarm. Whoever leaves a line that is not, with deliveries, with an error or because it was
  cancelled, wakes the next, unless somebody looks already. So one that is told of a
  hundred deliveries and takes one of them does not leave the others asleep.

Who tells the lines is the business of ``waiting``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable
from itertools import count
from operator import attrgetter
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

from penstock.model.clock import Alarm, Clock
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.storage.contract import Engine

__all__ = ["Line", "Pace", "Place", "QueueLine", "ResultLine"]

#: An engine may say that something is overdue and still not hand it out. Looking at such a
#: queue again ten times a second is soon enough for C5 and costs nothing that shows.
_OVERDUE_MS: Final = 100
#: Turns of the event loop that a look in vain takes at the most, if the engine does not wait
#: for a disk; a commit in memory alone takes half of them.
#: Without them whoever looks in vain whenever something is published would be passed by all
#: the others: each that leaves wakes it, and the next publish finds it looking.
_LOOK_TURNS: Final = 12
#: Results that are read again, a millisecond, because something in their queue was settled:
#: a few per cent of a core, however many wait for however busy a queue.
_RESULTS_A_MS: Final = 4


class Pace(Protocol):
    """What holds a queue back: its throughput limit."""

    def next_at(self, now: int) -> int | None:
        """When the next delivery may be handed out, or None: now."""
        ...


class _Resting:
    """Somebody who has looked in vain and waits to be woken."""

    __slots__ = ("ticket", "woken")

    def __init__(self, ticket: int, woken: asyncio.Future[bool]) -> None:
        self.ticket = ticket
        self.woken = woken

    def give_up(self) -> None:
        if not self.woken.done():
            self.woken.set_result(False)


_BY_TICKET: Final = attrgetter("ticket")


class Line:
    """Those who wait for the same thing, by the order in which they came."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        #: How often this line was told that looking may be worth it.
        self.told = 0
        #: How many stand here, resting or looking.
        self.places = 0
        #: How many look, and how many of them began to after the line was last told.
        self.looking = 0
        self._looking_anew = 0
        self.tickets = count()
        #: Wake everybody and not the first only.
        self.everybody = False
        #: The longest that one rests without looking; None: as long as it likes.
        self.rest_ms: int | None = None
        self._resting: list[_Resting] = []
        self._alarm: Alarm | None = None
        self._alarm_at = 0

    @property
    def quiet(self) -> bool:
        """Whether those who rest can do without whoever is leaving."""
        return True

    @property
    def seen_to(self) -> bool:
        """Whether somebody has looked since the line was last told, or is looking."""
        return self.quiet or self._looking_anew > 0

    def begin(self) -> int:
        """Begin to look; returns what to compare ``told`` with afterwards."""
        self.looking += 1
        self._looking_anew += 1
        return self.told

    def end(self, told: int) -> None:
        """The look that began at ``told`` is over."""
        self.looking -= 1
        if told == self.told:
            self._looking_anew -= 1

    def tell(self) -> None:
        """Looking may be worth it now."""
        self._count()
        self.wake()

    def tell_everybody(self) -> None:
        """What they all wait for has changed, or is gone."""
        self._count()
        self.wake(len(self._resting))

    def _count(self) -> None:
        self.told += 1
        self._looking_anew = 0

    def wake(self, most: int = 1) -> None:
        """Wake those that came first, ``most`` of them; in some lines all."""
        resting = self._resting
        if self.everybody:
            most = len(resting)
        while most and resting:
            first = resting.pop(0)
            # One that is done was cancelled or has given up, and is about to leave.
            if not first.woken.done():
                first.woken.set_result(True)
                most -= 1

    async def see_to_time(self, looked_at: int) -> None:
        """Make sure that the line is told when time alone makes looking worth it."""

    async def rest(self, ticket: int, until: int) -> bool:
        """Stand in line until woken (True) or until the time is over (False)."""
        resting = _Resting(ticket, asyncio.get_running_loop().create_future())
        insort(self._resting, resting, key=_BY_TICKET)
        alarm = self.clock.call_at(until, resting.give_up)
        try:
            return await resting.woken
        finally:
            alarm.cancel()
            index = bisect_left(self._resting, ticket, key=_BY_TICKET)
            if index < len(self._resting) and self._resting[index] is resting:
                del self._resting[index]

    def set_alarm(self, at: int) -> None:
        """Be told at ``at``, if not earlier."""
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self.clock.call_at(at, self._ring)

    def close(self) -> None:
        """Nobody stands here any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        self.tell()


class QueueLine(Line):
    """Those who wait for deliveries of one queue."""

    def __init__(self, clock: Clock, engine: Engine, tenant: str, queue: str) -> None:
        super().__init__(clock)
        self._engine = engine
        self._tenant = tenant
        self._queue = queue
        #: What ``told`` was when somebody had looked in vain and set the alarm.
        self._quiet_at = -1
        self._pace: Pace | None = None
        self._waking_soon = False

    @property
    def quiet(self) -> bool:
        """Whether somebody has looked in vain since the line was last told."""
        return self._quiet_at == self.told

    def tell(self) -> None:
        """Looking may be worth it now, or as soon as the queue's pace allows."""
        at = None if self._pace is None else self._pace.next_at(self.clock.now())
        self._count()
        if at is not None:
            # Nothing is handed out before then: a busy queue wakes nobody in vain.
            self.set_alarm(at)
        elif self.looking and not self.everybody:
            if not self._waking_soon:
                self._waking_soon = True
                self._wake_soon(_LOOK_TURNS)
        else:
            self.wake()

    def _wake_soon(self, turns: int) -> None:
        """Wake the next in so many turns, unless whoever looks now has begun anew by then."""
        if turns:
            asyncio.get_running_loop().call_soon(self._wake_soon, turns - 1)
            return
        self._waking_soon = False
        if not self.seen_to:
            self.wake()

    def order(self, ordered: bool) -> None:
        """Say whether the queue is ordered by partition."""
        if ordered == self.everybody:
            return
        self.everybody = ordered
        # A claim is a heartbeat too, and who waits is alive: its partitions stay its own.
        self.rest_ms = CONSUMER_LEASE_MS // 3 if ordered else None
        if self._resting:
            self.tell_everybody()

    def hold(self, pace: Pace) -> None:
        """Say what the queue is held back by."""
        self._pace = pace

    def rest_until(self, at: int) -> None:
        """The queue hands nothing out before ``at``: no look before is worth it."""
        self.set_alarm(at)
        self._quiet_at = self.told

    async def see_to_time(self, looked_at: int) -> None:
        """Set the alarm for ``next_due``, unless somebody did."""
        told = self.told
        if self._quiet_at == told:
            return
        due = await self._engine.next_due(self._tenant, self._queue)
        # If the line was told meanwhile this is history: it is not quiet, and is seen to anew.
        self._quiet_at = told
        if due is not None:
            self.set_alarm(due if due > looked_at else self.clock.now() + _OVERDUE_MS)


class ResultLine(Line):
    """Those who wait for results in one queue, whatever their messages are."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.everybody = True
        self._told_at = 0

    def tell(self) -> None:
        """There may be results."""
        self._told_at = self.clock.now()
        super().tell()

    def settled(self) -> None:
        """Something in the queue was settled: all look again, but not all the time."""
        at = self._told_at + self.places // _RESULTS_A_MS
        if at > self.clock.now():
            self.set_alarm(at)
        else:
            self.tell()


L = TypeVar("L", bound=Line)
T = TypeVar("T")


class Place(Generic[L]):
    """One who waits: a place in a line, kept from the first look to the last."""

    def __init__(self, line: L, check: Callable[[], None], forget: Callable[[], object]) -> None:
        self.line = line
        self._check = check
        self._forget = forget
        self._ticket = next(line.tickets)

    def __enter__(self) -> Self:
        self.line.places += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.line.places -= 1
        if not self.line.places:
            self.line.close()
            self._forget()
        elif not self.line.seen_to:
            self.line.wake()

    async def first(self, look: Callable[[], Awaitable[T]], deadline: int) -> T:
        """Look until there is something, or until the deadline; what was seen last."""
        line, clock = self.line, self.line.clock
        while True:
            self._check()
            looked_at = clock.now()
            told = line.begin()
            try:
                found = await look()
            finally:
                line.end(told)
            if found or clock.now() >= deadline:
                return found
            if line.told == told:
                await line.see_to_time(looked_at)
            if line.told != told and (line.everybody or not line.seen_to):
                continue
            until = deadline
            if line.rest_ms is not None:
                until = min(until, clock.now() + line.rest_ms)
            woken = await line.rest(self._ticket, until)
            if not woken and clock.now() >= deadline and line.seen_to:
                return found
