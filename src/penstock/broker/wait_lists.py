"""Lines: the waiters for one queue, in order of arrival, and why no wake-up is lost (C5).

A line has one waiter per waiting call, first come first served, and one alarm that they share.
While nothing happens, nothing runs. No wake-up is lost:

- A line counts its notifications (``notified``). A waiter notes the count before it polls and rests
  only if the count is unchanged: a notification during a poll means polling again, unless
  another waiter has started to poll since.
- A notification wakes the first waiter, on an ordered queue all of them, because the first may
  own no partition with deliveries. A waiter that finds nothing keeps its position. If it is
  polling when the notification arrives, it may poll again before the next waiter is woken.
- A line is *quiet* when a waiter has polled and found nothing since the last notification, and
  has set the alarm. A waiter that leaves a line that is not quiet (with deliveries, with an
  error or cancelled) wakes the next one, unless another is polling already. So a waiter that
  takes one of a hundred deliveries does not leave the others asleep.

Claims with a selector wait in lines of their own, one per queue and selector: a waiter that finds
nothing says nothing about those with another selector, or with none.

``waiting`` sends the notifications.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable
from itertools import count
from operator import attrgetter
from typing import Final, Generic, Protocol, Self, TypeVar

from penstock.model.clock import Alarm, Clock
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.storage.contract import Engine

__all__ = [
    "Pace",
    "QueueWaitList",
    "ResultWaitList",
    "SelectedWaitList",
    "WaitList",
    "Waiter",
]

#: An engine may report something as overdue and still not hand it out. Polling such a queue
#: ten times per second is soon enough for C5, at a negligible cost.
_OVERDUE_MS: Final = 100
#: Turns of the event loop that a poll takes at most if the engine does not wait for a disk; a
#: commit in memory takes half of them. Without this delay a waiter could starve that happens to
#: poll whenever something is published: each waiter that leaves wakes it, and the next publish
#: finds it polling and wakes another.
_POLL_TURNS: Final = 12
#: The shortest time between two polls with a selector, for each selector in use: 100 scans per
#: second in all, of a few milliseconds each.
_SELECTOR_REST_MS: Final = 10
#: Results read per millisecond because some delivery of their queue ended: a few per cent
#: of a core, for any number of waiters and any load.
_RESULTS_A_MS: Final = 4


class Pace(Protocol):
    """What slows a queue down: its throughput limit."""

    def next_at(self, now: int) -> int | None:
        """When the next delivery may be handed out; None means now."""
        ...


class _Resting:
    """A waiter that has polled, found nothing and waits to be woken."""

    __slots__ = ("ticket", "woken")

    def __init__(self, ticket: int, woken: asyncio.Future[bool]) -> None:
        self.ticket = ticket
        self.woken = woken

    def give_up(self) -> None:
        if not self.woken.done():
            self.woken.set_result(False)


_BY_TICKET: Final = attrgetter("ticket")


class WaitList:
    """The waiters for one thing, in order of arrival."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        #: How often this line was notified.
        self.notified = 0
        #: How many waiters there are, resting or polling.
        self.waiters = 0
        #: How many waiters poll, and how many of these started after the last notification.
        self.polling = 0
        self._polling_anew = 0
        self.tickets = count()
        #: Whether to wake all waiters and not only the first.
        self.wakes_all = False
        #: The longest time that a waiter rests between polls; None: no limit.
        self.rest_ms: int | None = None
        self._resting: list[_Resting] = []
        self._alarm: Alarm | None = None
        self._alarm_at = 0

    @property
    def quiet(self) -> bool:
        """Whether the resting waiters stay covered when one leaves."""
        return True

    @property
    def is_covered(self) -> bool:
        """Whether a waiter has polled since the last notification, or is polling."""
        return self.quiet or self._polling_anew > 0

    def begin(self) -> int:
        """Begin a poll; returns the value to compare ``notified`` with afterwards."""
        self.polling += 1
        self._polling_anew += 1
        return self.notified

    def end(self, notified: int) -> None:
        """End the poll that began at ``notified``."""
        self.polling -= 1
        if notified == self.notified:
            self._polling_anew -= 1

    def notify(self) -> None:
        """Notify the line: a poll may find something."""
        self._count()
        self.wake()

    def notify_all(self) -> None:
        """Notify all waiters: the queue has changed, or is gone."""
        self._count()
        self.wake(len(self._resting))

    def _count(self) -> None:
        self.notified += 1
        self._polling_anew = 0

    def wake(self, most: int = 1) -> None:
        """Wake the first ``most`` waiters; in some lines all."""
        resting = self._resting
        if self.wakes_all:
            most = len(resting)
        while most and resting:
            first = resting.pop(0)
            # A waiter that is done was cancelled or timed out, and is about to leave.
            if not first.woken.done():
                first.woken.set_result(True)
                most -= 1

    async def schedule_alarm(self, polled_at: int) -> None:
        """Set an alarm for when a poll may find something through the passage of time alone."""

    def polls_again(self, notified: int) -> bool:
        """Whether a waiter whose poll began at ``notified`` and found nothing polls at once."""
        return self.notified != notified and (self.wakes_all or not self.is_covered)

    async def rest(self, ticket: int, until: int) -> bool:
        """Rest until woken (True) or until the time is over (False)."""
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
        """Notify the line at ``at``, unless an earlier alarm is set."""
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self.clock.call_at(at, self._ring)

    def close(self) -> None:
        """Cancel the alarm: the last waiter has left."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        self.notify()


class QueueWaitList(WaitList):
    """The waiters for deliveries of one queue."""

    def __init__(self, clock: Clock, engine: Engine, tenant: str, queue: str) -> None:
        super().__init__(clock)
        self._engine = engine
        self._tenant = tenant
        self._queue = queue
        #: The value of ``notified`` when a waiter had found nothing and set the alarm.
        self._quiet_at = -1
        self._pace: Pace | None = None
        self._waking_soon = False

    @property
    def quiet(self) -> bool:
        """Whether a waiter has polled and found nothing since the last notification."""
        return self._quiet_at == self.notified

    def notify(self) -> None:
        """Notify the line, but not before the queue's pace allows a delivery."""
        at = None if self._pace is None else self._pace.next_at(self.clock.now())
        self._count()
        if at is not None:
            # Nothing is handed out before then, so waking a waiter would be useless.
            self.set_alarm(at)
        elif self.polling and not self.wakes_all:
            # A waiter that begins to rest from here on has compared ``notified`` after this
            # notification. Without anyone to wake, the turns took 4% of the server's processor
            # time for a message to a waiting consumer.
            if self._resting and not self._waking_soon:
                self._waking_soon = True
                self._wake_soon(_POLL_TURNS)
        else:
            self.wake()

    def _wake_soon(self, turns: int) -> None:
        """Wake the next waiter after ``turns`` turns, unless one has started to poll by then."""
        if turns:
            asyncio.get_running_loop().call_soon(self._wake_soon, turns - 1)
            return
        self._waking_soon = False
        if not self.is_covered:
            self.wake()

    def order(self, ordered: bool) -> None:
        """Set whether the queue is ordered by partition."""
        if ordered == self.wakes_all:
            return
        self.wakes_all = ordered
        # A claim is also a heartbeat: polling keeps the partitions of a waiting consumer.
        self.rest_ms = CONSUMER_LEASE_MS // 3 if ordered else None
        if self._resting:
            self.notify_all()

    def hold(self, pace: Pace) -> None:
        """Set the queue's pace."""
        self._pace = pace

    def rest_until(self, at: int) -> None:
        """Do not poll before ``at``: the queue hands nothing out until then."""
        self.set_alarm(at)
        self._quiet_at = self.notified

    async def schedule_alarm(self, polled_at: int) -> None:
        """Set the alarm for ``next_due``, unless another waiter has."""
        notified = self.notified
        if self._quiet_at == notified:
            return
        due = await self._engine.next_due(self._tenant, self._queue)
        # If the line was notified meanwhile, this value is stale and the line is not quiet.
        self._quiet_at = notified
        if due is not None:
            self.set_alarm(due if due > polled_at else self.clock.now() + _OVERDUE_MS)


class SelectedWaitList(QueueWaitList):
    """The waiters for deliveries of one queue with one selector.

    A poll scans deliveries that do not match, and most notifications are about those. So the line
    polls at a limited rate under any load.
    """

    def __init__(
        self, clock: Clock, engine: Engine, tenant: str, queue: str, rests: Callable[[], int]
    ) -> None:
        super().__init__(clock, engine, tenant, queue)
        #: How many of the shortest rests to take, because all such lines share one rate.
        self._rests = rests
        self._polled_at: int | None = None

    def end(self, notified: int) -> None:
        """End the poll that began at ``notified``."""
        super().end(notified)
        self._polled_at = self.clock.now()

    def notify(self) -> None:
        """Notify the line, but not too soon after its last poll."""
        at = self._next_poll_at()
        if at > self.clock.now():
            self._count()
            self.set_alarm(at)
        else:
            super().notify()

    def polls_again(self, notified: int) -> bool:
        """Never at once: set the alarm for the next poll instead."""
        if super().polls_again(notified):
            self.set_alarm(self._next_poll_at())
        return False

    def _next_poll_at(self) -> int:
        if self._polled_at is None:
            return self.clock.now()
        return self._polled_at + _SELECTOR_REST_MS * self._rests()


class ResultWaitList(WaitList):
    """The waiters for results in one queue, of any message."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.wakes_all = True
        self._notified_at = 0

    def notify(self) -> None:
        """Notify all waiters: there may be results."""
        self._notified_at = self.clock.now()
        super().notify()

    def ended(self) -> None:
        """Notify the waiters that some delivery of the queue ended, at a limited rate."""
        at = self._notified_at + self.waiters // _RESULTS_A_MS
        if at > self.clock.now():
            self.set_alarm(at)
        else:
            self.notify()


L = TypeVar("L", bound=WaitList)
T = TypeVar("T")


class Waiter(Generic[L]):
    """One waiter: its position in a line, kept from the first poll to the last."""

    def __init__(self, line: L, check: Callable[[], None], forget: Callable[[], object]) -> None:
        self.line = line
        self._check = check
        self._forget = forget
        self._ticket = next(line.tickets)

    def __enter__(self) -> Self:
        self.line.waiters += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.line.waiters -= 1
        if not self.line.waiters:
            self.line.close()
            self._forget()
        elif not self.line.is_covered:
            self.line.wake()

    async def first(self, look: Callable[[], Awaitable[T]], deadline: int) -> T:
        """Poll until there is something, or until the deadline; returns the last poll's value."""
        line, clock = self.line, self.line.clock
        while True:
            self._check()
            polled_at = clock.now()
            notified = line.begin()
            try:
                found = await look()
            finally:
                line.end(notified)
            if found or clock.now() >= deadline:
                return found
            if line.notified == notified:
                await line.schedule_alarm(polled_at)
            if line.polls_again(notified):
                continue
            until = deadline
            if line.rest_ms is not None:
                until = min(until, clock.now() + line.rest_ms)
            woken = await line.rest(self._ticket, until)
            if not woken and clock.now() >= deadline and line.is_covered:
                return found
