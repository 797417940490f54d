"""Decodes payloads to values of a type, and encodes values as payloads.

The handler's annotation decides how bytes are decoded:

=========================================  ==================================================
``bytes``, or no annotation                the payload unchanged
``str``                                    UTF-8
``Any``, ``object``                        by the content type: JSON, MessagePack, text
                                           or bytes
a pydantic model, or a type made of some   pydantic, from JSON or MessagePack
anything else                              msgspec, from JSON or MessagePack
=========================================  ==================================================

MessagePack is decoded if the content type says so. Pydantic is used if the annotation needs
it, and never imported otherwise.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import msgspec

from penstock.errors import BadInput
from penstock.model.delivery import Delivery
from penstock.wire.codecs import JSON, MSGPACK_ALIASES, media_type

__all__ = ["Decode", "DecodeTyped", "is_msgpack", "to_decode", "to_decode_typed"]

#: Raises ``ValueError``, the base of all errors of these libraries, for an unreadable payload.
Decode: TypeAlias = Callable[[Delivery], object]
#: Decodes JSON, or MessagePack if the second argument is true.
DecodeTyped: TypeAlias = Callable[[bytes | msgspec.Raw, bool], object]


def to_decode(annotation: object) -> Decode:
    """The decoder for a parameter with this annotation; ``BadInput`` if there is none."""
    if annotation is bytes or annotation is inspect.Parameter.empty:
        return _as_bytes
    if annotation is str:
        return _as_text
    if annotation is Any or annotation is object:
        return _as_declared
    decode = to_decode_typed(annotation)
    return lambda delivery: decode(delivery.payload, is_msgpack(delivery))


def to_decode_typed(annotation: object) -> DecodeTyped:
    """The decoder of JSON and MessagePack to values of a type; ``BadInput`` if there is none."""
    return _by_pydantic(annotation) if _has_pydantic(annotation) else _by_msgspec(annotation)


def _as_bytes(delivery: Delivery) -> object:
    return delivery.payload


def _as_text(delivery: Delivery) -> object:
    return delivery.payload.decode()


def _as_declared(delivery: Delivery) -> object:
    kind = media_type(delivery.message.content_type or "")
    if kind == JSON or kind.endswith("+json"):
        return msgspec.json.decode(delivery.payload)
    if kind in MSGPACK_ALIASES:
        return msgspec.msgpack.decode(delivery.payload)
    if kind.startswith("text/"):
        return delivery.payload.decode()
    return delivery.payload


def _by_msgspec(annotation: object) -> DecodeTyped:
    try:
        if isinstance(msgspec.inspect.type_info(annotation), msgspec.inspect.CustomType):
            raise BadInput(
                f"A payload cannot be read as {annotation!r}: use a type of msgspec, a dataclass, "
                "a TypedDict, a built-in type or a pydantic model.",
                field="payload",
            )
        from_json = msgspec.json.Decoder(annotation)
        from_msgpack = msgspec.msgpack.Decoder(annotation)
    except TypeError as error:
        raise BadInput(f"A payload cannot be read: {error}.", field="payload") from error

    def decode(raw: bytes | msgspec.Raw, msgpack: bool) -> object:
        return (from_msgpack if msgpack else from_json).decode(raw)

    return decode


def _has_pydantic(annotation: object) -> bool:
    # True of models and pydantic's dataclasses, whose module has imported pydantic.
    if hasattr(annotation, "__pydantic_validator__"):
        return True
    return any(_has_pydantic(part) for part in get_args(annotation))


def _by_pydantic(annotation: object) -> DecodeTyped:
    adapter = importlib.import_module("pydantic").TypeAdapter(annotation)

    def decode(raw: bytes | msgspec.Raw, msgpack: bool) -> object:
        if msgpack:
            return adapter.validate_python(msgspec.msgpack.decode(raw))
        return adapter.validate_json(bytes(raw))

    return decode


def is_msgpack(delivery: Delivery) -> bool:
    """Whether the payload is declared as MessagePack."""
    content_type = delivery.message.content_type
    return content_type is not None and media_type(content_type) in MSGPACK_ALIASES
