"""Waiting: everyone who waits for something in one store, and what wakes them (C5).

``Waiting`` is the engine's listener. It hears that a claim of a queue may give more and tells
the line of that queue (``lines`` says how none of those in it is forgotten), or that another
process settled deliveries whose results somebody waits for. What this process itself settled it
hears from the broker. Tenants share one, and no line (T1).

A claim that does not wait stands in no line. It may come between a waiter's waking and its
look and take what the waiter was woken for, as may any claim of another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeAlias

from penstock.broker.lines import Place, QueueLine, ResultLine
from penstock.errors import BadInput, StoreClosed
from penstock.model.clock import Clock
from penstock.model.limits import MAX_WAIT_MS, shown
from penstock.storage.contract import Engine
from penstock.storage.listener import Listener

__all__ = ["Waiting", "check_wait"]

_Key: TypeAlias = tuple[str, str]


def check_wait(wait_ms: object) -> None:
    """Refuse a wait that is not a number of milliseconds within the bound."""
    if type(wait_ms) is not int or not 0 <= wait_ms <= MAX_WAIT_MS:
        raise BadInput(
            f"wait_ms is {shown(wait_ms)}; it is a whole number from 0 to {MAX_WAIT_MS}.",
            field="wait_ms",
            limit=MAX_WAIT_MS,
        )


class Waiting(Listener):
    """The lines of one store, by tenant and queue."""

    def __init__(self, engine: Engine, clock: Clock, listener: Listener | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._listener = listener
        self._queues: dict[_Key, QueueLine] = {}
        self._results: dict[_Key, ResultLine] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    def of(cls, engine: Engine, clock: Clock, listener: Listener | None = None) -> Waiting:
        """The one that hears this engine, now made if there is none."""
        waiting = engine.listener
        if not isinstance(waiting, Waiting):
            waiting = engine.listener = cls(engine, clock, listener)
        return waiting

    # -- standing in line --------------------------------------------------------------

    def for_deliveries(self, tenant: str, queue: str) -> Place[QueueLine]:
        """A place among those who wait for deliveries of the queue."""
        key = (tenant, queue)
        line = self._queues.get(key)
        if line is None:
            line = self._queues[key] = QueueLine(self._clock, self._engine, tenant, queue)
        return Place(line, self.check, lambda: self._queues.pop(key))

    def for_result(self, tenant: str, queue: str) -> Place[ResultLine]:
        """A place among those who wait for a result in the queue."""
        key = (tenant, queue)
        line = self._results.get(key)
        if line is None:
            line = self._results[key] = ResultLine(self._clock)
        return Place(line, self.check, lambda: self._results.pop(key))

    # -- what the engine tells ---------------------------------------------------------

    def ready(self, tenant: str, queue: str) -> None:
        """Wake whoever is first in line; the other listener hears it too."""
        if self._queues:
            line = self._queues.get((tenant, queue))
            if line is not None:
                line.tell()
        if self._listener is not None:
            self._listener.ready(tenant, queue)

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        """For the other listener; what it makes available is told as ``ready``."""
        if self._listener is not None:
            self._listener.lapsed(tenant, queue, count)

    def committed(self, records: int, seconds: float) -> None:
        """For the other listener."""
        if self._listener is not None:
            self._listener.committed(records, seconds)

    def repeated(self, reason: str) -> None:
        """For the other listener."""
        if self._listener is not None:
            self._listener.repeated(reason)

    def acked(self, tenant: str, queue: str) -> None:
        """Another process settled deliveries of the queue."""
        self.settled(tenant, queue)

    # -- what the broker tells ---------------------------------------------------------

    def changed(self, tenant: str, queue: str) -> None:
        """The queue has another policy, or is gone: everybody looks again."""
        key = (tenant, queue)
        for line in (self._queues.get(key), self._results.get(key)):
            if line is not None:
                line.tell_everybody()

    def settled(self, tenant: str, queue: str) -> None:
        """Deliveries of the queue were settled: there may be results."""
        if self._results:
            line = self._results.get((tenant, queue))
            if line is not None:
                line.settled()

    # -- the end -----------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to wait for a store that is being closed."""
        if self._closed:
            raise StoreClosed("The store is closed.")

    def finish(self, work: Coroutine[object, object, None]) -> None:
        """See to work whose caller has gone."""
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps weak references only.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Send everyone home, and wait for work whose callers have gone."""
        self._closed = True
        for line in (*self._queues.values(), *self._results.values()):
            line.tell_everybody()
        if self._tasks:
            await asyncio.wait(self._tasks)
