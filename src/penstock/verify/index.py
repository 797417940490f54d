"""A compact index of the log at the first reading, for later comparisons.

Twenty bytes per log entry: its offset, the id of its message, and a checksum of all its
metadata. A million entries take 20 MB, regardless of the size of their headers and payloads.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import msgspec

from penstock.model.checksum import checksum
from penstock.model.message import Message

__all__ = ["LogIndex", "fingerprint"]

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def fingerprint(message: Message) -> int:
    """A checksum of all metadata."""
    return checksum(_ENCODER.encode(message))


class LogIndex:
    """The entries below ``end``, by offset."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.offsets = array("Q")
        self.ids = array("Q")
        self.prints = array("I")
        #: (from, to) of offsets that could not be read.
        self.holes: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, message: Message) -> None:
        """Add the next entry, in offset order."""
        self.offsets.append(message.offset)
        self.ids.append(message.id)
        self.prints.append(fingerprint(message))

    def position_of(self, offset: int) -> int:
        """How many entries are below an offset."""
        return bisect_left(self.offsets, offset)

    def find(self, offset: int) -> int | None:
        """The position of the entry at an offset."""
        position = self.position_of(offset)
        if position < len(self.offsets) and self.offsets[position] == offset:
            return position
        return None

    def covers(self, offset: int) -> bool:
        """Whether an entry at that offset would have been seen."""
        return offset < self.end and not any(low <= offset < high for low, high in self.holes)

    def is_first(self, position: int) -> bool:
        """Whether this is the first entry of its message."""
        return self.ids[position] == self.offsets[position] or self.find(self.ids[position]) is None
