"""Walks through Avro's binary encoding: one function per type that finds where a datum ends.

A walk builds no values and refuses encodings that no writer produces. A type without bytes
has no walk (None) and is dropped when the schema is compiled, so every step advances and the
cost of a walk is linear in the payload. Depth and claimed lengths are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from penstock.broker.nesting import MAX_DEPTH

__all__ = [
    "ENDS_EARLY",
    "MAX_EMPTY_ITEMS",
    "PRIMITIVES",
    "Malformed",
    "Walk",
    "array",
    "enum",
    "fixed",
    "malformed",
    "mapping",
    "record",
    "union",
]

#: Items without bytes, such as nulls, that one array may claim: its readers must create them.
MAX_EMPTY_ITEMS: Final = 10_000
_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10

#: Walks one datum that starts at a position, at a depth; returns where it ends.
Walk: TypeAlias = Callable[[bytes, int, int], int]
ENDS_EARLY: Final = "the payload ends before the datum does"


class Malformed(Exception):
    """The payload is not a datum of the schema; each level appends its step to the path."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str | int] = []


def malformed(error: Malformed | IndexError | UnicodeDecodeError) -> Malformed:
    """The error of a walk as ``Malformed``: reading past the end is an IndexError."""

    if isinstance(error, Malformed):
        return error
    ends_early = isinstance(error, IndexError)
    return Malformed(ENDS_EARLY if ends_early else "the text is not valid UTF-8")


def _inside(error: Malformed | IndexError | UnicodeDecodeError, place: str | int) -> Malformed:
    found = malformed(error)
    found.path.append(place)
    return found


def _number(data: bytes, at: int, most_bytes: int = _LONG_BYTES) -> tuple[int, int]:
    """A zig-zag number of at most 32 or 64 bits, and where it ends."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number = byte & 0x7F
    for shift in range(7, 7 * most_bytes, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    bits = 32 if most_bytes == _INT_BYTES else 64
    if byte >= 0x80 or number >> bits:
        raise Malformed(f"a number does not fit {bits} bits")
    return (number >> 1) ^ -(number & 1), at


def _walk_boolean(data: bytes, at: int, _: int) -> int:
    if data[at] > 1:
        raise Malformed(f"a boolean is the byte {data[at]}; it must be 0 or 1")
    return at + 1


def _walk_int(data: bytes, at: int, _: int) -> int:
    return at + 1 if data[at] < 0x80 else _number(data, at, _INT_BYTES)[1]


def _walk_long(data: bytes, at: int, _: int) -> int:
    return at + 1 if data[at] < 0x80 else _number(data, at)[1]


def _walk_bytes(data: bytes, at: int, _: int) -> int:
    length, at = _number(data, at)
    if not 0 <= length <= len(data) - at:
        raise Malformed(f"a length of {length} bytes is claimed; {len(data) - at} are left")
    return at + length


def _walk_string(data: bytes, at: int, _: int) -> int:
    length, at = _number(data, at)
    if not 0 <= length <= len(data) - at:
        raise Malformed(f"a length of {length} bytes is claimed; {len(data) - at} are left")
    end = at + length
    data[at:end].decode()
    return end


def fixed(size: int) -> Walk:
    """A number of bytes."""

    def walk(_: bytes, at: int, __: int) -> int:
        # The next read, or the final length check, detects an end beyond the payload.
        return at + size

    return walk


PRIMITIVES: Final[dict[str, Walk | None]] = {
    "null": None,
    "boolean": _walk_boolean,
    "int": _walk_int,
    "long": _walk_long,
    "float": fixed(4),
    "double": fixed(8),
    "bytes": _walk_bytes,
    "string": _walk_string,
}


def enum(symbols: int) -> Walk:
    """The index of one of ``symbols`` symbols."""

    def walk(data: bytes, at: int, _: int) -> int:
        index, at = _number(data, at, _INT_BYTES)
        if not 0 <= index < symbols:
            raise Malformed(f"an enum has symbol {index}; there are {symbols}")
        return at

    return walk


def union(branches: Sequence[Walk | None]) -> Walk:
    """The index of a branch, then a datum of that branch."""

    def walk(data: bytes, at: int, depth: int) -> int:
        index, at = _number(data, at, _INT_BYTES)
        if not 0 <= index < len(branches):
            raise Malformed(f"a union has branch {index}; there are {len(branches)}")
        branch = branches[index]
        return at if branch is None else branch(data, at, depth)

    return walk


def record(fields: Sequence[tuple[str, Walk]]) -> Walk:
    """The fields that take bytes, one after another."""

    def walk(data: bytes, at: int, depth: int) -> int:
        _check_depth(depth)
        name = ""
        try:
            for name, field in fields:  # noqa: B007  (the name is for the error)
                at = field(data, at, depth + 1)
        except (Malformed, IndexError, UnicodeDecodeError) as error:
            raise _inside(error, name) from None
        return at

    return walk


def array(item: Walk | None) -> Walk:
    """Items, in blocks."""

    def walk(data: bytes, at: int, depth: int) -> int:
        _check_depth(depth)
        items = 0
        try:
            while True:
                count, at, end = _block(data, at)
                if not count:
                    return at
                if item is None:
                    items += count
                    if items > MAX_EMPTY_ITEMS:
                        raise Malformed(f"more than {MAX_EMPTY_ITEMS} items without bytes")
                else:
                    _check_count(count, data, at)
                    for _ in range(count):
                        at = item(data, at, depth + 1)
                        items += 1
                _check_end(at, end)
        except (Malformed, IndexError, UnicodeDecodeError) as error:
            raise _inside(error, items) from None

    return walk


def mapping(value: Walk | None) -> Walk:
    """Keys with their values, in blocks."""

    def entry(data: bytes, at: int, depth: int) -> int:
        at = _walk_string(data, at, 0)
        return at if value is None else value(data, at, depth)

    return array(entry)


def _block(data: bytes, at: int) -> tuple[int, int, int | None]:
    """The next block: its item count, its start and, if the block states it, its end."""
    count, at = _number(data, at)
    if count >= 0:
        return count, at, None
    size, at = _number(data, at)
    return -count, at, at + size


def _check_count(count: int, data: bytes, at: int) -> None:
    # Each item takes at least one byte, so a count beyond the end is refused before the work.
    if count > len(data) - at:
        raise Malformed(f"{count} items are claimed; {max(0, len(data) - at)} bytes are left")


def _check_end(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise Malformed("a block is not as long as it says")


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise Malformed(f"it is nested deeper than {MAX_DEPTH} levels")
