"""Splits large bodies: finds where the items of an array begin and end without decoding them.

Decoding a body of 64 MiB in one go takes seconds and gigabytes, and nothing else runs meanwhile.
So a large body is scanned first, in steps of a few milliseconds: the array is cut into pieces of a
bounded size, and scanning ends as soon as there are more items than allowed. Then each piece is
decoded on its own, and the rest of the body with an empty array instead of the items.

The scanners are generators: other calls may run at each ``yield``. They do not validate. All pieces
are decoded later, and a body whose pieces and frame decode is well-formed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from penstock.errors import BadInput, TooLarge

__all__ = [
    "PIECE_BYTES",
    "Bounds",
    "Cursor",
    "Piece",
    "Split",
    "Steps",
    "split",
]

T = TypeVar("T")
#: Work that may be interrupted at every yield, and its result.
Steps: TypeAlias = Generator[None, None, T]

#: The size of a piece, unless one item is larger; decoding it takes a few milliseconds.
PIECE_BYTES: Final = 64 * 1024
#: Items scanned before other calls get their turn.
_ITEMS_A_STEP: Final = 500
#: Bytes, white space included, scanned before other calls get their turn.
_BYTES_A_STEP: Final = 256 * 1024
#: Members of the body itself, or of one item; no body has more than 13.
_MAX_MEMBERS: Final = 64


class Bounds(Struct, frozen=True):
    """How many items an array may have, and how large one may be."""

    items: int
    item_bytes: int = PIECE_BYTES
    item_tokens: int = 1_000
    """Values in an item of MessagePack: a message has about 160 at most."""
    piece_items: int = 1_000
    """Items per piece: small items cost more to decode than their bytes suggest."""
    large_member: str = "payload"
    """The member of an item that may be a large container; empty: the item is split in turn."""


class Piece(Struct, frozen=True):
    """Consecutive items."""

    begin: int
    end: int
    first: int
    """The index of its first item in the array."""
    count: int


class Split(Struct, frozen=True):
    """A body in pieces."""

    frame: bytes
    """The body with empty arrays instead of those that were cut."""
    arrays: dict[str, list[Piece]]


class Cursor(Protocol):
    """A position in a body, which moves over values without decoding them.

    Every method raises ``BadInput`` if the body ends early or has something unexpected.
    """

    position: int

    @property
    def empty_array(self) -> bytes:
        """An array without items."""

    def begin_object(self) -> None:
        """Move into an object."""

    def next_key(self) -> str | None:
        """Move to the value of the next member and return its name; None at the end."""

    def begin_array(self) -> bool:
        """Move into an array; returns False, without moving, if the value is not an array."""

    def next_item(self) -> bool:
        """Move to the next item of the array; at its end, move past it and return False."""

    def skip(self, bounds: Bounds) -> Steps[bool]:
        """Move past a value; returns whether it is a container. ``TooLarge`` beyond the bounds."""


#: The bounds of a member that is not split.
_MEMBER: Final = Bounds(1)


def split(cursor: Cursor, body: bytes, end: int, arrays: Mapping[str, Bounds]) -> Steps[Split]:
    """Split the named arrays of the object at the cursor, which ends at ``end``, into pieces."""
    found: dict[str, list[Piece]] = {}
    frame = []
    position = cursor.position
    cursor.begin_object()
    for _ in range(_MAX_MEMBERS):
        name = cursor.next_key()
        if name is None:
            break
        value = cursor.position
        if name not in arrays or not cursor.begin_array():
            yield from cursor.skip(_MEMBER)
            continue
        if name in found:
            raise BadInput(f"The body has {name} twice.", field=name)
        found[name] = yield from _cut(cursor, arrays[name], name)
        frame += [body[position:value], cursor.empty_array]
        position = cursor.position
    else:
        raise BadInput(f"The body has more than {_MAX_MEMBERS} members.", field="body")
    if end - cursor.position > PIECE_BYTES:
        raise BadInput("The body cannot be read: it does not end where it should.", field="body")
    frame.append(body[position:end])
    return Split(b"".join(frame), found)


def _cut(cursor: Cursor, bounds: Bounds, name: str) -> Steps[list[Piece]]:
    cutter = _Cutter(bounds, name)
    stepped = cursor.position
    while cursor.next_item():
        begin = cursor.position
        yield from cursor.skip(bounds)
        if cursor.position - begin > PIECE_BYTES and bounds.large_member:
            yield from _check_item(cursor, begin, bounds)
        cutter.add(begin, cursor.position)
        if not cutter.count % _ITEMS_A_STEP or cursor.position - stepped > _BYTES_A_STEP:
            stepped = cursor.position
            yield
    return cutter.finish()


def _check_item(cursor: Cursor, begin: int, bounds: Bounds) -> Steps[None]:
    """Refuse an item that is large for another reason than its payload."""
    end = cursor.position
    cursor.position = begin
    cursor.begin_object()
    for _ in range(_MAX_MEMBERS):
        name = cursor.next_key()
        if name is None:
            break
        value = cursor.position
        is_container = yield from cursor.skip(bounds)
        if is_container and name != bounds.large_member and cursor.position - value > PIECE_BYTES:
            raise TooLarge(
                f"{name} has {cursor.position - value} bytes.", field=name, limit=PIECE_BYTES
            )
    if cursor.position != end:
        raise BadInput(f"An item has more than {_MAX_MEMBERS} members.", field="body")


class _Cutter:
    """Collects items into pieces."""

    def __init__(self, bounds: Bounds, name: str) -> None:
        self.count = 0
        self._pieces: list[Piece] = []
        self._bounds = bounds
        self._name = name
        self._begin = self._end = self._first = 0

    def add(self, begin: int, end: int) -> None:
        """Add the item between two positions."""
        if self.count >= self._bounds.items:
            raise TooLarge(
                f"{self._name} has more than {self._bounds.items} items.",
                field=self._name,
                limit=self._bounds.items,
            )
        inside = self.count - self._first
        if inside and (inside >= self._bounds.piece_items or end - self._begin > PIECE_BYTES):
            self._cut()
        if self._first == self.count:
            self._begin = begin
        self._end = end
        self.count += 1

    def finish(self) -> list[Piece]:
        """All pieces."""
        if self.count > self._first:
            self._cut()
        return self._pieces

    def _cut(self) -> None:
        count = self.count - self._first
        self._pieces.append(Piece(self._begin, self._end, self._first, count))
        self._first = self.count
