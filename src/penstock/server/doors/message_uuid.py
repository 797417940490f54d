"""Message ids as UUIDs, for protocols whose ids are UUIDs, and back.

A UUID holds the message id and a checksum of it, so no table maps one to the other. An id that was
not made here is recognized: its checksum is wrong. The bits look random, as ids of those protocols
do, but they are no secret: knowing an id permits nothing.
"""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID

from penstock.model.limits import MAX_OFFSET

__all__ = ["message_uuid", "uuid_message"]

#: A UUID has 122 free bits: 60 for the message id, 62 for its checksum.
_ID_BITS: Final = 60
_CHECK_BITS: Final = 62
_TEXT: Final = 36


def message_uuid(message_id: int, version: int = 4) -> str:
    """The UUID of a message, in lower case."""
    check = _hash(b"check", message_id, _CHECK_BITS)
    hidden = message_id ^ _hash(b"hide", check, _ID_BITS)
    high = (hidden >> 12) << 16 | version << 12 | (hidden & 0xFFF)
    return str(UUID(int=high << 64 | 0b10 << _CHECK_BITS | check))


def uuid_message(text: str, version: int = 4) -> int | None:
    """The message id in a UUID; None if ``message_uuid`` never returns the text."""
    if len(text) != _TEXT:
        return None
    try:
        number = UUID(text).int
    except ValueError:
        return None
    high, check = number >> 64, number & ((1 << _CHECK_BITS) - 1)
    hidden = (high >> 16) << 12 | (high & 0xFFF)
    message_id = hidden ^ _hash(b"hide", check, _ID_BITS)
    if message_id > MAX_OFFSET or message_uuid(message_id, version) != text:
        return None
    return message_id


def _hash(purpose: bytes, number: int, bits: int) -> int:
    digest = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "big") >> (64 - bits)
