"""Message attributes: what SQS allows, their MD5, and how they are kept in a message.

Scalars are mirrored into headers of the same name, so that filters see them: a String as text, a
Number as an integer or a float, a Binary value as base64. The header ``sqs_attributes`` has what
the mirrors lack, the types and the texts of numbers that are not written as Python writes them.
Attributes that are too large for headers make the payload an envelope of body and attributes.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from penstock.model.message import HeaderValue
from penstock.server.doors.sqs.characters import has_invalid
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.requests import AttributeValue

__all__ = [
    "ATTRIBUTES_HEADER",
    "OWN_PREFIX",
    "Attributes",
    "attributes_of_headers",
    "attributes_size",
    "check_attributes",
    "is_wanted",
    "md5_of_attributes",
    "to_headers",
    "to_reply",
]

#: Attributes by name.
Attributes = Mapping[str, AttributeValue]

#: Begins the headers of this door.
OWN_PREFIX: Final = "sqs_"
ATTRIBUTES_HEADER: Final = "sqs_attributes"
#: Headers that a dead-letter copy replaces.
_RESERVED: Final = (OWN_PREFIX, "dead_letter_")
#: Headers of a message may have 16 KiB; a dead-letter copy adds up to 5 KiB.
_MAX_HEADERS_BYTES: Final = 10 * 1024
_MAX_ATTRIBUTES: Final = 10
_MAX_NAME: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_TYPE: Final = re.compile(r"(?:String|Number|Binary)(?:\.[^\s.][^\s]*)?")
_MAX_TYPE: Final = 256
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_INT64: Final = range(-(2**63), 2**63)
_LENGTH: Final = struct.Struct("!I")


class Kept(Struct, frozen=True, omit_defaults=True, array_like=True):
    """What the header has of one attribute: its type, and its text unless the mirror has it."""

    type: str
    text: str | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Kept]).decode


def check_attributes(attributes: Attributes) -> None:
    """Raise the error of SQS for attributes that it refuses."""
    if len(attributes) > _MAX_ATTRIBUTES:
        raise _refused(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{_MAX_ATTRIBUTES}]."
        )
    for name, value in attributes.items():
        _check_name(name)
        _check_value(name, value)


def _check_name(name: str) -> None:
    lowered = name.lower()
    if (
        len(name) > _MAX_NAME
        or _NAME.fullmatch(name) is None
        or lowered.startswith(("aws.", "amazon."))
    ):
        raise _refused(
            f"The message attribute name '{name[:_MAX_NAME]}' is invalid. Attribute name can"
            " contain A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) characters."
        )


def _check_value(name: str, value: AttributeValue) -> None:
    kind = value.data_type
    if not kind:
        raise _refused(
            f"The message attribute '{name}' must contain non-empty message attribute type."
        )
    if len(kind) > _MAX_TYPE or _TYPE.fullmatch(kind) is None:
        raise _refused(
            f"The message attribute '{name}' has an invalid message attribute type, the set of"
            " supported type prefixes is Binary, Number, and String."
        )
    if value.string_list_values or value.binary_list_values:
        raise SqsError(
            "UnsupportedOperation",
            f"Message attribute list values in the attribute '{name}' are not supported.",
        )
    content = value.binary_value if kind.startswith("Binary") else value.string_value
    if not content:
        raise _refused(
            f"The message attribute '{name}' must contain non-empty message attribute value for"
            f" message attribute type '{kind}'."
        )
    if isinstance(content, str):
        if has_invalid(content):
            raise _refused(f"The value of the attribute '{name}' has an invalid character.")
        if kind.startswith("Number") and _NUMBER.fullmatch(content) is None:
            raise _refused(f"Can't cast the value of message attribute '{name}' to a number.")


def _refused(message: str) -> SqsError:
    return SqsError("InvalidParameterValue", message)


def attributes_size(attributes: Attributes) -> int:
    """What attributes count in the size of a message: names, types and values."""
    return sum(
        len(name.encode()) + len(value.data_type.encode()) + len(_content(value))
        for name, value in attributes.items()
    )


def md5_of_attributes(attributes: Attributes) -> str:
    """The MD5 that clients compare with their own."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        for text in (name.encode(), value.data_type.encode()):
            digest.update(_LENGTH.pack(len(text)) + text)
        content = _content(value)
        kind = b"\x02" if value.binary_value is not None else b"\x01"
        digest.update(kind + _LENGTH.pack(len(content)) + content)
    return digest.hexdigest()


def _content(value: AttributeValue) -> bytes:
    if value.binary_value is not None:
        return value.binary_value
    return (value.string_value or "").encode()


def to_headers(attributes: Attributes) -> tuple[dict[str, HeaderValue], bool]:
    """The headers of a message, and whether they have everything.

    If not, they have the mirrors that fit, for filters, and the payload must be an envelope.
    """
    headers: dict[str, HeaderValue] = {}
    kept: dict[str, Kept] = {}
    for name, value in attributes.items():
        text = _text(value)
        mirror = _mirror(value.data_type, text)
        if name.startswith(_RESERVED) or len(name) >= _MAX_NAME or mirror is None:
            kept[name] = Kept(value.data_type, text)
            continue
        headers[name] = mirror
        kept[name] = Kept(value.data_type, None if _shown(mirror) == text else text)
    headers[ATTRIBUTES_HEADER] = _encode(kept).decode()
    if _size(headers) <= _MAX_HEADERS_BYTES:
        return headers, True
    fitting: dict[str, HeaderValue] = {}
    remaining = _MAX_HEADERS_BYTES
    del headers[ATTRIBUTES_HEADER]
    for name, mirror in headers.items():
        size = _size({name: mirror})
        if size <= remaining:
            fitting[name] = mirror
            remaining -= size
    return fitting, False


def _text(value: AttributeValue) -> str:
    if value.binary_value is not None:
        return base64.b64encode(value.binary_value).decode()
    return value.string_value or ""


def _mirror(kind: str, text: str) -> HeaderValue | None:
    """The value of the header; None if the attribute has none."""
    if not kind.startswith("Number"):
        return text
    try:
        whole = int(text)
    except ValueError:
        number = float(text)
        return number if math.isfinite(number) else None
    return whole if whole in _INT64 else float(whole)


def _shown(mirror: HeaderValue) -> str:
    if isinstance(mirror, bool):
        return "true" if mirror else "false"
    return mirror if isinstance(mirror, str) else repr(mirror)


def _size(headers: Mapping[str, HeaderValue]) -> int:
    return sum(
        len(name.encode()) + (len(value.encode()) if isinstance(value, str) else 8)
        for name, value in headers.items()
    )


def attributes_of_headers(headers: Mapping[str, HeaderValue]) -> dict[str, AttributeValue]:
    """The attributes of a message: those that were sent, or its headers as attributes."""
    text = headers.get(ATTRIBUTES_HEADER)
    if isinstance(text, str):
        try:
            return _restored(_decode(text), headers)
        except (msgspec.MsgspecError, ValueError, KeyError):
            pass  # Another program wrote this header.
    return {
        name: _of_header(value)
        for name, value in headers.items()
        if not name.startswith(_RESERVED) and _is_attribute(name, value)
    }


def _restored(
    kept: dict[str, Kept], headers: Mapping[str, HeaderValue]
) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    for name, item in kept.items():
        text = _shown(headers[name]) if item.text is None else item.text
        if item.type.startswith("Binary"):
            raw = base64.b64decode(text, validate=True)
            attributes[name] = AttributeValue(item.type, binary_value=raw)
        else:
            attributes[name] = AttributeValue(item.type, text)
    return attributes


def _is_attribute(name: str, value: HeaderValue) -> bool:
    """Whether a header of another program can be shown as an attribute."""
    if len(name) > _MAX_NAME or _NAME.fullmatch(name) is None:
        return False
    return bool(value) and not has_invalid(value) if isinstance(value, str) else True


def _of_header(value: HeaderValue) -> AttributeValue:
    kind = "String" if isinstance(value, str | bool) else "Number"
    return AttributeValue(kind, _shown(value))


def is_wanted(name: str, wanted: list[str]) -> bool:
    """Whether a receive asks for an attribute: by name, by ``prefix.*``, or for all of them."""
    return any(
        item in ("All", name) or (item.endswith(".*") and name.startswith(item[:-2]))
        for item in wanted
    )


def to_reply(attributes: Attributes) -> dict[str, dict[str, object]]:
    """The attributes as members of a reply."""
    return {
        name: (
            {"BinaryValue": value.binary_value, "DataType": value.data_type}
            if value.binary_value is not None
            else {"StringValue": value.string_value, "DataType": value.data_type}
        )
        for name, value in attributes.items()
    }
