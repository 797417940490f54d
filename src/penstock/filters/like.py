"""LIKE patterns: parsed once, matched in time linear in the text, for any pattern.

``%`` stands for any run of characters and ``_`` for exactly one code point, newlines
included. There is no escape character unless ``ESCAPE`` names one, and it may precede only
``%``, ``_`` or itself. A backtracking regular expression would let one pattern stall a
broker, so none is used: patterns without ``_`` search their pieces from left to right, and
the others track all their positions as the bits of one integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from msgspec import Struct

__all__ = ["ONE", "One", "Pattern", "Piece", "bitwise", "matcher", "parse_pattern"]


class One(Struct, frozen=True):
    """Any one code point."""


ONE: Final = One()

#: The characters between two ``%``: literal ones and :data:`ONE`.
Piece: TypeAlias = tuple[str | One, ...]


class Pattern(Struct, frozen=True):
    """The pieces between the ``%`` of a pattern; one piece means that it has no ``%``."""

    pieces: tuple[Piece, ...]

    @property
    def has_one(self) -> bool:
        """Whether ``_`` occurs."""
        return any(ONE in piece for piece in self.pieces)


def parse_pattern(pattern: str, escape: str | None) -> Pattern:
    """Split ``pattern``; raise :class:`ValueError` with the reason if it is malformed."""
    if escape is not None and len(escape) != 1:
        raise ValueError("ESCAPE takes exactly one character")
    pieces: list[Piece] = []
    piece: list[str | One] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise ValueError(f"the escape {escape!r} may precede only %, _ or itself")
            piece.append(escaped)
        elif character == "%":
            pieces.append(tuple(piece))
            piece = []
        else:
            piece.append(ONE if character == "_" else character)
    pieces.append(tuple(piece))
    return Pattern(tuple(pieces))


def matcher(pattern: Pattern) -> Callable[[str], bool]:
    """Return the fastest linear matcher for ``pattern``."""
    if pattern.has_one:
        return bitwise(pattern)
    texts = ["".join(map(str, piece)) for piece in pattern.pieces]
    first, *middle, last = texts if len(texts) > 1 else [texts[0], ""]
    if len(texts) == 1:
        return first.__eq__
    inner = [text for text in middle if text]
    if not inner:
        return _ends(first, last)
    return _in_order(first, inner, last)


def _ends(first: str, last: str) -> Callable[[str], bool]:
    if not last:
        return lambda text: text.startswith(first)
    if not first:
        return lambda text: text.endswith(last)
    shortest = len(first) + len(last)
    return lambda text: len(text) >= shortest and text.startswith(first) and text.endswith(last)


def _in_order(first: str, inner: list[str], last: str) -> Callable[[str], bool]:
    """Finding each piece as far left as possible needs no backtracking."""

    def matches(text: str) -> bool:
        position, end = len(first), len(text) - len(last)
        if end < position or not text.startswith(first) or not text.endswith(last):
            return False
        for piece in inner:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True

    return matches


def bitwise(pattern: Pattern) -> Callable[[Iterable[str]], bool]:
    """Return a matcher of any pattern, for a text or for a list of words.

    Bit ``n`` of the state means that the first ``n`` pattern characters are matched.
    """
    characters = [character for piece in pattern.pieces for character in piece]
    anything = sum(1 << n for n, character in enumerate(characters) if character is ONE)
    steps: dict[str, int] = {}
    for n, character in enumerate(characters):
        if isinstance(character, str):
            steps[character] = steps.get(character, anything) | 1 << n
    stays = 0
    position = 0
    for piece in pattern.pieces[:-1]:
        position += len(piece)
        stays |= 1 << position
    accepted = 1 << len(characters)

    def matches(text: Iterable[str]) -> bool:
        state = 1
        step = steps.get
        for character in text:
            state = ((state & step(character, anything)) << 1) | (state & stays)
            if not state:
                return False
        return state & accepted != 0

    return matches
