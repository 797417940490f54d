"""The metadata bytes of a message: "opaque" to the RFC, defined by Penstock (docs/formats.md).

They contain the message's offset and the checksum of its payload, and end with their own checksum,
so that what is delivered is what was published (P3) and any damage is detected (X1). Every record
stores the message id next to them.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from msgspec.structs import replace

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum
from penstock.model.decisions import expiry_in_queue
from penstock.model.message import NO_HEADERS, HeaderValue, Message, MessageId, Offset
from penstock.model.queue import QueuePolicy

__all__ = [
    "HEAD_FORMAT",
    "VERSION",
    "Tail",
    "decode_metadata",
    "decode_tail",
    "encode_metadata",
    "entering",
    "expires_at_of",
    "offset_and_topic",
]

VERSION: Final = 1
#: version, offset, published_at, deliver_at, expires_at, priority, size, checksum, flags
HEAD_FORMAT: Final = "BQqqqBIIB"
_HEAD = struct.Struct("<" + HEAD_FORMAT)
_U16 = struct.Struct("<H")
_SUM = struct.Struct("<I")
_INT = struct.Struct("<Bq")
_FLOAT = struct.Struct("<Bd")
_I64_VALUE = struct.Struct("<q")
_F64_VALUE = struct.Struct("<d")
_EXPIRES_AT = slice(25, 33)

_NEVER: Final = -1
_HAS_PARTITION_KEY: Final = 1
_HAS_KEY: Final = 2
_HAS_CONTENT_TYPE: Final = 4
#: The limit is a u16 behind the headers, where earlier versions ignore it.
_HAS_MAX_ATTEMPTS: Final = 8
_TEXT: Final = 1
_INTEGER: Final = 2
_REAL: Final = 3
_BOOLEAN: Final = 4
_TRUE = bytes((_BOOLEAN, 1))
_FALSE = bytes((_BOOLEAN, 0))
_NO_HEADERS = _U16.pack(0)

#: Topic, partition key, key, content type, headers.
Tail: TypeAlias = tuple[str, str | None, str | None, str | None, dict[str, HeaderValue]]

#: The encoded tail of a message that has only a topic, by topic.
_PLAIN_TAILS: dict[str, bytes] = {}
#: The reverse: saves 0.4 of 1.3 µs per message that a claim decodes.
_DECODED_TAILS: dict[bytes, Tail] = {}
_MAX_PLAIN_TAILS: Final = 4_096


def encode_metadata(message: Message) -> bytes:
    """Encode everything except the id."""
    flags = 0
    if (
        message.headers
        or not (message.partition_key is message.key is message.content_type is None)
        or message.max_attempts is not None
    ):
        flags, tail = _encode_tail(message)
    else:
        # A message with only a topic takes two thirds of the time of the general case.
        tail = _PLAIN_TAILS.get(message.topic) or _plain_tail(message.topic)
    expires_at = message.expires_at
    body = (
        _HEAD.pack(
            VERSION,
            message.offset,
            message.published_at,
            message.deliver_at,
            _NEVER if expires_at is None else expires_at,
            message.priority,
            message.size,
            message.checksum,
            flags,
        )
        + tail
    )
    # Seeded with the id, which is stored next to it, so that damage to either is detected.
    return body + _SUM.pack(checksum(body, message.id))


def entering(
    policy: QueuePolicy, message: Message, metadata: bytes, now: int
) -> tuple[Message, bytes]:
    """The message and its metadata as a delivery that enters the queue now has them.

    With a ``message_ttl_ms``, the delivery may expire earlier than its message.
    """
    expires_at = expiry_in_queue(policy, message.expires_at, now)
    if expires_at == message.expires_at:
        return message, metadata
    message = replace(message, expires_at=expires_at)
    return message, encode_metadata(message)


def _plain_tail(topic: str) -> bytes:
    if len(_PLAIN_TAILS) >= _MAX_PLAIN_TAILS:
        _PLAIN_TAILS.clear()
        _DECODED_TAILS.clear()
    raw = topic.encode()
    tail = _PLAIN_TAILS[topic] = _U16.pack(len(raw)) + raw + _NO_HEADERS
    _DECODED_TAILS[tail] = (topic, None, None, None, NO_HEADERS)
    return tail


def _encode_tail(message: Message) -> tuple[int, bytes]:
    """The flags, and everything after them except the checksum."""
    topic = message.topic.encode()
    parts = [_U16.pack(len(topic)), topic]
    flags = 0
    for flag, text in (
        (_HAS_PARTITION_KEY, message.partition_key),
        (_HAS_KEY, message.key),
        (_HAS_CONTENT_TYPE, message.content_type),
    ):
        if text is not None:
            flags |= flag
            raw = text.encode()
            parts += (_U16.pack(len(raw)), raw)
    if message.headers:
        _encode_headers(message.headers, parts)
    else:
        parts.append(_NO_HEADERS)
    if message.max_attempts is not None:
        flags |= _HAS_MAX_ATTEMPTS
        parts.append(_U16.pack(message.max_attempts))
    return flags, b"".join(parts)


def decode_metadata(message_id: int, encoded: bytes) -> Message:
    """Decode what ``encode_metadata`` wrote, verifying its checksum."""
    if len(encoded) < _HEAD.size + _SUM.size or encoded[0] != VERSION:
        raise StoreCorrupt(f"The metadata of message {message_id} has an unknown format.")
    found = checksum(encoded[:-4], message_id)
    if found != _SUM.unpack_from(encoded, len(encoded) - 4)[0]:
        raise StoreCorrupt(f"The checksum of the metadata of message {message_id} is wrong.")
    _, offset, published_at, deliver_at, expires_at, priority, size, payload_sum, flags = (
        _HEAD.unpack_from(encoded)
    )
    tail = None if flags else _DECODED_TAILS.get(encoded[_HEAD.size : -_SUM.size])
    if tail is None:
        tail = decode_tail(encoded, _HEAD.size, flags)
        if not flags and not tail[-1]:
            _plain_tail(tail[0])
    topic, partition_key, key, content_type, headers = tail
    return Message(
        MessageId(message_id),
        Offset(offset),
        topic,
        priority,
        published_at,
        deliver_at,
        None if expires_at == _NEVER else expires_at,
        size,
        payload_sum,
        partition_key,
        key,
        content_type,
        headers,
        max_attempts_of(encoded, len(encoded) - _SUM.size, flags) if flags else None,
    )


def decode_tail(encoded: bytes, position: int, flags: int) -> Tail:
    """Decode the tail, which begins at ``position``."""
    topic, position = _text(encoded, position)
    partition_key = key = content_type = None
    if flags & _HAS_PARTITION_KEY:
        partition_key, position = _text(encoded, position)
    if flags & _HAS_KEY:
        key, position = _text(encoded, position)
    if flags & _HAS_CONTENT_TYPE:
        content_type, position = _text(encoded, position)
    (count,) = _U16.unpack_from(encoded, position)
    headers = _decode_headers(encoded, position + 2, count) if count else NO_HEADERS
    return topic, partition_key, key, content_type, headers


def max_attempts_of(encoded: bytes, end: int, flags: int) -> int | None:
    """The last two bytes of the tail, which ends at ``end``, if the message has its own limit."""
    if not flags & _HAS_MAX_ATTEMPTS:
        return None
    found: int = _U16.unpack_from(encoded, end - 2)[0]
    return found


def expires_at_of(encoded: bytes) -> int | None:
    """Read only ``expires_at``, without decoding the rest."""
    value = int.from_bytes(encoded[_EXPIRES_AT], "little", signed=True)
    return None if value == _NEVER else value


def _encode_headers(headers: dict[str, HeaderValue], parts: list[bytes]) -> None:
    parts.append(_U16.pack(len(headers)))
    for name in sorted(headers):
        value = headers[name]
        raw = name.encode()
        parts += (_U16.pack(len(raw)), raw)
        kind = type(value)
        if kind is str:
            raw = value.encode()  # type: ignore[union-attr]
            parts += (b"\x01", _U16.pack(len(raw)), raw)
        elif kind is bool:
            parts.append(_TRUE if value else _FALSE)
        elif kind is int:
            parts.append(_INT.pack(_INTEGER, value))
        else:
            parts.append(_FLOAT.pack(_REAL, value))


def _decode_headers(encoded: bytes, position: int, count: int) -> dict[str, HeaderValue]:
    headers: dict[str, HeaderValue] = {}
    for _ in range(count):
        name, position = _text(encoded, position)
        kind = encoded[position]
        if kind == _TEXT:
            headers[name], position = _text(encoded, position + 1)
        elif kind == _INTEGER:
            headers[name] = _I64_VALUE.unpack_from(encoded, position + 1)[0]
            position += 9
        elif kind == _REAL:
            headers[name] = _F64_VALUE.unpack_from(encoded, position + 1)[0]
            position += 9
        elif kind == _BOOLEAN:
            headers[name] = encoded[position + 1] == 1
            position += 2
        else:
            raise StoreCorrupt(f"A header has the unknown type {kind}.")
    return headers


def _text(encoded: bytes, position: int) -> tuple[str, int]:
    end = position + 2 + (encoded[position] | encoded[position + 1] << 8)
    return encoded[position + 2 : end].decode(), end


def offset_and_topic(metadata: bytes) -> tuple[int, str]:
    """Only these two, without verifying the checksum; for displays."""
    try:
        (size,) = _U16.unpack_from(metadata, _HEAD.size)
        topic = metadata[_HEAD.size + _U16.size : _HEAD.size + _U16.size + size]
        return int(_HEAD.unpack_from(metadata)[1]), topic.decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise StoreCorrupt("The metadata of a message cannot be decoded.") from error
