"""Messages that prove their identity: 1 KiB with a number, the time of publishing and a checksum.

They are ASCII and contain no quotes, so that a peer whose messages are JSON carries the same bytes
as all others. The rest of a message is incompressible, so that the disk gets every byte.
"""

from __future__ import annotations

import base64
import os
import time
import zlib
from typing import Final

__all__ = ["SIZE", "body", "check"]

SIZE: Final = 1024
#: Hexadecimal digits: 16 of the number, 16 of the time in nanoseconds, 8 of the checksum.
_STAMP: Final = 32
_HEAD: Final = 40
#: Fillers in turn. One alone would be a repetition, which compresses.
_FILLERS: Final = tuple(base64.b64encode(os.urandom(SIZE))[: SIZE - _HEAD] for _ in range(256))
#: The checksum continues with the stamp, so that making a message costs little.
_CHECKSUMS: Final = tuple(map(zlib.crc32, _FILLERS))


def body(number: int) -> bytes:
    """The message with this number, published now."""
    stamp = b"%016x%016x" % (number, time.monotonic_ns())
    filler = number % len(_FILLERS)
    return b"%b%08x%b" % (stamp, zlib.crc32(stamp, _CHECKSUMS[filler]), _FILLERS[filler])


def check(payload: bytes) -> tuple[int, int]:
    """Verify a message; returns its number and time of publishing, in nanoseconds."""
    stamp = payload[:_STAMP]
    try:
        is_whole = zlib.crc32(stamp, zlib.crc32(payload[_HEAD:])) == int(payload[_STAMP:_HEAD], 16)
    except ValueError:
        is_whole = False
    if not is_whole or len(payload) != SIZE:
        raise ValueError(f"a message is damaged: {payload[:_HEAD]!r}")
    return int(stamp[:16], 16), int(stamp[16:], 16)
