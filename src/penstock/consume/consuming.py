"""The verbs ``consume`` and ``consume_batches``, implemented with the other verbs.

It is a mixin of the embedded broker and of the HTTP client. It uses only their verbs that claim,
settle, join and leave, so it behaves the same on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakSet

from penstock.api import QueueApi
from penstock.consume.consumption import (
    DEFAULT_IN_FLIGHT,
    DEFAULT_SIZE,
    BatchConsumption,
    Consumption,
)
from penstock.consume.prefetch import Prefetch
from penstock.model.delivery import ClaimOrder
from penstock.model.duration import Duration

__all__ = ["Consuming"]


class Consuming:
    """The verbs that claim forever."""

    #: The background work of each consumption; it may outlive the consumption itself.
    _prefetches: WeakSet[Prefetch] | None = None

    def consume(
        self: QueueApi,
        queue: str | Sequence[str],
        *,
        consumer: str | None = None,
        max_in_flight: int = DEFAULT_IN_FLIGHT,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> Consumption:
        """Claim forever: ``async for lease in q.consume("billing"): async with lease: …``.

        At most ``max_in_flight`` deliveries are unsettled at any time, including those in the
        buffer; their leases are extended until they are settled. ``consumer`` is the name that
        owns partitions and is recorded with attempts. Setting ``stop`` ends the iteration.
        ``queue`` may be a list of queues; ``order`` and ``where`` are those of ``claim``.
        """
        consumption = Consumption(
            self,
            queue,
            consumer=consumer,
            max_in_flight=max_in_flight,
            lease_ms=lease_ms,
            order=order,
            where=where,
            stop=stop,
        )
        _register(self, consumption.prefetch)
        return consumption

    def consume_batches(
        self: QueueApi,
        queue: str | Sequence[str],
        *,
        size: int = DEFAULT_SIZE,
        consumer: str | None = None,
        max_in_flight: int | None = None,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> BatchConsumption:
        """Claim forever, many at a time: ``async for batch in q.consume_batches("billing"): …``.

        A batch has up to ``size`` leases: those that are available, without waiting for more. Its
        exit settles them in one call, which also claims the next ones. ``max_in_flight`` is twice
        the size by default. The other options are those of ``consume``.
        """
        consumption = BatchConsumption(
            self,
            queue,
            size=size,
            consumer=consumer,
            max_in_flight=max_in_flight,
            lease_ms=lease_ms,
            order=order,
            where=where,
            stop=stop,
        )
        _register(self, consumption.prefetch)
        return consumption

    async def end_consuming(self) -> None:
        """Close every open consumption: buffered deliveries are released immediately."""
        if self._prefetches is not None:
            await asyncio.gather(*(item.close() for item in tuple(self._prefetches)))


def _register(verbs: QueueApi, prefetch: Prefetch) -> None:
    assert isinstance(verbs, Consuming)
    if verbs._prefetches is None:  # noqa: SLF001  (a method of a mixin would not be in the protocol)
        verbs._prefetches = WeakSet()  # noqa: SLF001
    verbs._prefetches.add(prefetch)  # noqa: SLF001
