"""Encodes and decodes bodies: JSON and MessagePack with the same structs.

A body that does not decode is the caller's mistake; the error names the field (E1).
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

from penstock.errors import BadInput
from penstock.wire.decode_errors import explain

__all__ = [
    "ARROW_STREAM",
    "BATCH_JSON",
    "BATCH_MSGPACK",
    "EVENT_STREAM",
    "JSON",
    "MSGPACK",
    "MSGPACK_ALIASES",
    "PROBLEM_JSON",
    "Codec",
    "encode_json",
    "encode_msgpack",
    "media_type",
    "refused",
]

T = TypeVar("T")

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
#: Other names of MessagePack.
MSGPACK_ALIASES: Final = frozenset(
    {MSGPACK, "application/x-msgpack", "application/vnd.msgpack", "application/messagepack"}
)
PROBLEM_JSON: Final = "application/problem+json"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
EVENT_STREAM: Final = "text/event-stream"
#: The types of a batch. A publish body of any other type is one message, stored unchanged.
BATCH_JSON: Final = "application/vnd.penstock.batch+json"
BATCH_MSGPACK: Final = "application/vnd.penstock.batch+msgpack"

encode_json: Final = msgspec.json.Encoder().encode
encode_msgpack: Final = msgspec.msgpack.Encoder().encode


class Codec(Generic[T]):
    """Decodes one type of body from either format."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._json = msgspec.json.Decoder(kind)
        self._msgpack = msgspec.msgpack.Decoder(kind)

    def from_json(self, body: bytes) -> T:
        """The body, or ``BadInput`` that names the field."""
        try:
            return self._json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise refused(error, self._kind) from error

    def from_msgpack(self, body: bytes) -> T:
        """The body, or ``BadInput`` that names the field."""
        try:
            return self._msgpack.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise refused(error, self._kind) from error


def refused(error: Exception, kind: object, what: str = "The body") -> BadInput:
    """The error for a body, or a query, that does not decode as ``kind``."""
    field, text = explain(error, kind)
    return BadInput(f"{what} cannot be read: {text}.", field=field or what.rpartition(" ")[2])


def media_type(content_type: str) -> str:
    """The type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()
