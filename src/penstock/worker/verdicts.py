"""How to settle a delivery whose handler raised an exception.

================  ===========================================================================
raised            settled with
================  ===========================================================================
``Retry``         nack, with its delay or else the queue's backoff
``Reject``        reject: failed immediately, because a retry cannot help
anything else     nack, with the exception and the end of its traceback as the error
================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.consume.failure import describe
from penstock.errors import QueueFull
from penstock.model import delivery
from penstock.model.delivery import Ack, Nack, Receipt
from penstock.model.settling_exceptions import Reject, Retry

__all__ = ["Decision", "to_decision"]

#: Frames of the traceback in the stored error; the log has all of them.
_FRAMES: Final = 5

Decision: TypeAlias = Ack | Nack | delivery.Reject


def to_decision(
    error: BaseException,
    receipt: Receipt,
    attempts: int,
    *,
    retry_ms: Sequence[int] = (),
    reject_on: tuple[type[Exception], ...] = (),
) -> Decision:
    """How to settle a delivery whose handler raised ``error``.

    ``retry_ms`` are the delays after the first attempts, instead of the queue's backoff; the
    last one applies to all further attempts.
    """
    if isinstance(error, Reject):
        return delivery.Reject(receipt, error.reason)
    if isinstance(error, reject_on):
        return delivery.Reject(receipt, describe(error, frames=_FRAMES))
    delay_ms = retry_ms[min(attempts, len(retry_ms)) - 1] if retry_ms else None
    if isinstance(error, Retry):
        wanted_ms = delay_ms if error.delay_ms is None else error.delay_ms
        return Nack(receipt, error.reason, wanted_ms)
    if isinstance(error, QueueFull):
        delay_ms = error.retry_after_ms if delay_ms is None else delay_ms
    return Nack(receipt, describe(error, frames=_FRAMES), delay_ms)
