"""The verbs that claim forever, as a protocol: a part of ``penstock.api``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.model.delivery import ClaimOrder
from penstock.model.duration import Duration

if TYPE_CHECKING:
    from penstock.consume.consumption import BatchConsumption, Consumption

__all__ = ["ConsumeApi"]


class ConsumeApi(Protocol):
    """Deliveries that are claimed ahead, extended, and settled by a context manager."""

    def consume(
        self,
        queue: str | Sequence[str],
        *,
        consumer: str | None = None,
        max_in_flight: int = 32,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
    ) -> Consumption:
        """Claim forever: ``async for delivery in q.consume(…): async with delivery: …``.

        ``async with q.consume(…) as deliveries:`` sends, when it ends, what was settled, and
        releases what was claimed ahead.
        """
        ...

    def consume_batches(
        self,
        queue: str | Sequence[str],
        *,
        size: int = 100,
        consumer: str | None = None,
        max_in_flight: int | None = None,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
    ) -> BatchConsumption:
        """Claim forever, many at a time: ``async for batch in …: async with batch: …``.

        Like ``consume``, closed by the end of ``async with`` around the loop.
        """
        ...
