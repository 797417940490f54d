"""What queue-ti answers if it refuses a call: over HTTP a status, over gRPC a code.

Errors of the verbs are mapped here too, so both interfaces refuse the same calls.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    BadInput,
    Busy,
    Conflict,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    PenstockError,
    QueueFull,
    SchemaViolation,
    ServiceError,
    StoreError,
    TooManyRequests,
    Unauthenticated,
    UnknownTopic,
)
from penstock.server.doors.json_bodies import StatusError

__all__ = ["QueueTiError", "grpc_code", "http_status", "invalid", "not_found", "refusal_text"]

_INVALID: Final = "INVALID_ARGUMENT"


class QueueTiError(StatusError):
    """A refusal that queue-ti defines."""

    def __init__(self, status: int, grpc: str, text: str, *, field: str | None = None) -> None:
        super().__init__(status, text, field=field)
        self.grpc = grpc


#: HTTP status and gRPC code of the errors that verbs raise; the first class that fits counts.
_CODES: Final[tuple[tuple[type[PenstockError], int, str], ...]] = (
    (Unauthenticated, 401, "UNAUTHENTICATED"),
    (Forbidden, 403, "PERMISSION_DENIED"),
    (SchemaViolation, 422, _INVALID),
    (UnknownTopic, 422, "FAILED_PRECONDITION"),
    (QueueFull, 429, "INTERNAL"),
    (TooManyRequests, 429, "RESOURCE_EXHAUSTED"),
    (Busy, 503, "UNAVAILABLE"),
    (MethodNotAllowed, 405, "UNIMPLEMENTED"),
    (BadInput, 400, _INVALID),
    (NotFound, 404, "NOT_FOUND"),
    (Conflict, 409, "ABORTED"),
    (ServiceError, 500, "INTERNAL"),
    (StoreError, 500, "INTERNAL"),
)


def invalid(text: str, field: str | None = None) -> QueueTiError:
    """A call that cannot be right."""
    return QueueTiError(400, _INVALID, text, field=field)


def not_found(text: str) -> QueueTiError:
    """What the call is about does not exist, or is in another state."""
    return QueueTiError(404, "NOT_FOUND", text)


def http_status(error: PenstockError) -> int:
    """The HTTP status of any error."""
    if isinstance(error, StatusError):
        return error.code
    for kind, status, _ in _CODES:
        if isinstance(error, kind):
            return status
    return error.status


def grpc_code(error: PenstockError) -> str:
    """The name of the gRPC code of any error."""
    if isinstance(error, QueueTiError):
        return error.grpc
    for kind, _, code in _CODES:
        if isinstance(error, kind):
            return code
    return "INTERNAL"


def refusal_text(error: PenstockError) -> str:
    """The text of any error."""
    if isinstance(error, StatusError):
        return error.text
    if isinstance(error, SchemaViolation):
        return f"payload does not match topic schema: {error.detail}"
    return error.detail
