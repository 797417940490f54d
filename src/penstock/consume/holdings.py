"""Holdings: every unsettled claim of one consumer, and the duty that keeps them alive.

A claim is extended when a third of its lease is over, together with all others that are as
old, in one settle call; work that takes less costs nothing. Claims that wait in the buffer
are extended like those that a program works on. Those that a program forgot are not (C5).

The receipt decides who holds what (S1): an extension that finds it stale is how a consumer
learns that a claim is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from penstock.consume.hold import Fate, Hold
from penstock.consume.pace import Pace
from penstock.errors import PenstockError, UnknownQueue
from penstock.model.delivery import Delivery, Extend, Receipt, Release
from penstock.model.limits import MAX_LEASE_MS
from penstock.verbs import Verbs

__all__ = ["Holdings"]

#: Looked at this often a lease: a claim is extended between a third and half of its lease, and
#: three more times if that fails.
_LOOKS_A_LEASE: Final = 6
_EXTEND_AFTER: Final = 3
#: The shortest time between two looks, whatever lease a queue allows.
_MIN_LOOK_MS: Final = 10

_log = logging.getLogger("penstock.consume")


class Holdings:
    """What one consumer has claimed and not settled."""

    def __init__(self, verbs: Verbs, queue: str, pace: Pace, freed: Callable[[], None]) -> None:
        self._verbs = verbs
        self._queue = queue
        self._pace = pace
        self._freed = freed
        self._holds: dict[Receipt, Hold] = {}
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._is_given_up = False

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[Hold]:
        return iter(tuple(self._holds.values()))

    def take(self, deliveries: Sequence[Delivery]) -> list[Hold]:
        """Hold what was just claimed."""
        now = self._pace.now()
        holds = [Hold(delivery, now, self._ended) for delivery in deliveries]
        for hold in holds:
            self._holds[hold.delivery.receipt] = hold
        if self._holds:
            self._some.set()
            self._none.clear()
        return holds

    async def release(self, holds: Iterable[Hold]) -> None:
        """Hand back what nobody has begun to work on; what fails to go back lapses."""
        held = [hold for hold in holds if hold.fate is Fate.HELD]
        if not held:
            return
        for hold in held:
            hold.begin("release")
        try:
            await self._verbs.settle(self._queue, [Release(h.delivery.receipt) for h in held])
        except PenstockError as error:
            _log.warning("%d claims of %r were not released: %s", len(held), self._queue, error)
            for hold in held:
                hold.end(Fate.DROPPED)
        else:
            for hold in held:
                hold.end(Fate.SETTLED)

    async def emptied(self) -> None:
        """Return when nothing is held, or ``give_up`` was called."""
        while self._holds and not self._is_given_up:
            await self._none.wait()

    def give_up(self) -> None:
        """Nobody waits for what is held any more."""
        self._is_given_up = True
        self._none.set()

    # -- keeping them alive ------------------------------------------------------------

    async def keep(self) -> None:
        """Extend what is held, for ever."""
        while True:
            await self._some.wait()
            shortest_ms = min(hold.lease_ms for hold in self._holds.values())
            await self._pace.sleep(max(_MIN_LOOK_MS, shortest_ms // _LOOKS_A_LEASE))
            self._forget_dropped()
            now = self._pace.now()
            old = [hold for hold in self if now - hold.since >= hold.lease_ms // _EXTEND_AFTER]
            await self.extend(old)

    async def extend(self, holds: Iterable[Hold]) -> None:
        """Extend these in one call, and tell the holders of what is lost."""
        now = self._pace.now()
        live = [hold for hold in holds if hold.fate in (Fate.HELD, Fate.SETTLING)]
        if not live:
            return
        try:
            reply = await self._verbs.settle(
                self._queue, [Extend(hold.delivery.receipt, _wanted_ms(hold, now)) for hold in live]
            )
        except UnknownQueue:
            # The queue is gone, and every claim with it.
            for hold in live:
                hold.lose()
        except PenstockError as error:
            # There are tries left before the leases lapse, and nothing is lost until a
            # receipt is said to be stale.
            _log.warning("%d claims of %r were not extended: %s", len(live), self._queue, error)
        else:
            for hold, outcome in zip(live, reply.outcomes, strict=True):
                if outcome.ok:
                    hold.since = now
                else:
                    hold.lose()

    def _forget_dropped(self) -> None:
        """Free the places of claims that a program forgot, once they have lapsed."""
        now = self._pace.now()
        for hold in self:
            if hold.fate is Fate.DROPPED and now - hold.since >= hold.lease_ms:
                _log.warning("%s was not settled by whoever held it: its claim lapsed", hold)
                self._ended(hold)

    def _ended(self, hold: Hold) -> None:
        self._holds.pop(hold.delivery.receipt, None)
        if not self._holds:
            self._some.clear()
            self._none.set()
        self._freed()


def _wanted_ms(hold: Hold, now: int) -> int:
    """As long as was granted, and never less than the program itself asked for."""
    if hold.wish_ms:
        hold.until = now + hold.wish_ms
        hold.wish_ms = 0
    return min(max(hold.lease_ms, hold.until - now), MAX_LEASE_MS)
