"""Imaginary consumers that wait for every queue, and may not sleep past a delivery (C5).

Whoever waits claims, and when that gives nothing sleeps until the listener is told that the
queue is ready or until ``next_due``, whichever comes first. Here nobody claims: whether a
claim would give something is asked of the oracle, and what a consumer sleeps by is the
engine's. A queue that has something for a sleeper is a delivery that would come too late.
"""

from __future__ import annotations

from collections import Counter

from penstock.storage.contract import Engine
from penstock.storage.listener import Listener
from penstock.testing.model import Oracle

__all__ = ["Lapses", "Waiters"]


class Lapses(Listener):
    """Counts leases that were taken back, by tenant and queue."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        self.counts[tenant, queue] += count


class Waiters(Lapses):
    """One consumer a queue, asleep or awake; in an ordered queue every one that joined."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[tuple[str, str]] = set()
        #: Tenant, queue and consumer to when it wakes by itself; None: never.
        self._asleep: dict[tuple[str, str, str], int | None] = {}

    def ready(self, tenant: str, queue: str) -> None:
        self._told.add((tenant, queue))

    def wake_all(self) -> None:
        """The process that they waited in is gone."""
        self._asleep.clear()

    async def look(self, oracle: Oracle, engine: Engine, now: int) -> None:
        """After a step: nobody sleeps who has something to claim; the others go to sleep."""
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
