"""A large body, received directly into one buffer without further copies.

The length is often not known before the end, so the buffer grows, in large steps, which copies
it. An announced length is not trusted: memory is allocated up to a bound, and more only when that
much has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

__all__ = ["Body", "Memory", "plain_memory"]

#: Allocates a buffer of that many bytes with arbitrary contents.
Memory: TypeAlias = Callable[[int], memoryview]

#: The most memory allocated for an announced length.
_MOST_AHEAD: Final = 16 * 1024 * 1024
#: The factor by which the buffer grows, and the most bytes it grows by.
_GROWTH: Final = 3
_MOST_GROWTH: Final = 64 * 1024 * 1024


def plain_memory(size: int) -> memoryview:
    """An ordinary Python buffer."""
    return memoryview(bytearray(size))


class Body:
    """The bytes received so far, and space for more."""

    __slots__ = ("_make", "_memory", "_size")

    def __init__(self, make: Memory, parts: Iterable[bytes | memoryview]) -> None:
        self._make = make
        self._memory = memoryview(b"")
        self._size = 0
        for part in parts:
            self.add(part)

    def add(self, part: bytes | memoryview) -> None:
        """Append bytes that were received elsewhere."""
        if not part:
            # There may be no buffer yet.
            return
        self._provide(len(part))
        self._memory[self._size : self._size + len(part)] = part
        self._size += len(part)

    def remaining(self, missing: int) -> memoryview:
        """A buffer for up to ``missing`` more bytes."""
        self._provide(min(missing, _MOST_AHEAD))
        return self._memory[self._size : self._size + missing]

    def filled(self, count: int) -> None:
        """Record that ``count`` bytes were written into the buffer."""
        self._size += count

    def whole(self) -> memoryview:
        """All bytes; a buffer that is mostly unused is copied, so that it can be freed."""
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
