"""Splits text into tokens with their positions; the first half of parsing a filter.

The scanner is Penstock's own, because a general SQL tokenizer skips comments, knows a thousand
keywords and splits ``0x1F`` into a number and an alias. It refuses (E1), with the position,
everything that the language lacks, including an operand after an operand, an operator without
one, and nesting that would make the parser recurse too deep. The parser has to handle only
precedence.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from penstock.errors import BadFilter
from penstock.filters.tree import FUNCTIONS, KEYWORDS, MAX_FILTER_DEPTH
from penstock.model.limits import MAX_FILTER_BYTES

__all__ = ["Scanned", "TokenKind", "scan"]

TokenKind: TypeAlias = Literal["name", "quoted", "text", "number", "constant", "function", "sign"]


class Scanned(Struct, frozen=True, gc=False):
    """One token: its kind, its text (a keyword in upper case), and its position."""

    kind: TokenKind
    text: str
    position: int


_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n\f]+)
    | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<comment>--|/\*)
    | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),])
    """,
    re.VERBOSE,
)
_AFTER_NUMBER: Final = re.compile(r"[A-Za-z0-9_.]")
_CONSTANTS: Final = frozenset(("NULL", "TRUE", "FALSE"))
_OPERANDS: Final = frozenset(("name", "quoted", "text", "number", "constant"))
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


def scan(text: str) -> tuple[Scanned, ...]:
    """Return the tokens of ``text``, or raise :class:`BadFilter` at the first bad one."""
    _check_size(text)
    tokens: list[Scanned] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _unexpected(text, position)
        if found.lastgroup != "space":
            tokens.append(_token(text, found))
        position = found.end()
    _check_order(tokens, len(text))
    return tuple(tokens)


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadFilter("The filter has a lone surrogate.", position=error.start) from None
    if size > MAX_FILTER_BYTES:
        raise BadFilter(
            f"The filter has {size} bytes, over the limit of {MAX_FILTER_BYTES}.",
            position=0,
            limit=MAX_FILTER_BYTES,
        )
    if "\x00" in text:
        raise _unexpected(text, text.index("\x00"))


def _unexpected(text: str, position: int) -> BadFilter:
    character = text[position]
    hint = _HINTS.get(character, "names other than A-Z, 0-9 and _ need double quotes")
    return BadFilter(f"Unexpected {character!r} at {position}: {hint}.", position=position)


def _token(text: str, found: re.Match[str]) -> Scanned:
    start, raw = found.start(), found.group()
    match found.lastgroup:
        case "number":
            if _AFTER_NUMBER.match(text, found.end()):
                raise BadFilter(
                    f"The number at {start} is malformed: write 10, 2.5 or 1e6.", position=start
                )
            return Scanned("number", raw, start)
        case "text":
            return Scanned("text", raw[1:-1].replace("''", "'"), start)
        case "quoted":
            if raw == '""':
                raise BadFilter(f"The header name at {start} is empty.", position=start)
            return Scanned("quoted", raw[1:-1].replace('""', '"'), start)
        case "word":
            return _word(text, found)
        case "comment":
            raise BadFilter(
                f"Comments are not part of a filter (at {start}); write - (-x) with brackets.",
                position=start,
            )
        case _:
            return Scanned("sign", "<>" if raw == "!=" else raw, start)


def _word(text: str, found: re.Match[str]) -> Scanned:
    start, raw = found.start(), found.group()
    if raw.upper() in _CONSTANTS:
        return Scanned("constant", raw.upper(), start)
    if raw.upper() in KEYWORDS:
        return Scanned("sign", raw.upper(), start)
    if text[found.end() :].lstrip(" \t\r\n\f").startswith("("):
        if raw.lower() not in FUNCTIONS:
            raise BadFilter(
                f"There is no function {raw!r} (at {start}); there are {', '.join(FUNCTIONS)}.",
                position=start,
            )
        return Scanned("function", raw.lower(), start)
    return Scanned("name", raw, start)


def _check_order(tokens: list[Scanned], end: int) -> None:
    """Refuse sequences that a SQL parser would read as an alias, a star or a concatenation."""
    if not tokens:
        raise BadFilter("The filter is empty; write TRUE to match every message.", position=0)
    depth = _Depth()
    after_operand = False
    previous = ""
    for index, token in enumerate(tokens):
        following = tokens[index + 1].text if index + 1 < len(tokens) else ""
        depth.count(token, after_operand)
        if after_operand:
            after_operand = _after_operand(token, following)
        else:
            after_operand = _before_operand(token, following, previous)
        previous = token.text if token.kind == "sign" else ""
    if not after_operand:
        raise BadFilter(f"The filter ends after {tokens[-1].text!r}.", position=end)
    depth.finish(end)


def _before_operand(token: Scanned, following: str, previous: str) -> bool:
    """Check a token where an operand is expected; return whether it completes one."""
    if token.kind in _OPERANDS:
        return True
    if token.text == "NOT" and previous == "IS" and following != "NULL":
        raise _expected("NULL after IS NOT", token)
    if token.kind == "function" or token.text in ("(", "NOT", "-"):
        return False
    if token.text == ")" and previous == "(":
        raise _expected("something in the brackets before ')'", token)
    raise _expected(f"a name or a literal before {token.text!r}", token)


def _after_operand(token: Scanned, following: str) -> bool:
    """Check a token after a complete operand; return whether one is still complete."""
    if token.kind != "sign" or token.text == "(":
        raise _expected(f"AND, OR or an operator before {token.text!r}", token)
    if token.text == "NOT" and following not in ("IN", "BETWEEN", "LIKE"):
        raise _expected("IN, BETWEEN or LIKE after NOT", token)
    if token.text == "IS" and following not in ("NULL", "NOT"):
        raise _expected("NULL or NOT NULL after IS", token)
    if token.text == "IN" and following != "(":
        raise _expected("a list in brackets after IN", token)
    return token.text in (")", "NOT")


def _expected(what: str, token: Scanned) -> BadFilter:
    return BadFilter(f"Expected {what} at {token.position}.", position=token.position)


class _Depth:
    """Counts open brackets and prefix operators: each makes the parser recurse."""

    def __init__(self) -> None:
        self._outer: list[tuple[int, int]] = []
        self._prefixes = 0
        self._betweens = 0

    def count(self, token: Scanned, after_operand: bool) -> None:
        if token.kind != "sign":
            return
        match token.text:
            case "(":
                self._outer.append((self._prefixes, self._betweens))
                self._betweens = 0
            case ")" if not self._outer:
                raise BadFilter(
                    f"The bracket at {token.position} closes nothing.", position=token.position
                )
            case ")":
                self._prefixes, self._betweens = self._outer.pop()
            case "NOT" | "-" if not after_operand:
                self._prefixes += 1
            case "BETWEEN":
                self._betweens += 1
            case "AND" if self._betweens:
                # The AND of a BETWEEN ends no operand, so open prefixes stay open.
                self._betweens -= 1
            case "AND" | "OR" | ",":
                self._prefixes = self._outer[-1][0] if self._outer else 0
        if len(self._outer) + self._prefixes > MAX_FILTER_DEPTH:
            raise BadFilter(
                f"The filter nests deeper than {MAX_FILTER_DEPTH} at {token.position}.",
                position=token.position,
                limit=MAX_FILTER_DEPTH,
            )

    def finish(self, end: int) -> None:
        if self._outer:
            raise BadFilter("A bracket is not closed at the end of the filter.", position=end)
