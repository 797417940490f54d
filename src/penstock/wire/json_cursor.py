"""A cursor over JSON. It finds the end of a value by its quotes and brackets alone."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from penstock.errors import BadInput, TooLarge
from penstock.wire.splitting import Bounds, Steps

__all__ = ["JsonCursor"]

_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_SCALAR: Final = re.compile(rb"[-+.0-9A-Za-z]++")
_BRACKET: Final = re.compile(rb'["\[\]{}]')
#: A part of a string up to its closing quote, or to the end of the window.
_IN_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
#: Bytes that one match scans: about a quarter of a millisecond.
_WINDOW: Final = 64 * 1024
#: Brackets and strings scanned before other calls get their turn: a few milliseconds.
_TOKENS_A_STEP: Final = 2_000
#: The longest member name that is decoded.
_MAX_NAME: Final = 1_024

_name: Final = msgspec.json.Decoder(str)


class JsonCursor:
    """A position in a JSON text."""

    __slots__ = ("_body", "_end", "_first", "position")

    empty_array: Final = b"[]"

    def __init__(self, body: bytes, position: int, end: int) -> None:
        self._body = body
        self._end = end
        self.position = position
        #: Whether the next member or item is the first of its container: no comma before it.
        self._first = False

    def begin_object(self) -> None:
        """Move into an object."""
        if self._here() != b"{":
            raise BadInput("The body cannot be read: Expected `object`.", field="body")
        self.position += 1
        self._first = True

    def next_key(self) -> str | None:
        """Move to the value of the next member."""
        if not self._next(b"}"):
            return None
        begin = self.position
        if self._here() != b'"':
            raise self._malformed()
        self._skip_name()
        name = self._body[begin : self.position]
        if self._here() != b":":
            raise self._malformed()
        self.position += 1
        self._here()
        try:
            return _name.decode(name)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._malformed() from error

    def begin_array(self) -> bool:
        """Move into an array."""
        if self._here() != b"[":
            return False
        self.position += 1
        self._first = True
        return True

    def next_item(self) -> bool:
        """Move to the next item."""
        return self._next(b"]")

    def skip(self, bounds: Bounds) -> Steps[bool]:
        """Move past a value."""
        first = self._here()
        begin = self.position
        most = bounds.item_bytes
        if first == b'"':
            yield from self._skip_string()
        elif first in (b"{", b"["):
            yield from self._skip_container(most)
        else:
            window = min(self._end, self.position + _WINDOW)
            scalar = _SCALAR.match(self._body, self.position, window)
            if scalar is None:
                raise self._malformed()
            if scalar.end() == window < self._end:
                raise TooLarge("A number of the body is too long.", field="body", limit=_WINDOW)
            self.position = scalar.end()
        self._first = False
        _check_size(begin, self.position, most)
        return first in (b"{", b"[")

    def _skip_container(self, most: int) -> Steps[None]:
        body, begin, end = self._body, self.position, self._end
        depth = 0
        tokens = 0
        while True:
            window = min(end, self.position + _WINDOW)
            found = _BRACKET.search(body, self.position, window)
            tokens += 1
            if tokens >= _TOKENS_A_STEP or found is None:
                tokens = 0
                _check_size(begin, self.position, most)
                yield
            if found is None:
                if window == end:
                    raise self._malformed()
                self.position = window
                continue
            self.position = found.start()
            bracket = found[0]
            if bracket == b'"':
                yield from self._skip_string()
                continue
            self.position += 1
            depth += 1 if bracket in b"{[" else -1
            if not depth:
                return

    def _skip_name(self) -> None:
        """Move past the name of a member, scanning no more than the longest allowed name."""
        window = min(self._end, self.position + _MAX_NAME)
        matched = _IN_STRING.match(self._body, self.position + 1, window)
        if matched is None or matched.end() >= window or self._body[matched.end()] != ord('"'):
            raise self._malformed()
        self.position = matched.end() + 1

    def _skip_string(self) -> Steps[None]:
        body, end = self._body, self._end
        begin = self.position + 1
        quote = body.find(b'"', begin, end)
        if quote >= 0 and body.find(b"\\", begin, quote) < 0:
            self.position = quote + 1
            return
        while True:
            window = min(end, begin + _WINDOW)
            matched = _IN_STRING.match(body, begin, window)
            assert matched is not None
            if matched.end() < window and body[matched.end()] == ord('"'):
                self.position = matched.end() + 1
                return
            if matched.end() == begin or window == end:
                raise self._malformed()
            begin = matched.end()
            yield

    def _next(self, closing: bytes) -> bool:
        here = self._here()
        if here == closing:
            self.position += 1
            self._first = False
            return False
        if not self._first:
            if here != b",":
                raise self._malformed()
            self.position += 1
            self._here()
        self._first = False
        return True

    def _here(self) -> bytes:
        """The next byte that is not white space; empty at the end."""
        window = min(self._end, self.position + _WINDOW)
        space = _SPACE.match(self._body, self.position, window)
        assert space is not None
        self.position = space.end()
        if self.position == window < self._end:
            raise BadInput("The body has too much white space.", field="body", limit=_WINDOW)
        return self._body[self.position : min(self.position + 1, self._end)]

    def _malformed(self) -> BadInput:
        return BadInput(
            f"The body cannot be read: JSON is malformed (byte {self.position}).", field="body"
        )


def _check_size(begin: int, end: int, most: int) -> None:
    if end - begin > most:
        raise TooLarge(
            "A value of the body is larger than any message may be.", field="body", limit=most
        )
