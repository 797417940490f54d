"""What schemathesis has to know about this interface beside its document.

MessagePack in and out, and that nobody waits for long: a claim may wait for half a minute for
something to come, which is right and which no test has the time for.
"""

from __future__ import annotations

from typing import Any

import msgspec
import schemathesis

#: Enough to go the way of a call that waits.
MOST_WAIT_MS = 50
#: Queues that are not to be deleted.
KEPT = frozenset({"jobs", "ordered"})


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Shorten what may wait, and keep what other calls are to find."""
    if case.method.upper() == "DELETE" and case.path_parameters.get("queue") in KEPT:
        case.path_parameters["queue"] = "idle"
    for part in (case.body, case.query):
        if isinstance(part, dict):
            wait_ms = part.get("wait_ms")
            if isinstance(wait_ms, int | str) and str(wait_ms).isdecimal():
                part["wait_ms"] = type(wait_ms)(min(int(wait_ms), MOST_WAIT_MS))


@schemathesis.serializer("application/msgpack", "application/vnd.penstock.batch+msgpack")
def to_msgpack(context: Any, value: Any) -> bytes:
    """What a client in another language would send."""
    return msgspec.msgpack.encode(_sendable(value))


@schemathesis.deserializer("application/msgpack")
def from_msgpack(context: Any, response: Any) -> Any:
    """Bytes are base64 in the schemas, which are those of JSON."""
    return msgspec.to_builtins(msgspec.msgpack.decode(response.content))


def _sendable(value: Any) -> Any:
    """MessagePack has whole numbers of 64 bits only."""
    match value:
        case int() if not -(2**63) <= value < 2**64:
            return float(value)
        case dict():
            return {str(name): _sendable(item) for name, item in value.items()}
        case list():
            return [_sendable(item) for item in value]
        case _:
            return value
