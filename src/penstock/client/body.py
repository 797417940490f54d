"""A large body, received where it stays: in one piece, and not copied on the way.

How long it gets is often not known before its end, so its memory grows, and by much at a time:
what has come is copied then. Nothing is believed that a server only announces; memory is taken
for so much at once, and for more when that has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

__all__ = ["Body", "Memory", "plain_memory"]

#: Makes memory of so many bytes, whatever is in them.
Memory: TypeAlias = Callable[[int], memoryview]

#: What an announcement is believed for.
_MOST_AHEAD: Final = 16 * 1024 * 1024
#: By how many times the size so far memory grows, and by how much at the most.
_GROWTH: Final = 3
_MOST_GROWTH: Final = 64 * 1024 * 1024


def plain_memory(size: int) -> memoryview:
    """Memory as Python has it."""
    return memoryview(bytearray(size))


class Body:
    """The bytes so far, and memory for those that come."""

    __slots__ = ("_make", "_memory", "_size")

    def __init__(self, make: Memory, parts: Iterable[bytes | memoryview]) -> None:
        self._make = make
        self._memory = memoryview(b"")
        self._size = 0
        for part in parts:
            self.add(part)

    def add(self, part: bytes | memoryview) -> None:
        """Append bytes that came elsewhere."""
        if not part:
            # There may be no memory to write to yet.
            return
        self._provide(len(part))
        self._memory[self._size : self._size + len(part)] = part
        self._size += len(part)

    def room(self, missing: int) -> memoryview:
        """Where to put the next bytes, of which so many are known to be missing."""
        self._provide(min(missing, _MOST_AHEAD))
        return self._memory[self._size : self._size + missing]

    def filled(self, count: int) -> None:
        """So many bytes were put into the room."""
        self._size += count

    def whole(self) -> memoryview:
        """All of them. Whoever keeps them does not keep much more."""
        if self._size < len(self._memory) // 2:
            return memoryview(bytes(self._memory[: self._size]))
        return self._memory[: self._size]

    def _provide(self, count: int) -> None:
        if len(self._memory) - self._size >= count:
            return
        growth = min(self._size * _GROWTH, _MOST_GROWTH)
        memory = self._make(self._size + max(count, growth))
        memory[: self._size] = self._memory[: self._size]
        self._memory = memory
