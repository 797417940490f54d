"""Exceptions with which a handler decides how to settle, and what other exceptions mean.

================  ===========================================================================
raised            settled with
================  ===========================================================================
``Retry``         nack, with its delay or else the queue's backoff
``Reject``        reject: failed immediately, because a retry cannot help
anything else     nack, with the exception and the end of its traceback as the error
================  ===========================================================================

``Reject`` is an exception here; the settlement of the same name is ``penstock.Reject``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from penstock.broker.settle import MAX_NACK_DELAY_MS
from penstock.consume.failure import describe
from penstock.errors import BadInput, QueueFull
from penstock.model import delivery
from penstock.model.delivery import Ack, Nack, Receipt
from penstock.model.limits import check_whole, cut_error

__all__ = ["Decision", "Reject", "Retry", "to_decision"]

#: Frames of the traceback in the stored error; the log has all of them.
_FRAMES: Final = 5

Decision: TypeAlias = Ack | Nack | delivery.Reject


class Retry(Exception):
    """Hand the delivery out again later. The attempt counts."""

    def __init__(
        self,
        reason: str | None = None,
        *,
        after_ms: int | None = None,
        after: timedelta | None = None,
    ) -> None:
        if after is not None:
            if after_ms is not None:
                raise BadInput("after and after_ms exclude each other.", field="after")
            after_ms = after // timedelta(milliseconds=1)
        if after_ms is not None:
            check_whole("after_ms", after_ms, 0, MAX_NACK_DELAY_MS)
        super().__init__(reason or "retry requested")
        self.after_ms = after_ms


class Reject(Exception):
    """Fail the delivery immediately, with this reason."""


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
        return delivery.Reject(receipt, cut_error(str(error) or "rejected"))
    if isinstance(error, reject_on):
        return delivery.Reject(receipt, describe(error, frames=_FRAMES))
    delay_ms = retry_ms[min(attempts, len(retry_ms)) - 1] if retry_ms else None
    if isinstance(error, Retry):
        wanted_ms = delay_ms if error.after_ms is None else error.after_ms
        return Nack(receipt, cut_error(str(error)), wanted_ms)
    if isinstance(error, QueueFull):
        delay_ms = error.retry_after_ms if delay_ms is None else delay_ms
    return Nack(receipt, describe(error, frames=_FRAMES), delay_ms)
