"""Word patterns for dotted names: ``*`` is exactly one word, ``#`` any number of words, also none.

A text is split at its dots; the empty text has no words, and ``a..b`` has an empty one in the
middle. This is the topic matching of AMQP. A pattern is a LIKE pattern whose characters are words,
so the matcher of :mod:`penstock.filters.like` decides it, in time linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from penstock.filters.like import ONE, One, Pattern, Piece, bitwise

__all__ = ["exact_words", "parse_words", "words_matcher"]

#: Matchers of constant patterns; the compilers hold their own, so this serves ``explain`` only.
_KEPT: Final = 1_024


def parse_words(pattern: str) -> Pattern:
    """Split ``pattern``; raise :class:`ValueError` with the reason if it is malformed."""
    pieces: list[Piece] = []
    piece: list[str | One] = []
    for word in _split(pattern):
        if word == "#":
            pieces.append(tuple(piece))
            piece = []
        elif word == "*":
            piece.append(ONE)
        elif "*" in word or "#" in word:
            raise ValueError(f"* and # stand for whole words, not for a part of {word!r}")
        else:
            piece.append(word)
    pieces.append(tuple(piece))
    return Pattern(tuple(pieces))


def exact_words(pattern: str) -> bool:
    """Whether ``pattern`` has no wildcard, so that it matches only itself."""
    return "*" not in pattern and "#" not in pattern


@lru_cache(maxsize=_KEPT)
def words_matcher(pattern: str) -> Callable[[str], bool]:
    """Return the fastest linear matcher for ``pattern``, which has been checked."""
    if exact_words(pattern):
        return pattern.__eq__
    if pattern == "#":
        return lambda _: True
    start = pattern.removesuffix(".#")
    if start and start != pattern and exact_words(start):
        prefix = start + "."
        return lambda text: text.startswith(prefix) or text == start
    matches = bitwise(parse_words(pattern))
    return lambda text: matches(_split(text))


def _split(text: str) -> list[str]:
    return text.split(".") if text else []
