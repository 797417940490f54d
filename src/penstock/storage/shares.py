"""Shares: limits how much of a store's capacity the calls of one tenant use at a time.

All calls on a store share one event loop and one commit at a time. So the broker limits the number
of messages, deliveries and settlements in progress, and divides the limit equally between the
recently active tenants. A call beyond its tenant's share waits in the tenant's line. A tenant with
nothing in progress is always admitted, so an occasional publisher does not wait for a tenant that
floods the store.

A large call, which an engine stores in one piece, also waits for a turn (``turns``) while other
tenants are active: calls that arrived meanwhile get the loop and a commit first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, TypeAlias

from penstock.storage.turns import Turns

__all__ = ["CAPACITY", "LARGE", "Shares"]

#: Messages, deliveries and settlements in progress: twice the largest batch, so that one batch can
#: be planned while another is written.
CAPACITY: Final = 20_000
#: A call of this size takes milliseconds of the loop.
LARGE: Final = 1_000
#: How long a tenant without calls keeps its share, in seconds: the pause of a busy client.
_LINGER_S: Final = 1.0

_Waiting: TypeAlias = tuple[int, asyncio.Future[None]]


class Shares:
    """The calls in progress in one store, by tenant, and the calls waiting to begin."""

    def __init__(self, turns: Turns, capacity: int = CAPACITY) -> None:
        self._turns = turns
        self._time = asyncio.get_running_loop().time
        self._capacity = capacity
        self._under_way: dict[str, int] = {}
        #: The tenant that is admitted next comes first.
        self._lines: dict[str, deque[_Waiting]] = {}
        #: The tenants that share the capacity, with the loop time when the last call of each ended,
        #: or None while it has calls.
        self._active: dict[str, float | None] = {}

    def enter(self, tenant: str, cost: int) -> bool:
        """Begin a call of ``cost`` messages or deliveries, unless it has to wait (False).

        On False, the caller awaits ``wait``. Either way it must call ``leave`` at the end.
        """
        used = self._under_way.get(tenant, 0)
        if used and (self._lines or used + cost > self._capacity // len(self._active)):
            self._forget_idle()
            if tenant in self._lines or not self._fits(tenant, cost):
                return False
        if cost < LARGE:
            # As ``_begin``, which costs a call more, in every verb.
            self._under_way[tenant] = used + (cost or 1)
            self._active[tenant] = None
            self._turns.short_calls += 1
            return True
        if self._has_others(tenant):
            return False
        self._begin(tenant, cost)
        return True

    async def wait(self, tenant: str, cost: int) -> None:
        """Wait for the turn of a call that ``enter`` did not admit, then begin it."""
        if tenant in self._lines or not self._fits(tenant, cost):
            await self._stand_in_line(tenant, cost)
        else:
            self._begin(tenant, cost)
        if cost >= LARGE and self._has_others(tenant):
            try:
                await self._turns.take(tenant)
            except asyncio.CancelledError:
                self.leave(tenant, cost)
                raise

    def leave(self, tenant: str, cost: int) -> None:
        """End a call, successful or not."""
        left = self._under_way[tenant] - (cost or 1)
        if left:
            self._under_way[tenant] = left
        else:
            del self._under_way[tenant]
            self._active[tenant] = self._time()
        if cost < LARGE:
            self._turns.short_calls -= 1
        if self._lines:
            self._let_in()

    def _begin(self, tenant: str, cost: int) -> None:
        self._under_way[tenant] = self._under_way.get(tenant, 0) + (cost or 1)
        self._active[tenant] = None
        if cost < LARGE:
            self._turns.short_calls += 1

    async def _stand_in_line(self, tenant: str, cost: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(tenant, deque()).append((cost, future))
        self._active[tenant] = None
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.leave(tenant, cost)  # Admitted, then cancelled before it resumed.
            else:
                self._let_in()
            raise

    def _fits(self, tenant: str, cost: int) -> bool:
        """Whether the call is within the tenant's share, or the tenant has nothing in progress."""
        used = self._under_way.get(tenant, 0)
        return not used or used + cost <= self._capacity // len(self._active)

    def _has_others(self, tenant: str) -> bool:
        """Whether other tenants are active."""
        if len(self._active) > 1:
            self._forget_idle()
        return len(self._active) > (tenant in self._active)

    def _forget_idle(self) -> None:
        since = self._time() - _LINGER_S
        idle = [name for name, left in self._active.items() if left is not None and left < since]
        for name in idle:
            del self._active[name]

    def _let_in(self) -> None:
        """Admit every waiting call that fits, one per tenant in turn."""
        self._forget_idle()
        passed = 0
        while passed < len(self._lines):
            tenant = next(iter(self._lines))
            line = self._lines.pop(tenant)
            while line and line[0][1].done():
                line.popleft()  # Cancelled.
            if not line:
                if tenant not in self._under_way:
                    self._active.pop(tenant, None)
                continue
            cost, future = line[0]
            fits = self._fits(tenant, cost)
            if fits:
                line.popleft()
                self._begin(tenant, cost)
                future.set_result(None)
            passed = 0 if fits else passed + 1
            if line:
                self._lines[tenant] = line  # Now last in the round.
