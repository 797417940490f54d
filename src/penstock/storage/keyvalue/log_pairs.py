"""The messages of one log record: (message id, metadata) pairs, in order of offset."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from penstock.storage.keyvalue.metadata import decode_metadata
from penstock.storage.keyvalue.records import Logged

__all__ = ["offset_of", "pick_pairs"]


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
