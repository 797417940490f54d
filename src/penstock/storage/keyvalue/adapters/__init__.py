"""What the key-value engine requires of an ordered store.

An adapter is deliberately small: reads see the last completed write, a write is atomic, and a
synced write survives power loss together with every earlier write. Only payloads and log entries
of a write may become readable before the rest of it; the engine never reads those above the end of
the log. A mark is one small value that
is stored outside the map, so that it survives damage to the map's files. ``get`` and ``scan`` are
called on the event loop and must be quick; ``write`` is called by one thread at a time, off the
loop unless ``inline``.

An adapter wraps its driver's errors. Damage found while reading is ``StoreCorrupt`` (X1); a write
that the disk refuses raises ``OSError``, and the engine stops writing permanently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from penstock.model.message import Durability

__all__ = ["Adapter", "KeyRange", "Mark", "Writes"]

#: Key to new value; None deletes the key.
Writes: TypeAlias = Mapping[bytes, bytes | None]
#: Start (inclusive) and end (exclusive).
KeyRange: TypeAlias = tuple[bytes, bytes]


class Mark(Struct, frozen=True):
    """A commit that is known to be synced: its number, the hash of its link, its time and the end
    of the log."""

    number: int
    hash: bytes
    at: int
    log_end: int


class Adapter(Protocol):
    """An ordered map of bytes to bytes."""

    name: str
    durability: Durability
    """What a synced write survives."""
    unsynced: Durability
    """What a write without sync survives."""
    persistent: bool
    has_marks: bool
    """Commits at the end can go missing unnoticed, so the newest is marked outside the map."""
    commit_interval_s: float
    """The least time between the beginnings of two synced writes; 0 where they cost nothing."""
    inline: bool
    """Writes are quick and run without a thread."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys. All keys must have the same record type."""
        ...

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < end, in key order, or in reverse."""
        ...

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        """The values with start <= key < end, in key order, for bulk reads.

        Damage may cut the list short. A caller that knows how many values there should be reads the
        missing ones with ``get``.
        """
        ...

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        """Atomically remove the ranges, then apply the writes; then sync if requested."""
        ...

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        """As ``write``, but returns False, with nothing changed, if it would have to wait."""
        ...

    def check(self) -> None:
        """Raise ``NotWriter`` if another process may have taken over the store."""
        ...

    def place(self) -> str:
        """Text that identifies the location and differs for a copy; empty if nothing is known."""
        ...

    def space(self) -> tuple[int, int] | None:
        """The free and the total bytes of the disk, or None if the store is not on a disk."""
        ...

    def mark(self, mark: Mark) -> None:
        """Replace the mark. When this returns, the new mark survives power loss."""
        ...

    def read_mark(self) -> Mark | None:
        """The current mark, or None."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...
