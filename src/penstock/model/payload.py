"""Values as payloads and results: one conversion for ``publish``, batches, ``ack`` and workers.

=============================================  ==============================================
value                                          stored as
=============================================  ==============================================
``bytes``, ``bytearray``, ``memoryview``       the bytes
``str``                                        UTF-8
a pydantic model                               its JSON, by ``model_dump_json``
JSON values, dataclasses, msgspec structs, …   JSON, by msgspec; models inside are dumped
=============================================  ==============================================

Pydantic is never imported: a model is known by its methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import NoneType
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.errors import BadInput
from penstock.model.delivery import Ack
from penstock.model.duration import to_ms
from penstock.model.message import NewMessage

__all__ = ["plain_messages", "plain_settlements", "to_payload", "to_result"]

T = TypeVar("T")


def to_payload(value: object, field: str = "payload") -> tuple[bytes, str | None]:
    """The bytes to store for ``value``, and their default content type.

    ``field`` is the name of the value in errors.
    """
    if isinstance(value, bytes):
        return value, None
    first = value[0] if isinstance(value, list | tuple) and value else value
    if isinstance(first, NewMessage):
        raise BadInput(
            f"The {field} is a NewMessage; publish messages with publish_batch.", field=field
        )
    try:
        if isinstance(value, bytearray | memoryview):
            return bytes(value), None
        if isinstance(value, str):
            return value.encode(), "text/plain; charset=utf-8"
        dump = getattr(type(value), "model_dump_json", None)
        if dump is not None:
            return dump(value).encode(), "application/json"
        return msgspec.json.encode(value, enc_hook=_dump), "application/json"
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadInput(f"The {field} cannot be stored: {error}.", field=field) from error


def to_result(value: object) -> bytes | None:
    """The bytes of the result of an ack; None is no result."""
    return value if value is None or type(value) is bytes else bytes(to_payload(value, "result")[0])


def plain_settlements(settlements: Sequence[T]) -> Sequence[T | Ack]:
    """The settlements with bytes as results; anything that is not a list is returned unchanged."""
    if not isinstance(settlements, list | tuple) or not any(map(_has_value, settlements)):
        return settlements
    return [
        Ack(item.receipt, to_result(item.result)) if isinstance(item, Ack) else item
        for item in settlements
    ]


def _has_value(settlement: object) -> bool:
    return type(settlement) is Ack and type(settlement.result) not in (bytes, NoneType)


def plain_messages(messages: Sequence[NewMessage]) -> list[NewMessage]:
    """The messages with bytes as payloads and milliseconds as durations."""
    return [_plain(message) if type(message) is NewMessage else message for message in messages]


def _plain(message: NewMessage) -> NewMessage:
    changes: dict[str, Any] = {}
    if type(message.payload) is not bytes:
        changes["payload"], natural_type = to_payload(message.payload)
        if message.content_type is None:
            changes["content_type"] = natural_type
    for name in ("delay_ms", "ttl_ms"):
        value = getattr(message, name)
        if isinstance(value, timedelta):
            changes[name] = to_ms(value)
    return replace(message, **changes) if changes else message


def _dump(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return dump(mode="json")
