"""Sealing: Penstock's binary values in the database carry a checksum (X1).

The database protects its pages; the checksum detects every other change of a value, such as a
manual UPDATE, before it is served.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum

__all__ = ["seal", "unseal"]

_SEAL_BYTES: Final = 4


def seal(data: bytes) -> bytes:
    """The data, preceded by its checksum."""
    return checksum(data).to_bytes(_SEAL_BYTES, "little") + data


def unseal(data: bytes, what: str) -> bytes:
    """The sealed data; raises ``StoreCorrupt``, naming ``what``, if the checksum is wrong."""
    content = data[_SEAL_BYTES:]
    if int.from_bytes(data[:_SEAL_BYTES], "little") != checksum(content):
        raise StoreCorrupt(f"The checksum of {what} is wrong.")
    return content
