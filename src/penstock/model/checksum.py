"""The checksum of payloads and metadata: the low 32 bits of XXH3-64.

CRC-32 would do as well, but takes five times as long (0.40 against 0.07 µs for 1 KiB), and
every payload is checked twice: when it is published and when it is claimed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from xxhash import xxh3_64_digest, xxh3_64_intdigest

__all__ = ["checksum", "checksums", "first_wrong"]

_LOW: Final = 0xFFFF_FFFF
_BYTES: Final = 4


def checksum(data: bytes, seed: int = 0) -> int:
    """The checksum of ``data``, which depends on the seed."""
    return xxh3_64_intdigest(data, seed) & _LOW


def checksums(pieces: Iterable[bytes | memoryview], seeds: Iterable[int]) -> list[int]:
    """The checksum of each piece with its seed, in half the time of one call per piece."""
    return [found & _LOW for found in map(xxh3_64_intdigest, pieces, seeds)]


def first_wrong(
    pieces: Sequence[bytes | memoryview], seeds: Iterable[int], sums: Sequence[int]
) -> int | None:
    """The index of the first piece whose checksum differs from ``sums``; None if all match.

    ``sums`` may be a view of 64-bit numbers. They are compared byte by byte over all pieces,
    without one object per number.
    """
    own = b"".join(map(xxh3_64_digest, pieces, seeds))
    kept = (sums if isinstance(sums, memoryview) else array("q", sums)).tobytes()
    if all(own[7 - byte :: 8] == kept[byte::8] for byte in range(_BYTES)):
        return None
    pairs = zip(checksums(pieces, seeds), sums, strict=True)
    return next(place for place, (found, wanted) in enumerate(pairs) if found != wanted)
