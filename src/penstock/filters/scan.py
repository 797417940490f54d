"""Splits text into tokens with their positions; the first half of parsing a filter.

The scanner is Penstock's own, because a general SQL tokenizer skips comments, knows a thousand
keywords and splits ``0x1F`` into a number and an alias. It refuses (E1), with the position,
every character and word that the language lacks. The parser refuses tokens in the wrong order.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from penstock.errors import BadFilter
from penstock.filters.tree import FUNCTIONS, KEYWORDS
from penstock.model.limits import MAX_FILTER_BYTES

__all__ = ["Scanned", "TokenKind", "scan"]

TokenKind: TypeAlias = Literal[
    "name", "quoted", "text", "number", "constant", "function", "sign", "end"
]


class Scanned(Struct, frozen=True, gc=False):
    """One token: its kind, its text (a keyword in upper case), and where it starts and ends."""

    kind: TokenKind
    text: str
    position: int
    end: int


_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n\f]+)
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<comment>--|/\*)
    | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),])
    """,
    re.VERBOSE,
)
_AFTER_NUMBER: Final = re.compile(r"[A-Za-z0-9_.]")
_BRACKET: Final = re.compile(r"[ \t\r\n\f]*\(")
_CONSTANTS: Final = frozenset(("NULL", "TRUE", "FALSE"))
_HINTS: Final = {
    "'": "the string is not closed; write a quote inside it as ''",
    '"': 'the quoted name is not closed; write a quote inside it as ""',
    ".": 'names have no dots unless quoted: write "a.b" in double quotes',
    ";": "a filter is one expression, without a semicolon",
    ":": "there are no casts and no parameters in a filter",
    "|": "strings are not concatenated in a filter",
    "`": "quote a header name with double quotes",
    "[": "quote a header name with double quotes",
    "\x00": "a filter has no NUL characters",
}


def scan(text: str) -> list[Scanned]:
    """Return the tokens of ``text``, or raise :class:`BadFilter` at the first bad one.

    The last token has the kind ``end``.
    """
    _check_size(text)
    tokens: list[Scanned] = []
    position = 0
    match = _TOKEN.match
    while position < len(text):
        found = match(text, position)
        if found is None:
            raise _unexpected(text, position)
        if found.lastgroup != "space":
            tokens.append(_token(text, found))
        position = found.end()
    tokens.append(Scanned("end", "", len(text), len(text)))
    return tokens


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadFilter(
            "The filter has a lone surrogate.", position=error.start, end=error.end
        ) from None
    if size > MAX_FILTER_BYTES:
        raise BadFilter(
            f"The filter has {size} bytes, over the limit of {MAX_FILTER_BYTES}.",
            position=0,
            end=len(text),
            limit=MAX_FILTER_BYTES,
        )
    if "\x00" in text:
        raise _unexpected(text, text.index("\x00"))


def _unexpected(text: str, position: int) -> BadFilter:
    character = text[position]
    hint = _HINTS.get(character, "names other than A-Z, 0-9 and _ need double quotes")
    # A string that is not closed extends to the end of the text.
    end = len(text) if character in "'\"" else position + 1
    return BadFilter(f"Unexpected {character!r} at {position}: {hint}.", position=position, end=end)


def _token(text: str, found: re.Match[str]) -> Scanned:
    start, end, raw = found.start(), found.end(), found.group()
    match found.lastgroup:
        case "sign":
            return Scanned("sign", "<>" if raw == "!=" else raw, start, end)
        case "word":
            return _word(text, raw, start, end)
        case "text":
            return Scanned("text", raw[1:-1].replace("''", "'"), start, end)
        case "number":
            if _AFTER_NUMBER.match(text, end):
                raise BadFilter(
                    f"The number at {start} is malformed: write 10, 2.5 or 1e6.",
                    position=start,
                    end=end + 1,
                )
            return Scanned("number", raw, start, end)
        case "quoted":
            if raw == '""':
                raise BadFilter(f"The header name at {start} is empty.", position=start, end=end)
            return Scanned("quoted", raw[1:-1].replace('""', '"'), start, end)
        case _:
            raise BadFilter(
                f"Comments are not part of a filter (at {start}); write - (-x) with brackets.",
                position=start,
                end=end,
            )


def _word(text: str, raw: str, start: int, end: int) -> Scanned:
    upper = raw.upper()
    if upper in _CONSTANTS:
        return Scanned("constant", upper, start, end)
    if upper in KEYWORDS:
        return Scanned("sign", upper, start, end)
    if _BRACKET.match(text, end):
        if raw.lower() not in FUNCTIONS:
            raise BadFilter(
                f"There is no function {raw!r} (at {start}); there are {', '.join(FUNCTIONS)}.",
                position=start,
                end=end,
            )
        return Scanned("function", raw.lower(), start, end)
    return Scanned("name", raw, start, end)
