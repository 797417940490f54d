"""Holdings: the unsettled claims of one consumer, and the task that extends them.

A claim is extended when a third of its lease is over, together with all others of that age,
in one settle call per queue. Shorter work costs nothing. Buffered claims are extended like those
that a program works on. Claims that a program forgot are not (C5).

The receipt decides which consumer holds a delivery (S1): a consumer learns that it lost a
claim when an extension finds the receipt stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from penstock.api import QueueApi
from penstock.consume.hold import Fate, Hold
from penstock.consume.pace import Pace
from penstock.errors import PenstockError, UnknownQueue
from penstock.model.delivery import Delivery, Extend, Receipt, Release, Settlement
from penstock.model.limits import MAX_LEASE_MS

__all__ = ["Holdings", "by_queue"]

#: Checks per lease: a claim is extended between a third and half of its lease, with three
#: retries if that fails.
_LOOKS_A_LEASE: Final = 6
_EXTEND_AFTER: Final = 3
#: The shortest time between two checks, for any lease.
_MIN_LOOK_MS: Final = 10

_log = logging.getLogger("penstock.consume")


class Holdings:
    """The claims that one consumer has not settled."""

    def __init__(self, verbs: QueueApi, pace: Pace, freed: Callable[[], None]) -> None:
        self._verbs = verbs
        self._pace = pace
        self._freed = freed
        self._holds: dict[Receipt, Hold] = {}
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._is_given_up = False
        #: The shortest lease when ``keep`` went to sleep, and what wakes it for a shorter one.
        self._shortest_ms = 0
        self._shorter = asyncio.Event()

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[Hold]:
        return iter(tuple(self._holds.values()))

    def take(self, deliveries: Sequence[Delivery]) -> list[Hold]:
        """Hold deliveries that were just claimed."""
        now = self._pace.now()
        ended = self._ended
        holds = [Hold(delivery, now, ended) for delivery in deliveries]
        for hold in holds:
            self._holds[hold.delivery.receipt] = hold
            if hold.lease_ms < self._shortest_ms:
                self._shorter.set()
        if self._holds:
            self._some.set()
            self._none.clear()
        return holds

    def forget(self, settlements: Iterable[Settlement]) -> None:
        """Stop counting claims that were settled; their holders end them."""
        for settlement in settlements:
            self._holds.pop(settlement.receipt, None)
        self._ended_some()

    def end(self, holds: Iterable[Hold], fate: Fate) -> None:
        """End claims that this consumer holds."""
        for hold in holds:
            hold.fate = fate
            self._holds.pop(hold.delivery.receipt, None)
        self._ended_some()

    async def release(self, holds: Iterable[Hold]) -> None:
        """Release claims that no task has started on; if that fails, they lapse."""
        held = [hold for hold in holds if hold.fate is Fate.HELD]
        for hold in held:
            hold.begin("release")
        for queue, some in by_queue(held).items():
            await self._release(queue, some)

    async def _release(self, queue: str, held: Sequence[Hold]) -> None:
        try:
            await self._verbs.settle(queue, [Release(h.delivery.receipt) for h in held])
        except PenstockError as error:
            _log.warning("%d claims of %r were not released: %s", len(held), queue, error)
            self.end(held, Fate.DROPPED)
        else:
            self.end(held, Fate.SETTLED)

    async def emptied(self) -> None:
        """Return when nothing is held, or ``give_up`` was called."""
        while self._holds and not self._is_given_up:
            await self._none.wait()

    def give_up(self) -> None:
        """Stop waiting for the claims that are held."""
        self._is_given_up = True
        self._none.set()

    # -- keeping them alive ------------------------------------------------------------

    async def keep(self) -> None:
        """Extend held claims, forever."""
        while True:
            await self._some.wait()
            self._shorter.clear()
            self._shortest_ms = min(hold.lease_ms for hold in self._holds.values())
            await self._sleep(max(_MIN_LOOK_MS, self._shortest_ms // _LOOKS_A_LEASE))
            self._forget_dropped()
            now = self._pace.now()
            old = [hold for hold in self if now - hold.since >= hold.lease_ms // _EXTEND_AFTER]
            await self.extend(old)

    async def _sleep(self, ms: int) -> None:
        """Sleep, but not if a claim with a shorter lease is taken meanwhile."""
        waits = (
            asyncio.ensure_future(self._pace.sleep(ms)),
            asyncio.ensure_future(self._shorter.wait()),
        )
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def extend(self, holds: Iterable[Hold]) -> None:
        """Extend these in one call per queue; the tasks of lost claims are cancelled."""
        live = [hold for hold in holds if hold.fate in (Fate.HELD, Fate.SETTLING)]
        for queue, some in by_queue(live).items():
            await self._extend(queue, some)

    async def _extend(self, queue: str, live: Sequence[Hold]) -> None:
        now = self._pace.now()
        try:
            reply = await self._verbs.settle(
                queue, [Extend(hold.delivery.receipt, _wanted_ms(hold, now)) for hold in live]
            )
        except UnknownQueue:
            # The queue is gone, and every claim with it.
            for hold in live:
                hold.lose()
        except PenstockError as error:
            # There are retries left before the leases lapse, and a claim is lost only when its
            # receipt is reported as stale.
            _log.warning("%d claims of %r were not extended: %s", len(live), queue, error)
        else:
            for hold, outcome in zip(live, reply.outcomes, strict=True):
                if outcome.ok:
                    hold.since = now
                else:
                    hold.lose()

    def _forget_dropped(self) -> None:
        """Remove claims that a program forgot, once they have lapsed."""
        now = self._pace.now()
        for hold in self:
            if hold.fate is Fate.DROPPED and now - hold.since >= hold.lease_ms:
                _log.warning("%s was not settled by its holder: its claim lapsed", hold)
                self._ended(hold)

    def _ended(self, hold: Hold) -> None:
        self._holds.pop(hold.delivery.receipt, None)
        self._ended_some()

    def _ended_some(self) -> None:
        if not self._holds:
            self._some.clear()
            self._none.set()
        self._freed()


def by_queue(holds: Iterable[Hold]) -> dict[str, list[Hold]]:
    """The claims of each queue."""
    found: dict[str, list[Hold]] = {}
    for hold in holds:
        found.setdefault(hold.delivery.queue, []).append(hold)
    return found


def _wanted_ms(hold: Hold, now: int) -> int:
    """The granted lease, but at least the time that the program asked for."""
    if hold.wish_ms:
        hold.until = now + hold.wish_ms
        hold.wish_ms = 0
    return min(max(hold.lease_ms, hold.until - now), MAX_LEASE_MS)
