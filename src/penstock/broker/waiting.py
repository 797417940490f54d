"""Waiting: all waiters of one store, and what wakes them (C5).

``Waiting`` is the engine's listener. The engine reports that a claim on a queue may find more,
or that deliveries ended, and the broker that a queue has changed. Both notify the line of that
queue (``lines`` says why no waiter is forgotten). Tenants share one
``Waiting`` and no line (T1).

A claim that does not wait joins no line. It may take the deliveries that a waiter was just
woken for, as may any claim of another process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import TypeAlias

from penstock.broker.wait_lists import (
    QueueWaitList,
    ResultWaitList,
    SelectedWaitList,
    Waiter,
)
from penstock.errors import StoreClosed
from penstock.filters import Filter
from penstock.model.clock import Clock
from penstock.model.limits import DLQ_SUFFIX, MAX_WAIT_MS, check_whole
from penstock.storage.contract import Engine
from penstock.storage.listener import Listener

__all__ = ["Waiting", "check_wait"]

_Key: TypeAlias = tuple[str, str]


def check_wait(wait_ms: object) -> None:
    """Refuse a wait that is not a number of milliseconds within the bound."""
    check_whole("wait_ms", wait_ms, 0, MAX_WAIT_MS)


class Waiting(Listener):
    """The lines of one store, by tenant and queue."""

    def __init__(self, engine: Engine, clock: Clock, listener: Listener | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._listener = listener
        self._queues: dict[_Key, QueueWaitList] = {}
        #: By queue and by the text of the selector, and how many there are by tenant.
        self._selected: dict[_Key, dict[str, SelectedWaitList]] = {}
        self._selectors: Counter[str] = Counter()
        self._results: dict[_Key, ResultWaitList] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    def of(cls, engine: Engine, clock: Clock, listener: Listener | None = None) -> Waiting:
        """The engine's ``Waiting``; created if there is none."""
        waiting = engine.listener
        if not isinstance(waiting, Waiting):
            waiting = engine.listener = cls(engine, clock, listener)
        return waiting

    # -- joining a line ----------------------------------------------------------------

    def for_deliveries(
        self, tenant: str, queue: str, where: Filter | None = None
    ) -> Waiter[QueueWaitList]:
        """A new waiter for deliveries of the queue, or for those that match a selector."""
        key = (tenant, queue)
        if where is not None:
            return self._for_selected(key, where.text)
        line = self._queues.get(key)
        if line is None:
            line = self._queues[key] = QueueWaitList(self._clock, self._engine, tenant, queue)
        return Waiter(line, self.check, lambda: self._queues.pop(key))

    def _for_selected(self, key: _Key, text: str) -> Waiter[QueueWaitList]:
        lines = self._selected.setdefault(key, {})
        line = lines.get(text)
        if line is None:
            tenant, queue = key
            self._selectors[tenant] += 1
            line = lines[text] = SelectedWaitList(
                self._clock, self._engine, tenant, queue, lambda: self._rests(tenant)
            )

        def forget() -> None:
            del lines[text]
            if not lines:
                del self._selected[key]
            self._selectors -= Counter((key[0],))  # Removes tenants that have none left.

        return Waiter(line, self.check, forget)

    def _rests(self, tenant: str) -> int:
        """How many shortest rests a line takes: tenants have equal shares of one rate."""
        return len(self._selectors) * self._selectors[tenant]

    def for_result(self, tenant: str, queue: str) -> Waiter[ResultWaitList]:
        """A new waiter for a result in the queue."""
        key = (tenant, queue)
        line = self._results.get(key)
        if line is None:
            line = self._results[key] = ResultWaitList(self._clock)
        return Waiter(line, self.check, lambda: self._results.pop(key))

    # -- notifications of the engine ---------------------------------------------------

    def ready(self, tenant: str, queue: str) -> None:
        """Notify the queue's line, then the other listener."""
        if self._queues:
            line = self._queues.get((tenant, queue))
            if line is not None:
                line.notify()
        if self._selected:
            for selected in self._selected.get((tenant, queue), {}).values():
                selected.notify()
        if self._listener is not None:
            self._listener.ready(tenant, queue)

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        """For the other listener; deliveries that become available are reported as ``ready``."""
        if self._listener is not None:
            self._listener.lapsed(tenant, queue, count)

    def counted(self, tenant: str, queue: str) -> None:
        """For the other listener."""
        if self._listener is not None:
            self._listener.counted(tenant, queue)

    def committed(self, records: int, seconds: float) -> None:
        """For the other listener."""
        if self._listener is not None:
            self._listener.committed(records, seconds)

    def repeated(self, reason: str) -> None:
        """For the other listener."""
        if self._listener is not None:
            self._listener.repeated(reason)

    def ended(self, tenant: str, queue: str) -> None:
        """Notify waiters for results: deliveries of the queue or its dead letters ended."""
        if self._results:
            for name in (queue, queue + DLQ_SUFFIX):
                line = self._results.get((tenant, name))
                if line is not None:
                    line.ended()
        if self._listener is not None:
            self._listener.ended(tenant, queue)

    # -- notifications of the broker ---------------------------------------------------

    def changed(self, tenant: str, queue: str) -> None:
        """Notify all waiters: the queue has another policy, or is gone."""
        key = (tenant, queue)
        selected = self._selected.get(key, {}).values()
        for line in (self._queues.get(key), self._results.get(key), *selected):
            if line is not None:
                line.notify_all()

    # -- closing -----------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to wait for a store that is being closed."""
        if self._closed:
            raise StoreClosed("The store is closed.")

    def finish(self, work: Coroutine[object, object, None]) -> None:
        """Finish work whose caller was cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps weak references only.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wake all waiters, and wait for work whose callers were cancelled."""
        self._closed = True
        selected = [line for lines in self._selected.values() for line in lines.values()]
        for line in (*self._queues.values(), *selected, *self._results.values()):
            line.notify_all()
        if self._tasks:
            await asyncio.wait(self._tasks)
