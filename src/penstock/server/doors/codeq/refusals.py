"""What codeQ answers if it refuses a call: a status and a short text."""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    AccessError,
    BadInput,
    Conflict,
    MethodNotAllowed,
    NotFound,
    PenstockError,
    QueueFull,
    TooManyRequests,
    Unauthenticated,
)
from penstock.server.doors.json_bodies import StatusError

__all__ = ["CodeqError", "FieldError", "http_status", "refusal_text"]


class CodeqError(StatusError):
    """A refusal that codeQ defines."""


class FieldError(CodeqError):
    """A field of a topic policy is out of its bounds: 422 with its name."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(422, text, field=field)


#: HTTP status of the errors that verbs raise; the first class that fits counts.
_STATUS: Final[tuple[tuple[type[PenstockError], int], ...]] = (
    (Unauthenticated, 401),
    (AccessError, 403),
    (QueueFull, 429),
    (TooManyRequests, 429),
    (MethodNotAllowed, 405),
    (BadInput, 400),
    (NotFound, 404),
    (Conflict, 409),
)


def http_status(error: PenstockError) -> int:
    """The HTTP status of any error."""
    if isinstance(error, StatusError):
        return error.code
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 503 if error.status == 503 else 500


def refusal_text(error: PenstockError) -> str:
    """The text of any error."""
    return error.text if isinstance(error, StatusError) else error.detail
