"""Errors of the service between a caller and the store."""

from __future__ import annotations

from penstock.errors.root import PenstockError

__all__ = ["BadReply", "Busy", "ServiceError", "Unreachable"]


class ServiceError(PenstockError):
    """The service between the caller and the store is not working."""

    title = "Service error"
    advice = "Check the service."
    status = 503
    law = "P2"


class Busy(ServiceError):
    """The service is at one of its limits, or stopping; nothing was done."""

    title = "Busy"
    advice = "Retry after a moment."
    retryable = True

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        limit: int | str | None = None,
        retry_after_ms: int = 1000,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)
        self.retry_after_ms = retry_after_ms


class Unreachable(ServiceError):
    """No answer came after all retries; the call may have taken effect."""

    title = "Unreachable"
    advice = "Check the URL and that the server runs; repeat with the same idempotency ids."
    retryable = True


class BadReply(ServiceError):
    """The answer is not one of Penstock's, or reports that the server failed."""

    title = "Bad reply"
    advice = "Check that the URL is a Penstock server's, and read the server's log."
    status = 502
