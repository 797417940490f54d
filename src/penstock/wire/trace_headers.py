"""Outgoing trace context: a message carries the trace that it was published in.

Headers that the program set itself are not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.model.limits import MAX_HEADERS
from penstock.model.message import HeaderValue, NewMessage
from penstock.telemetry import Trace, current_trace

__all__ = ["traced", "traced_headers"]

_PARENT: Final = "traceparent"
_STATE: Final = "tracestate"


def traced(messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """The messages, each with the current trace if it has none of its own."""
    trace = current_trace.get()
    if trace is None:
        return messages
    return [
        replace(message, headers=_with(trace, message.headers))
        if _has_room(message.headers)
        else message
        for message in messages
    ]


def traced_headers(headers: Mapping[str, HeaderValue]) -> Mapping[str, HeaderValue]:
    """The headers of one message, with the current trace if they have none."""
    trace = current_trace.get()
    return headers if trace is None or not _has_room(headers) else _with(trace, headers)


def _has_room(headers: object) -> bool:
    """Whether a trace can be added; headers that are not a mapping are refused later."""
    return (
        isinstance(headers, Mapping) and _PARENT not in headers and len(headers) < MAX_HEADERS - 1
    )


def _with(trace: Trace, headers: Mapping[str, HeaderValue]) -> dict[str, HeaderValue]:
    added: dict[str, HeaderValue] = {_PARENT: trace.format()}
    if trace.state:
        added[_STATE] = trace.state
    return {**added, **headers}
