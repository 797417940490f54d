"""The messages of one log record: how many it holds, and picking some of them by offset."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from penstock.storage.keyvalue.metadata import decode_metadata
from penstock.storage.keyvalue.records import Logged

__all__ = ["entry_end", "offset_of", "pick_pairs"]

#: Array counts are 16 bits; a commit with more messages is several log entries.
_MAX_ENTRY: Final = 65_535
#: Bytes of metadata after which the next log entry begins: readers decode a whole one. Only large
#: headers make an entry that large.
_ENTRY_BYTES: Final = 256 * 1024
#: So few messages are always one entry: a message has at most about 20 KiB of metadata.
_FEW: Final = 16

_metadata_of: Final = itemgetter(1)


def offset_of(pair: tuple[int, bytes]) -> int:
    """The offset of a pair, after verifying its checksum."""
    return decode_metadata(*pair).offset


def pick_pairs(
    pairs: list[tuple[int, bytes]], first: int, offsets: Sequence[int]
) -> Iterator[Logged]:
    """The entries at ascending ``offsets`` of one record, which begins at offset ``first``."""
    low, floor = 0, first
    for offset in offsets:
        # Offsets increase by at least one, so this is the position unless offsets are missing.
        high = min(len(pairs), low + max(0, offset - floor))
        if high == len(pairs) or (message := decode_metadata(*pairs[high])).offset != offset:
            high = bisect_left(pairs, offset, low, high, key=offset_of)
            if high == len(pairs):
                return
            message = decode_metadata(*pairs[high])
        low, floor = high, message.offset
        if floor == offset:
            yield message, pairs[high][1]


def entry_end(staged: list[Logged], begin: int) -> int:
    """The position after the last message of the log entry that begins at ``begin``."""
    end = min(len(staged), begin + _MAX_ENTRY)
    # Adding all sizes up takes a fifth of the time of the loop below.
    if end <= _FEW or (not begin and sum(map(len, map(_metadata_of, staged))) <= _ENTRY_BYTES):
        return end
    remaining = _ENTRY_BYTES
    for position in range(begin, end):
        remaining -= len(staged[position][1])
        if remaining < 0:
            return max(position, begin + 1)
    return end
