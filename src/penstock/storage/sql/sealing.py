"""Sealing: bytes of ours in the database carry their checksum (X1).

The database looks after its pages; this notices whatever else changed a value, an UPDATE by
hand among it, before it is served.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum

__all__ = ["seal", "unseal"]

_SEAL_BYTES: Final = 4


def seal(data: bytes) -> bytes:
    """The bytes, with their checksum in front."""
    return checksum(data).to_bytes(_SEAL_BYTES, "little") + data


def unseal(data: bytes, what: str) -> bytes:
    """What was sealed, or ``StoreCorrupt`` naming ``what``."""
    content = data[_SEAL_BYTES:]
    if int.from_bytes(data[:_SEAL_BYTES], "little") != checksum(content):
        raise StoreCorrupt(f"The checksum of {what} is wrong.")
    return content
