"""Registers: values that clients set concurrently, and which of them a reader may see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

__all__ = ["Register"]

T = TypeVar("T")


class _Write(Generic[T]):
    """One call that sets the value; ``ended`` is None if its outcome is unknown."""

    def __init__(self, value: T, begun: int, ended: int | None = None) -> None:
        self.value = value
        self.begun = begun
        self.ended = ended


class Register(Generic[T]):
    """One value, with the moments at which calls that set it began and were answered."""

    def __init__(self, first: T) -> None:
        self._moment = 0
        self._writes = [_Write(first, 0, 0)]

    def now(self) -> int:
        """The current moment; every moment is later than those before it."""
        self._moment += 1
        return self._moment

    @contextmanager
    def setting(self, value: T) -> Iterator[None]:
        """Record a call that sets the value. If it fails, its outcome is unknown."""
        write = _Write(value, self.now())
        self._writes.append(write)
        yield
        write.ended = self.now()

    def possible(self, begun: int, ended: int) -> list[T]:
        """The values that a call between these moments may see.

        A value is not seen if a later call replaced it: one that began after the call that set the
        value had ended, and that ended before the reader began.
        """
        answered = [w.begun for w in self._writes if w.ended is not None and w.ended < begun]
        last = max(answered, default=0)
        return [
            w.value
            for w in self._writes
            if w.begun < ended and (w.ended is None or w.ended >= last)
        ]
