"""``Reject`` and ``Retry``: exceptions that say how to settle a delivery.

A handler, or the body of ``async with delivery``, raises one. The same object with a ``receipt``
is a settlement for ``settle``; ``to_settlement`` returns what is sent and stored for it.

================  =========================================================================
exception         settled with
================  =========================================================================
``Retry``         nack, after ``delay_ms`` or else the queue's backoff. The attempt counts
``Reject``        reject: failed immediately, because a retry cannot help
================  =========================================================================
"""

from __future__ import annotations

from penstock.errors import BadInput
from penstock.model import delivery
from penstock.model.delivery import Nack, Receipt
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import MAX_NACK_DELAY_MS, check_whole, cut_error

__all__ = ["Reject", "Retry", "SettlingException"]


class SettlingException(Exception):
    """The base of ``Reject`` and ``Retry``."""

    def __init__(self, reason: str, receipt: str | None) -> None:
        super().__init__(reason)
        self.reason = cut_error(str(reason))
        self.receipt = receipt

    def to_settlement(self) -> Nack | delivery.Reject:
        """The settlement of the claim that ``receipt`` belongs to; ``BadInput`` without one."""
        raise NotImplementedError

    def _given_receipt(self) -> Receipt:
        if type(self.receipt) is not str:
            name = type(self).__name__
            raise BadInput(
                f"A {name} without a receipt settles nothing: raise it, or pass "
                f"{name}(reason, receipt=delivery.receipt) to settle.",
                field="receipt",
            )
        return Receipt(self.receipt)


class Retry(SettlingException):
    """Hand the delivery out again later. The attempt counts."""

    def __init__(
        self,
        reason: str | None = None,
        *,
        delay_ms: Duration | None = None,
        receipt: str | None = None,
    ) -> None:
        super().__init__(reason or "retry requested", receipt)
        self.delay_ms = to_ms(delay_ms)
        if self.delay_ms is not None:
            check_whole("delay_ms", self.delay_ms, 0, MAX_NACK_DELAY_MS)

    def to_settlement(self) -> Nack:
        """A nack with the reason and the delay."""
        return Nack(self._given_receipt(), self.reason, self.delay_ms)


class Reject(SettlingException):
    """Fail the delivery immediately, with this reason."""

    def __init__(self, reason: str | None = None, *, receipt: str | None = None) -> None:
        super().__init__(reason or "rejected", receipt)

    def to_settlement(self) -> delivery.Reject:
        """A reject with the reason."""
        return delivery.Reject(self._given_receipt(), self.reason)
