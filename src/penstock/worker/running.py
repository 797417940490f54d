"""One run of an app: from the first claim to the last settlement.

Every registration has one consumption and as many readers as its concurrency. A run ends in
three steps: claiming stops and the buffered deliveries are released; running handlers get the
grace period to finish, and are settled; the rest is cancelled and released.

A thread cannot be cancelled. Its delivery is neither settled nor released: it comes back when
its lease lapses, which gives the thread that long before another consumer starts on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.api import QueueApi
from penstock.consume.consumption import Consumption
from penstock.consume.pace import LOOP_PACE, Pace
from penstock.model.clock import Clock, SystemClock
from penstock.worker.context import Context
from penstock.worker.handling import Handling
from penstock.worker.middleware import Middleware, Next, chained
from penstock.worker.periodic import Periodic, publish_forever
from penstock.worker.registration import Registration
from penstock.worker.threads import Threads

__all__ = ["Running", "to_handling"]

_log = logging.getLogger("penstock.worker")


class Running:
    """A run in progress."""

    def __init__(
        self,
        verbs: QueueApi,
        registrations: Sequence[Registration],
        middleware: Sequence[Middleware],
        *,
        consumer: str | None,
        grace_s: float,
        periodics: Sequence[Periodic] = (),
        clock: Clock | None = None,
        pace: Pace = LOOP_PACE,
    ) -> None:
        self._verbs = verbs
        self._registrations = registrations
        self._middleware = middleware
        self._consumer = consumer
        self._grace_s = grace_s
        self._periodics = periodics
        self._clock = SystemClock() if clock is None else clock
        self._pace = pace
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._threads: list[Threads] = []

    def stop(self, *, immediately: bool = False) -> None:
        """End gracefully; ``immediately`` skips the grace period."""
        self._stopping.set()
        if immediately:
            self._hurry.set()

    async def run(self) -> None:
        """Work until ``stop``, or until an error that no retry fixes, which is raised."""
        consumptions: list[Consumption] = []
        readers: set[asyncio.Task[None]] = set()
        for registration in self._registrations:
            consumption = Consumption(
                self._verbs,
                registration.queues,
                consumer=self._consumer,
                max_in_flight=registration.max_in_flight,
                lease_ms=registration.lease_ms,
                order=registration.order,
                where=registration.where,
                pace=self._pace,
            )
            consumptions.append(consumption)
            handling = self._handling(registration)
            for number in range(registration.concurrency):
                name = f"{registration.label}-{number}"
                readers.add(asyncio.create_task(_read(consumption, handling), name=name))
            _log.info(
                "%s handles '%s' as %s, %d at a time",
                registration.name,
                registration.label,
                consumption.consumer,
                registration.concurrency,
            )
        publishing = self._publish_periodics()
        try:
            await self._until_stopped(readers | publishing)
        except asyncio.CancelledError:
            self._hurry.set()
            raise
        finally:
            for task in publishing:
                task.cancel()
            await self._end(consumptions, readers)
        ended = (*readers, *publishing)
        errors = [task.exception() for task in ended if task.done() and not task.cancelled()]
        for error in errors:
            if error is not None:
                raise error

    def _handling(self, registration: Registration) -> Handling:
        threads = Threads(registration.concurrency, registration.label)
        self._threads.append(threads)
        return to_handling(registration, self._middleware, threads, self._stopping)

    def _publish_periodics(self) -> set[asyncio.Task[None]]:
        if not self._periodics:
            return set()
        publishing = publish_forever(self._verbs, self._periodics, self._clock)
        return {asyncio.create_task(publishing, name="periodic")}

    async def _until_stopped(self, readers: set[asyncio.Task[None]]) -> None:
        asked = asyncio.create_task(self._stopping.wait())
        try:
            # A reader ends by itself only when its queue cannot be claimed from any more.
            await asyncio.wait({asked, *readers}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()

    async def _end(
        self, consumptions: Sequence[Consumption], readers: set[asyncio.Task[None]]
    ) -> None:
        self._stopping.set()
        for consumption in consumptions:
            consumption.stop()
        try:
            await self._grace(readers)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
            for consumption in consumptions:
                await consumption.aclose()
            for threads in self._threads:
                threads.close()

    async def _grace(self, readers: set[asyncio.Task[None]]) -> None:
        """Wait for running handlers, up to the grace period."""
        if self._hurry.is_set():
            return
        hurry = asyncio.create_task(self._hurry.wait())
        finished = asyncio.create_task(_all_of(readers))
        try:
            await asyncio.wait(
                {hurry, finished},
                timeout=self._grace_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            hurry.cancel()
            finished.cancel()
        late = sum(not reader.done() for reader in readers)
        if late:
            _log.warning("%d handlers did not finish within the grace period", late)


def to_handling(
    registration: Registration,
    middleware: Sequence[Middleware],
    threads: Threads,
    stopping: asyncio.Event,
) -> Handling:
    """The handling of this registration's deliveries."""

    async def innermost(context: Context) -> object:
        return await registration.choose(context.delivery).handler.call(context, threads)

    chain: Next = chained(middleware, innermost)
    return Handling(registration, chain, stopping)


async def _read(consumption: Consumption, handling: Handling) -> None:
    async for lease in consumption:
        await handling.handle(lease)


async def _all_of(readers: set[asyncio.Task[None]]) -> None:
    await asyncio.wait(readers)
