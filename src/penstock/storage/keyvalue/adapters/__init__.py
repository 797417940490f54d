"""What the key-value engine asks of an ordered store.

An adapter is small on purpose: reads see the last completed write, a write is atomic, and
a synced write survives power loss with everything written before it. A mark is one small value
that is kept apart from the map, so that it survives damage to the map's files. ``get`` and ``scan``
are called on the event loop and have to be quick; ``write`` is called by one thread at a
time, off the loop unless ``inline``.

Errors: an adapter wraps its driver's. Damage found while reading is ``StoreCorrupt`` (X1);
a write that the disk refused raises ``OSError`` and the engine stops writing for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from penstock.model.message import Durability

__all__ = ["Adapter", "KeyRange", "Mark", "Writes"]

#: Key to new value, or to None for a delete.
Writes: TypeAlias = Mapping[bytes, bytes | None]
#: From, inclusive, and to, exclusive.
KeyRange: TypeAlias = tuple[bytes, bytes]


class Mark(Struct, frozen=True):
    """A commit that is known to be synced: its number, the hash of its link, when it was made
    and where the log ended."""

    number: int
    hash: bytes
    at: int
    log_end: int


class Adapter(Protocol):
    """An ordered map of bytes to bytes."""

    name: str
    durability: Durability
    persistent: bool
    inline: bool
    """Writes are quick and need no thread."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys; all keys are of one record type."""
        ...

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < end, in key order, or from the end backwards."""
        ...

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        """The values with start <= key < end, in key order, for those who read many once.

        Where damage ends it early, values are missing at the end: who knows how many there
        are asks for those by ``get``.
        """
        ...

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        """Apply atomically: first remove the ranges, then the writes; then sync if asked."""
        ...

    def place(self) -> str:
        """What a copy of the store does not share with it, as text; empty: nothing is known."""
        ...

    def space(self) -> tuple[int, int] | None:
        """The free and the total bytes of the disk, or None if there is no disk to run out of."""
        ...

    def mark(self, mark: Mark) -> None:
        """Keep the mark in place of the last one; once this returns it survives power loss."""
        ...

    def read_mark(self) -> Mark | None:
        """The mark that was kept last, or None."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...
