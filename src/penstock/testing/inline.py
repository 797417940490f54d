"""Testing workers: runs handlers inline, over a store in memory, with a clock moved by hand.

::

    async with inline(app) as q:
        await q.publish("orders", {"amount": 250})
        (handled,) = await q.run_until_idle()
        assert handled.state is State.DONE
        q.clock.advance(60_000)  # a retry falls due
        await q.run_until_idle()

Only ``run_until_idle`` hands out deliveries, one at a time, queue by queue in the order of their
registration, so tests are deterministic. Blocking handlers run in a thread, as they do elsewhere,
and are waited for. ``publish_periodic`` publishes the slots of periodic tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from penstock.broker import Broker, BrokerOptions
from penstock.consume.hold import Hold
from penstock.consume.lease import Lease
from penstock.errors import Conflict, UnknownQueue
from penstock.model.delivery import Outcome, Settlement
from penstock.model.limits import DLQ_SUFFIX
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.tracing import no_settle_span
from penstock.worker import App, Handled
from penstock.worker.handling import Handling
from penstock.worker.periodic import publish_due
from penstock.worker.registration import create
from penstock.worker.running import to_handling
from penstock.worker.threads import Threads

__all__ = ["MAX_HANDLED", "Inline", "inline"]

#: Handlers that publish to each other would run forever.
MAX_HANDLED: Final = 10_000


class Inline(Broker):
    """The verbs over a store in memory, and an app whose handlers run on request."""

    def __init__(self, engine: Engine, options: BrokerOptions, app: App, clock: FakeClock) -> None:
        super().__init__(engine, options)
        self.app = app
        self.clock = clock
        self._threads = Threads(1, "inline")
        stopping = asyncio.Event()
        self._handlings: dict[str, Handling] = {
            queue: to_handling(item, app.layers, self._threads, stopping)
            for item in app.registrations
            for queue in item.queues
        }
        self._selectors = {queue: item.where for item in app.registrations for queue in item.queues}
        self._slots: dict[str, int | None] = {}
        app.bind(self)

    async def run_until_idle(self, limit: int = MAX_HANDLED) -> list[Handled]:
        """Handle deliveries until none is available. Returns their outcomes, in order."""
        handled: list[Handled] = []
        while some := [item for queue in self._handlings if (item := await self.run_one(queue))]:
            handled += some
            if len(handled) > limit:
                raise Conflict(
                    f"{len(handled)} deliveries were handled and more are available: do handlers "
                    "publish to each other?",
                    field="limit",
                    limit=limit,
                )
        return handled

    async def run_one(self, queue: str) -> Handled | None:
        """Handle the next delivery of one queue; None if there is none now."""
        where = self._selectors[queue]
        for delivery in await self.claim(queue, consumer="inline", where=where):
            return await self._handlings[queue].handle(
                Lease(self, Hold(delivery), self._settle_now)
            )
        return None

    async def _settle_now(self, queue: str, settlements: Sequence[Settlement]) -> Sequence[Outcome]:
        with no_settle_span():
            return (await self.settle(queue, settlements)).outcomes

    async def publish_periodic(self) -> None:
        """Publish the slots of periodic tasks that are due at the time of ``clock``."""
        for periodic in self.app.periodics:
            last = self._slots.get(periodic.task)
            self._slots[periodic.task], _ = await publish_due(
                self, periodic, self.clock.now(), last
            )

    async def close(self) -> None:
        """Close the store."""
        self.app.bind(None)
        self._threads.close()
        await super().close()

    async def prepare(self) -> None:
        """Create the queues of the app: by their filters, or else by topics of the same name."""
        for item in self.app.registrations:
            for home in (queue.removesuffix(DLQ_SUFFIX) for queue in item.queues):
                try:
                    await self.queue(home)
                except UnknownQueue:
                    await create(self, home, item.filter or f"topic = '{home}'", item)


@asynccontextmanager
async def inline(app: App) -> AsyncIterator[Inline]:
    """Open a store in memory with the app's queues, and run its handlers on request."""
    clock = FakeClock()
    # Always the longest backoff that the queue allows.
    engine_options = EngineOptions(clock=clock, jitter=lambda ceiling_ms: ceiling_ms)
    engine = await open_engine("memory://", engine_options)
    q = Inline(engine, BrokerOptions(engine=engine_options), app, clock)
    try:
        await q.prepare()
        yield q
    finally:
        await q.close()
