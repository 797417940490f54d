"""A cursor over MessagePack, in which every value states its length or its item count."""

from __future__ import annotations

from typing import Final

from penstock.errors import BadInput, TooLarge
from penstock.wire.splitting import Bounds, Steps

__all__ = ["MsgpackCursor", "array_header", "array_items"]

#: Values scanned before other calls get their turn, about two milliseconds.
_TOKENS_A_STEP: Final = 8_000
_MAX_NAME: Final = 1_024


def _sizes() -> list[int]:
    """The size of a value by its first byte; 0 if it is not fixed."""
    sizes = [1] * 128 + [0] * 32 + [1 + length for length in range(32)] + [0] * 32 + [1] * 32
    for code, size in {
        0xC0: 1,
        0xC2: 1,
        0xC3: 1,
        0xCA: 5,
        0xCB: 9,
        0xCC: 2,
        0xCD: 3,
        0xCE: 5,
        0xCF: 9,
        0xD0: 2,
        0xD1: 3,
        0xD2: 5,
        0xD3: 9,
        0xD4: 3,
        0xD5: 4,
        0xD6: 6,
        0xD7: 10,
        0xD8: 18,
    }.items():
        sizes[code] = size
    return sizes


_SIZES: Final = _sizes()
#: By first byte: the size of the length of bytes, text or an extension, and the number of bytes
#: between it and the content.
_LENGTHS: Final = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
#: By first byte: the size of the count of an array or a map.
_COUNTS: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_ARRAYS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))


def array_header(count: int) -> bytes:
    """The header of an array of ``count`` items."""
    return b"\xdd" + count.to_bytes(4, "big")


def array_items(array: bytes) -> bytes:
    """The items of an encoded array, without its header."""
    return array[1 + _COUNTS.get(array[0], 0) :]


class MsgpackCursor:
    """A position in MessagePack."""

    __slots__ = ("_body", "_end", "_left", "position")

    empty_array: Final = b"\x90"

    def __init__(self, body: bytes, position: int, end: int) -> None:
        self._body = body
        self._end = end
        self.position = position
        #: Remaining members or items per container, the innermost last.
        self._left: list[int] = []

    def begin_object(self) -> None:
        """Move into an object."""
        if self._code() not in _MAPS:
            raise BadInput("The body cannot be read: Expected `object`.", field="body")
        self._left.append(self._count())

    def next_key(self) -> str | None:
        """Move to the value of the next member."""
        if not self.next_item():
            return None
        begin = self.position
        code = self._code()
        if not (0xA0 <= code < 0xC0 or 0xD9 <= code <= 0xDB):
            raise self._malformed()
        self._skip_one(code)
        size = self.position - begin
        if size > _MAX_NAME:
            raise self._malformed()
        head = 1 if code < 0xC0 else 1 + _LENGTHS[code][0]
        try:
            return self._body[begin + head : self.position].decode()
        except UnicodeDecodeError as error:
            raise self._malformed() from error

    def begin_array(self) -> bool:
        """Move into an array."""
        if self._code() not in _ARRAYS:
            return False
        self._left.append(self._count())
        return True

    def next_item(self) -> bool:
        """Move to the next item."""
        if not self._left[-1]:
            self._left.pop()
            return False
        self._left[-1] -= 1
        return True

    def skip(self, bounds: Bounds) -> Steps[bool]:
        """Move past a value."""
        most_bytes, most_tokens = bounds.item_bytes, bounds.item_tokens
        begin = self.position
        first = self._code()
        pending = 1
        tokens = 0
        body, end, sizes = self._body, self._end, _SIZES
        while pending:
            position = self.position
            if position >= end:
                raise self._malformed()
            code = body[position]
            size = sizes[code]
            pending -= 1
            tokens += 1
            if size:
                self.position = position + size
            elif code in _LENGTHS:
                self._skip_one(code)
            elif code in _ARRAYS:
                pending += self._count()
            elif code in _MAPS:
                pending += 2 * self._count()
            else:
                raise self._malformed()
            if tokens > most_tokens or self.position - begin > most_bytes:
                raise TooLarge(
                    "A value of the body is larger than any message may be.",
                    field="body",
                    limit=most_bytes,
                )
            if not tokens % _TOKENS_A_STEP:
                yield
        if self.position > end:
            raise self._malformed()
        return first in _ARRAYS or first in _MAPS

    def _skip_one(self, code: int) -> None:
        """Move past bytes, text or an extension."""
        size = _SIZES[code]
        if not size:
            width, between = _LENGTHS[code]
            size = 1 + width + between + self._number(width)
        self.position += size
        if self.position > self._end:
            raise self._malformed()

    def _count(self) -> int:
        """Move into a container; returns its number of members or items."""
        code = self._code()
        if code in _COUNTS:
            count = self._number(_COUNTS[code])
            self.position += 1 + _COUNTS[code]
        else:
            count = code & 0x0F
            self.position += 1
        if count > self._end - self.position:
            # Each item takes at least one byte.
            raise self._malformed()
        return count

    def _number(self, width: int) -> int:
        begin = self.position + 1
        return int.from_bytes(self._body[begin : begin + width], "big")

    def _code(self) -> int:
        if self.position >= self._end:
            raise self._malformed()
        return self._body[self.position]

    def _malformed(self) -> BadInput:
        return BadInput(
            f"The body cannot be read: MessagePack is malformed (byte {self.position}).",
            field="body",
        )
