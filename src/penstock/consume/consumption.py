"""The results of ``consume`` and ``consume_batches``: endless iterators of leases.

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
from typing import Final, Self, TypeVar

from penstock.api import QueueApi
from penstock.consume.hold import Hold
from penstock.consume.lease import Lease
from penstock.consume.lease_batch import LeaseBatch
from penstock.consume.naming import new_consumer_name
from penstock.consume.pace import LOOP_PACE, Pace
from penstock.consume.prefetch import Plan, Prefetch
from penstock.model.claim_queues import check_claim_order, check_one_or_more_queues
from penstock.model.delivery import ClaimOrder
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import MAX_BATCH, MAX_CLAIM, MAX_LEASE_MS, check_name, check_whole

__all__ = [
    "DEFAULT_IN_FLIGHT",
    "DEFAULT_SIZE",
    "AnyConsumption",
    "BatchConsumption",
    "Consumption",
]

T = TypeVar("T")

DEFAULT_IN_FLIGHT: Final = 32
DEFAULT_SIZE: Final = 100


class AnyConsumption(AsyncIterator[T]):
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

    async def _take(self, most: int) -> list[Hold]:
        """The next claims; raises at the end."""
        if not self._is_watched:
            self._is_watched = True
            finalizer = weakref.finalize(
                self, _stop_later, asyncio.get_running_loop(), self.prefetch
            )
            finalizer.atexit = False
        holds = await self.prefetch.take(most)
        if not holds:
            raise StopAsyncIteration
        return holds

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


class Consumption(AnyConsumption[Lease]):
    """Hands out one lease at a time."""

    async def __anext__(self) -> Lease:
        (hold,) = await self._take(1)
        return Lease(self._verbs, hold, self.prefetch.settle)


class BatchConsumption(AnyConsumption[LeaseBatch]):
    """Hands out as many leases at a time as there are, up to ``size``."""

    def __init__(
        self,
        verbs: QueueApi,
        queue: str | Sequence[str],
        *,
        size: int = DEFAULT_SIZE,
        consumer: str | None = None,
        max_in_flight: int | None = None,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
        stop: asyncio.Event | None = None,
        pace: Pace = LOOP_PACE,
    ) -> None:
        check_whole("size", size, 1, MAX_CLAIM)
        if max_in_flight is None:
            # One batch is handled while another one is settled and the next one claimed.
            max_in_flight = 2 * size
        check_whole("max_in_flight", max_in_flight, size, MAX_BATCH)
        super().__init__(
            verbs,
            queue,
            consumer=consumer,
            max_in_flight=max_in_flight,
            lease_ms=lease_ms,
            order=order,
            where=where,
            stop=stop,
            pace=pace,
        )
        self._size = size

    async def __anext__(self) -> LeaseBatch:
        prefetch = self.prefetch
        return LeaseBatch(
            self._verbs, await self._take(self._size), prefetch.settle, prefetch.deferred
        )


def _stop_later(loop: asyncio.AbstractEventLoop, prefetch: Prefetch) -> None:
    """Stop from any thread: the garbage collector may run in any of them."""
    # A closed loop has ended its tasks.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(prefetch.stop)
