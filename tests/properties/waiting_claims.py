"""Simulated consumers that wait on every queue and must not sleep past a delivery (C5).

A waiter claims; if that returns nothing, it sleeps until the listener is notified that the queue is
ready or until ``next_due``. These waiters do not claim: the oracle says whether a claim would
return something, and the engine decides how long they sleep. A sleeping waiter whose queue has a
delivery for it is a missed notification.
"""

from __future__ import annotations

from collections import Counter

from penstock.storage.contract import Engine
from penstock.storage.listener import Listener
from penstock.testing.model import Oracle

__all__ = ["Lapses", "Waiters"]


class Lapses(Listener):
    """Counts lapsed leases by tenant and queue."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        self.counts[tenant, queue] += count


class Waiters(Lapses):
    """One waiter per queue, asleep or awake; in an ordered queue one per consumer that joined."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[tuple[str, str]] = set()
        #: (tenant, queue, consumer) to the time when it wakes by itself; None: never.
        self._asleep: dict[tuple[str, str, str], int | None] = {}

    def ready(self, tenant: str, queue: str) -> None:
        self._told.add((tenant, queue))

    def wake_all(self) -> None:
        """The process in which they waited has ended."""
        self._asleep.clear()

    async def look(self, oracle: Oracle, engine: Engine, now: int) -> None:
        """After a step: check that no sleeper has something to claim; put the others to sleep."""
        asleep: dict[tuple[str, str, str], int | None] = {}
        for tenant, queue, consumer, gives in oracle.waits():
            place = (tenant, queue, consumer)
            due = await engine.next_due(tenant, queue)
            await self._never_late(oracle, tenant, queue, due)
            if place in self._asleep:
                until = self._asleep[place]
                if (tenant, queue) not in self._told and (until is None or until > now):
                    assert not gives, f"C5: {place} has a delivery and sleeps until {until}"
                    due = until
            if not gives:
                asleep[place] = due
        self._asleep = asleep
        self._told.clear()

    @staticmethod
    async def _never_late(oracle: Oracle, tenant: str, queue: str, due: int | None) -> None:
        exact = await oracle.next_due(tenant, queue)
        late = exact is not None and (due is None or due > exact)
        assert not late, f"C5: next_due of {tenant}/{queue} is {due}, not {exact}"
