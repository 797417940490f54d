"""Errors on the wire: RFC 9457 problem documents, and their conversion back to errors.

The tree of ``penstock.errors`` is the list of problem types: a class ``QueueFull`` is
``urn:penstock:problem:queue-full``, and a client raises what the server raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock import errors
from penstock.errors import (
    BadFilter,
    BadReply,
    Busy,
    NotWriter,
    PenstockError,
    QueueFull,
    SchemaViolation,
)
from penstock.model.delivery import Outcome

__all__ = ["Problem", "problem_type", "read_problem", "retry_after_s", "to_error", "to_problem"]

_PREFIX: Final = "urn:penstock:problem:"
_HUMP: Final = re.compile(r"(?<!^)(?=[A-Z])")
#: The wait after a QueueFull or Busy that states none.
_RETRY_AFTER_MS: Final = 1000
_SHOWN: Final = 200


class Problem(Struct, frozen=True, omit_defaults=True):
    """A problem document. The members after ``detail`` are Penstock's own."""

    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    advice: str = ""
    law: str | None = None
    field: str | None = None
    limit: int | str | None = None
    position: int | None = None
    end: int | None = None
    """The end of the part of a filter that ``position`` starts."""
    index: int | None = None
    """The index in its batch of the message that broke a schema."""
    queue: str | None = None
    retry_after_ms: int | None = None
    writer: str | None = None
    """The URL of the server that writes to the store."""
    request_id: str | None = None
    outcomes: tuple[Outcome, ...] | UnsetType = UNSET
    """The outcomes of a settle that had no effect."""


_decoder: Final = msgspec.json.Decoder(Problem)


def problem_type(kind: type[PenstockError]) -> str:
    """The problem type of an error class."""
    return _PREFIX + _HUMP.sub("-", kind.__name__).lower()


def to_problem(error: PenstockError, request_id: str | None = None) -> Problem:
    """The problem document of an error."""
    return Problem(
        type=problem_type(type(error)),
        title=error.title,
        status=error.status,
        detail=error.detail,
        advice=error.advice,
        law=error.law,
        field=error.field,
        limit=error.limit,
        position=error.position if isinstance(error, BadFilter) else None,
        end=error.end if isinstance(error, BadFilter) else None,
        index=error.index if isinstance(error, SchemaViolation) else None,
        queue=error.queue if isinstance(error, QueueFull) else None,
        retry_after_ms=(
            error.retry_after_ms if isinstance(error, QueueFull | Busy | NotWriter) else None
        ),
        writer=error.writer if isinstance(error, NotWriter) else None,
        request_id=request_id,
    )


def retry_after_s(error: PenstockError) -> int | None:
    """Whole seconds for the Retry-After header, or None if a retry is useless."""
    if isinstance(error, QueueFull | Busy | NotWriter):
        return max(1, -(-error.retry_after_ms // 1000))
    return 1 if error.retryable or error.status == 503 else None


def read_problem(status: int, body: bytes | memoryview) -> Problem:
    """The problem document of a reply; a made-up one if it has none."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        shown = bytes(body[:_SHOWN]).decode(errors="replace")
        return Problem(title="Unexpected reply", status=status, detail=f"HTTP {status}: {shown}")


def to_error(problem: Problem) -> PenstockError:
    """The server's error; ``BadReply`` if this version does not know it."""
    kind = _KINDS.get(problem.type)
    if kind is QueueFull:
        return QueueFull(
            problem.detail,
            queue=problem.queue or "",
            limit=problem.limit if isinstance(problem.limit, int) else 0,
            retry_after_ms=problem.retry_after_ms or _RETRY_AFTER_MS,
        )
    if kind is None:
        return BadReply(problem.detail or problem.title)
    if kind is BadFilter:
        return BadFilter(
            problem.detail,
            position=problem.position,
            end=problem.end,
            field=problem.field,
            limit=problem.limit,
        )
    if kind is SchemaViolation:
        return SchemaViolation(
            problem.detail, index=problem.index, field=problem.field, limit=problem.limit
        )
    if kind is NotWriter:
        return NotWriter(
            problem.detail,
            field=problem.field,
            limit=problem.limit,
            writer=problem.writer,
            retry_after_ms=problem.retry_after_ms or _RETRY_AFTER_MS,
        )
    if issubclass(kind, Busy):
        return kind(
            problem.detail,
            field=problem.field,
            limit=problem.limit,
            retry_after_ms=problem.retry_after_ms or _RETRY_AFTER_MS,
        )
    return kind(problem.detail, field=problem.field, limit=problem.limit)


def _kinds(root: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


_KINDS: Final = {
    problem_type(kind): kind
    for kind in _kinds(PenstockError)
    if kind.__module__.startswith(f"{errors.__name__}.")
}
