"""The verbs that settle one delivery, for the embedded broker and the HTTP client."""

from __future__ import annotations

from penstock.errors import StaleReceipt
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Outcome,
    Reject,
    Release,
    Settlement,
)
from penstock.model.duration import Duration
from penstock.model.payload import to_result

__all__ = ["SingleSettlements", "check_current"]


class SingleSettlements:
    """Each raises ``StaleReceipt`` if the claim is no longer current."""

    async def _settle_one(self, delivery: Delivery, settlement: Settlement) -> Outcome:
        raise NotImplementedError

    async def ack(self, delivery: Delivery, result: object = None) -> Outcome:
        """Mark as done; ``result`` is stored like a payload."""
        return await self._settle_one(delivery, Ack(delivery.receipt, to_result(result)))

    async def nack(
        self, delivery: Delivery, error: str | None = None, *, delay_ms: Duration | None = None
    ) -> Outcome:
        """Retry later, or fail when no attempts are left."""
        return await self._settle_one(delivery, Nack(delivery.receipt, error, delay_ms))

    async def reject(self, delivery: Delivery, error: str | None = None) -> Outcome:
        """Fail immediately, without a retry."""
        return await self._settle_one(delivery, Reject(delivery.receipt, error))

    async def release(self, delivery: Delivery, delay_ms: Duration | None = None) -> Outcome:
        """Return the delivery unprocessed, to be handed out again now or after ``delay_ms``.

        The grant does not count as an attempt.
        """
        return await self._settle_one(delivery, Release(delivery.receipt, delay_ms))

    async def extend(self, delivery: Delivery, lease_ms: Duration | None = None) -> Outcome:
        """Set the end of the lease to ``lease_ms`` from now; by default, the queue's lease."""
        return await self._settle_one(delivery, Extend(delivery.receipt, lease_ms))


def check_current(delivery: Delivery, outcome: Outcome) -> Outcome:
    """Return the outcome if the claim of the delivery was current."""
    if not outcome.ok:
        raise StaleReceipt(
            f"The claim of message {delivery.message.id} in {delivery.queue!r} is over.",
            field="receipt",
        )
    return outcome
