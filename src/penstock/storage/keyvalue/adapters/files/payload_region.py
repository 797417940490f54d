"""The payloads of one commit as they lie in a journal, until each has its file."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

__all__ = ["JournalSource", "PayloadRegion"]


class JournalSource:
    """A journal that is open for reading as long as any region of it is referenced.

    A reader may still use a region when its last file has been written, so the last reference
    closes the file.
    """

    __slots__ = ("descriptor",)

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.descriptor)


class PayloadRegion:
    """A contiguous part of a journal. It keeps the journal open for reading."""

    __slots__ = ("_ends", "_source", "_start", "is_doubtful", "next", "offsets")

    def __init__(
        self,
        source: JournalSource,
        start: int,
        offsets: array[int],
        ends: array[int],
        is_doubtful: bool = False,
    ) -> None:
        """``ends`` are the ends of the payloads, counted from ``start``."""
        self._source = source
        self._start = start
        self.offsets = offsets
        self._ends = ends
        #: Some of the files may exist, complete or not.
        self.is_doubtful = is_doubtful
        #: The index of the next payload that needs a file.
        self.next = 0

    @property
    def size(self) -> int:
        """The bytes of all payloads."""
        return self._ends[-1]

    @property
    def first(self) -> int:
        """The lowest offset."""
        return self.offsets[0]

    def read(self, offset: int) -> bytes | None:
        """One payload, or None if it is not in this region."""
        index = bisect_left(self.offsets, offset)
        if index == len(self.offsets) or self.offsets[index] != offset:
            return None
        start = self._ends[index - 1] if index else 0
        return self._pread(start, self._ends[index])

    def rest(self) -> Iterator[tuple[int, memoryview]]:
        """Offset and payload of those that need files, and counts them off."""
        start = self._ends[self.next - 1] if self.next else 0
        raw = memoryview(self._pread(start, self.size))
        begin = start
        for index in range(self.next, len(self.offsets)):
            end = self._ends[index]
            yield self.offsets[index], raw[begin - start : end - start]
            begin = end
            self.next = index + 1

    def _pread(self, start: int, end: int) -> bytes:
        descriptor = self._source.descriptor
        raw = os.pread(descriptor, end - start, self._start + start)
        while len(raw) < end - start and (
            more := os.pread(descriptor, end - start - len(raw), self._start + start + len(raw))
        ):
            raw += more
        return raw
