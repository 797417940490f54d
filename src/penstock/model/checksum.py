"""The checksum of payloads and metadata: the low 32 bits of XXH3-64.

CRC-32 would do as well; it takes five times as long (0.40 against 0.07 µs for 1 KiB), and
every payload is summed twice in its life, when it is published and when it is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

__all__ = ["checksum", "checksums"]

_LOW: Final = 0xFFFF_FFFF


def checksum(data: bytes, seed: int = 0) -> int:
    """The checksum of ``data``; another seed gives another one."""
    return xxh3_64_intdigest(data, seed) & _LOW


def checksums(pieces: Iterable[bytes | memoryview], seeds: Iterable[int]) -> list[int]:
    """The checksum of each piece with its seed, in half the time of one call a piece."""
    return [found & _LOW for found in map(xxh3_64_intdigest, pieces, seeds)]
