"""The result of ``consume``: an iterator of leases, for as long as the caller takes them.

::

    async with q.consume("billing") as leases:  # or without: see below
        async for lease in leases:
            async with lease:
                await charge(lease.payload)

Several tasks may iterate over one consumption at the same time; each lease goes to one of them.

Leaving ``async with``, or ``aclose``, releases the buffered deliveries and leaves an ordered
queue. ``stop`` is graceful: the iteration ends, and held leases are extended until they are
settled. A consumption that is garbage collected, for example after a ``break``, is stopped
too.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Final, Self

from penstock.api import QueueApi
from penstock.consume.lease import Lease
from penstock.consume.naming import new_consumer_name
from penstock.consume.pace import LOOP_PACE, Pace
from penstock.consume.prefetch import Plan, Prefetch
from penstock.model.claim_queues import check_claim_order, check_one_or_more_queues
from penstock.model.delivery import ClaimOrder
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import MAX_BATCH, MAX_LEASE_MS, check_name, check_whole

__all__ = ["DEFAULT_IN_FLIGHT", "Consumption"]

DEFAULT_IN_FLIGHT: Final = 32


class Consumption(AsyncIterator[Lease]):
    """An endless iterator over the deliveries of one queue, or of several."""

    def __init__(
        self,
        verbs: QueueApi,
        queue: str | Sequence[str],
        *,
        consumer: str | None = None,
        max_in_flight: int = DEFAULT_IN_FLIGHT,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
        stop: asyncio.Event | None = None,
        pace: Pace = LOOP_PACE,
    ) -> None:
        # One settle call extends everything that is held.
        check_whole("max_in_flight", max_in_flight, 1, MAX_BATCH)
        lease_ms = to_ms(lease_ms)
        if lease_ms is not None:
            check_whole("lease_ms", lease_ms, 1, MAX_LEASE_MS)
        check_claim_order(order)
        plan = Plan(
            queues=check_one_or_more_queues(queue),
            order=order,
            where=where,
            consumer=check_name(new_consumer_name() if consumer is None else consumer, "consumer"),
            max_in_flight=max_in_flight,
            lease_ms=lease_ms,
        )
        self.queues: Final = plan.queues
        self.consumer: Final = plan.consumer
        self._verbs = verbs
        self.prefetch: Final = Prefetch(verbs, plan, pace, stop)
        self._is_watched = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lease:
        if not self._is_watched:
            self._is_watched = True
            finalizer = weakref.finalize(
                self, _stop_later, asyncio.get_running_loop(), self.prefetch
            )
            finalizer.atexit = False
        hold = await self.prefetch.take()
        if hold is None:
            raise StopAsyncIteration
        return Lease(self._verbs, hold)

    def stop(self) -> None:
        """End the iteration: stop claiming, and release the buffered deliveries."""
        self.prefetch.stop()

    async def aclose(self) -> None:
        """Stop, and leave the queue. Leases that are still held are no longer extended."""
        await self.prefetch.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def _stop_later(loop: asyncio.AbstractEventLoop, prefetch: Prefetch) -> None:
    """Stop from any thread: the garbage collector may run in any of them."""
    # A closed loop has ended its tasks.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(prefetch.stop)
