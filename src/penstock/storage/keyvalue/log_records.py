"""The records of the log that are no entries: tenants, segments, the reserved block of offsets."""

from __future__ import annotations

import struct
from typing import Final

from penstock.storage.keyvalue.encoding import seal, unseal

__all__ = [
    "decode_block",
    "decode_segment",
    "decode_tenant",
    "encode_block",
    "encode_segment",
    "encode_tenant",
]

_PAIR: Final = struct.Struct(">QQ")
_META: Final = struct.Struct(">Qq")
_TENANT: Final = struct.Struct("<Qq")
_TRIMMED_TENANT: Final = struct.Struct("<QqQ")


def encode_tenant(end: int, archived: int, trimmed: int) -> bytes:
    """The record of a tenant's log; ``archived`` is -1 for none."""
    if trimmed:
        return seal(_TRIMMED_TENANT.pack(end, archived, trimmed))
    return seal(_TENANT.pack(end, archived))


def encode_segment(start: int, started_at: int) -> bytes:
    """The record of a segment's beginning."""
    return _META.pack(start, started_at)


def encode_block(base: int, size: int) -> bytes:
    """The record of the last reserved block of offsets."""
    return _PAIR.pack(base, size)


def decode_tenant(value: bytes) -> tuple[int, int, int]:
    """End, archived and trimmed of a tenant's log."""
    record = unseal(value, "tenant")
    if len(record) == _TENANT.size:
        end, archived = _TENANT.unpack(record)
        return end, archived, 0
    end, archived, trimmed = _TRIMMED_TENANT.unpack(record)
    return end, archived, trimmed


def decode_segment(value: bytes) -> tuple[int, int]:
    """The start of a segment, and when it began."""
    start, started_at = _META.unpack(value)
    return start, started_at


def decode_block(value: bytes) -> tuple[int, int]:
    """The base and the size of the reserved block."""
    base, size = _PAIR.unpack(value)
    return base, size
