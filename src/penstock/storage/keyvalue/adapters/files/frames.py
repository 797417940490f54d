"""Frames: the checksummed units of journals and snapshots, and how damage differs from a torn tail.

A frame is a header, a body, one short checksum per disk sector, and a hash of all of it::

    magic "PSF1" | sequence u64 | synced u64 | previous hash 8 B | body length u64 | CRC-32 | A5
    body
    for every 512-byte sector of the file that the header and the body touch: CRC-32 | 03 03 03 03
    hash 8 B (XXH3-64 of everything before it) | A5

Numbers are little-endian. ``previous`` is the hash of the frame before, so that removed and
exchanged frames, and frames of another copy of the store, are noticed.

After a power loss an unsynced frame may be incomplete: the file ends inside it, or some of its
sectors were never written and read as zeros. Anything else is damage (X1). The header has its own
checksum, so a damaged length does not look like the end of the file. The magic, the sector
checksums and the bytes A5 are never zero, so a sector of zeros is either a part of the body, which
its checksum confirms, or was never written. A single flipped bit cannot turn one into the other.

The CRC-32 of a header starts from the *salt* of its file, a random number, so that a payload that
contains a frame is not mistaken for one when the frames after a torn one are searched.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from mmap import mmap
from typing import Final, NamedTuple, TypeAlias

from xxhash import xxh3_64_digest

__all__ = [
    "HEADER_BYTES",
    "NO_HASH",
    "Buffer",
    "DamagedFrame",
    "Frame",
    "TornFrame",
    "encode_frame",
    "read_frame",
    "read_frames",
]

Buffer: TypeAlias = bytes | mmap

SECTOR: Final = 512
NO_HASH: Final = bytes(8)
_MAGIC: Final = b"PSF1"
_END: Final = b"\xa5"
#: Magic, sequence, synced, previous hash, body length; the CRC-32 of these and ``_END`` follow.
_HEAD: Final = struct.Struct("<4sQQ8sQ")
_SUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEAD.size + _SUM.size + len(_END)
_TRAILER_BYTES: Final = len(NO_HASH) + len(_END)
#: Two bits of every byte are set, so that no byte is zero, whichever bit flips.
_NEVER_ZERO: Final = 0x03030303


class TornFrame(Exception):
    """The frame was not written completely: a power loss or a kill explains it."""


class DamagedFrame(Exception):
    """The frame was changed after it was written, or does not belong here."""


class Frame(NamedTuple):
    """One frame of a file."""

    sequence: int
    synced: int
    """The last frame that was known to be synced when this one was written."""
    previous: bytes
    body: bytes
    hash: bytes
    start: int
    """Where the body is in the file."""
    end: int
    """The position after the frame."""


def encode_frame(
    sequence: int, synced: int, previous: bytes, body: bytes, position: int = 0, salt: int = 0
) -> tuple[bytes, bytes]:
    """The frame to be written at ``position`` of a file, and its hash."""
    head = _HEAD.pack(_MAGIC, sequence, synced, previous, len(body))
    content = b"".join((head, _SUM.pack(zlib.crc32(head, salt)), _END, body))
    sums = _sector_sums(content, position)
    signed = content + struct.pack(f"<{len(sums)}I", *sums)
    digest = xxh3_64_digest(signed)
    return signed + digest + _END, digest


def read_frame(buffer: Buffer, position: int = 0, salt: int = 0) -> Frame:
    """The frame at ``position``. Raises ``TornFrame`` or ``DamagedFrame``."""
    sequence, synced, previous, length = _read_header(buffer, position, salt)
    content_end = position + HEADER_BYTES + length
    sectors = (content_end - 1) // SECTOR - position // SECTOR + 1
    signed_end = content_end + sectors * _SUM.size
    end = signed_end + _TRAILER_BYTES
    if end > len(buffer):
        raise TornFrame("the file ends inside a frame")
    raw = buffer[position:end]
    digest = raw[-_TRAILER_BYTES:-1]
    if raw[-1:] != _END or xxh3_64_digest(raw[:-_TRAILER_BYTES]) != digest:
        if _has_lost_sector(raw, position, content_end - position):
            raise TornFrame("a sector of a frame was never written")
        raise DamagedFrame("the checksum of a frame is wrong")
    body = raw[HEADER_BYTES : content_end - position]
    return Frame(sequence, synced, previous, body, digest, position + HEADER_BYTES, end)


def read_frames(buffer: Buffer, after: Frame, salt: int) -> Iterator[Frame]:
    """The frames behind ``after``, which must follow it without a gap.

    Raises ``TornFrame`` for an incomplete end, and ``DamagedFrame``, also if a frame that was known
    to be synced is incomplete.
    """
    sequence, previous, position = after.sequence, after.hash, after.end
    while position < len(buffer):
        try:
            frame = read_frame(buffer, position, salt)
        except TornFrame as torn:
            if _newest_synced(buffer, position, salt) > sequence:
                raise DamagedFrame("a synced frame is incomplete") from torn
            raise
        if frame.sequence != sequence + 1 or frame.previous != previous:
            raise DamagedFrame(
                f"frame {frame.sequence} does not follow frame {sequence} of this store"
            )
        yield frame
        sequence, previous, position = frame.sequence, frame.hash, frame.end


def _read_header(buffer: Buffer, position: int, salt: int) -> tuple[int, int, bytes, int]:
    """Sequence, synced, previous hash and body length."""
    raw = buffer[position : position + HEADER_BYTES]
    if len(raw) < HEADER_BYTES:
        raise TornFrame("the file ends inside the header of a frame")
    head = raw[: _HEAD.size]
    if raw[_HEAD.size :] != _SUM.pack(zlib.crc32(head, salt)) + _END:
        if any(_is_zero(raw[start:end]) for start, end in _portions(position, HEADER_BYTES)):
            raise TornFrame("the header of a frame was never written")
        raise DamagedFrame("the checksum of the header of a frame is wrong")
    magic, sequence, synced, previous, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise DamagedFrame("a frame has an unknown format")
    return sequence, synced, previous, length


def _portions(position: int, length: int) -> Iterator[tuple[int, int]]:
    """The parts of a frame at ``position`` that lie in different sectors, as (start, end)."""
    start, end = 0, min(SECTOR - position % SECTOR, length)
    while start < length:
        yield start, end
        start, end = end, min(end + SECTOR, length)


def _sector_sums(content: bytes, position: int) -> list[int]:
    crc32, view = zlib.crc32, memoryview(content)
    return [
        crc32(view[start:end]) | _NEVER_ZERO for start, end in _portions(position, len(content))
    ]


def _has_lost_sector(raw: bytes, position: int, content: int) -> bool:
    """Whether a sector of the frame, whose header and body have ``content`` bytes, is missing."""
    for index, (start, end) in enumerate(_portions(position, len(raw))):
        if not _is_zero(raw[start:end]):
            continue
        if end > content:
            return True  # Sector checksums, or the end of the frame.
        (wanted,) = _SUM.unpack_from(raw, content + index * _SUM.size)
        if zlib.crc32(raw[start:end]) | _NEVER_ZERO != wanted:
            return True
    return False


def _newest_synced(buffer: Buffer, position: int, salt: int) -> int:
    """The highest ``synced`` of all intact headers after ``position``."""
    newest = -1
    while (position := buffer.find(_MAGIC, position + 1)) >= 0:
        try:
            newest = max(newest, _read_header(buffer, position, salt)[1])
        except (TornFrame, DamagedFrame):
            continue  # Payloads may contain the magic.
    return newest


def _is_zero(raw: bytes) -> bool:
    return not raw.strip(b"\0")
