"""What an editor needs: whether a text is a filter, where it is wrong, and how it may go on.

Both functions are pure and work without a server. ``complete`` reads only the text before the
cursor, so it also works in the middle of a filter that does not parse yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from penstock.errors import BadFilter, BadInput, TooLarge
from penstock.filters import tree as t
from penstock.filters.filter import parse
from penstock.filters.scan import Scanned, scan
from penstock.filters.to_text import name_text

__all__ = [
    "MAX_COMPLETIONS",
    "MAX_KNOWN_HEADERS",
    "Completion",
    "CompletionKind",
    "Completions",
    "Diagnosis",
    "complete",
    "validate",
]

#: More are no help to a person who types.
MAX_COMPLETIONS: Final = 200
MAX_KNOWN_HEADERS: Final = 1_000

CompletionKind: TypeAlias = Literal["field", "header", "function", "keyword", "operator"]


class Diagnosis(Struct, frozen=True):
    """Whether a text is a filter; if not, the reason and the part of the text to blame."""

    valid: bool
    message: str | None = None
    position: int | None = None
    """Offset in characters of the first character to blame."""
    end: int | None = None
    """Offset after the last one; equal to ``position`` if something is missing there."""
    limit: int | str | None = None
    """The limit that the filter exceeds."""
    indexed: bool | None = None
    """Whether most messages need not evaluate the filter; None if it is not valid."""
    fields: tuple[str, ...] = ()
    """The system fields that the filter reads."""
    headers: tuple[str, ...] = ()
    """The headers that the filter reads."""


class Completion(Struct, frozen=True):
    """One way to go on: ``text`` replaces the range of :class:`Completions`."""

    text: str
    kind: CompletionKind


class Completions(Struct, frozen=True):
    """How a filter may go on at the cursor: the range to replace, and what with."""

    start: int
    end: int
    items: tuple[Completion, ...]


def validate(text: str) -> Diagnosis:
    """Check ``text`` without raising."""
    try:
        checked = parse(text)
    except BadFilter as error:
        return Diagnosis(False, error.detail, error.position, error.end, error.limit)
    nodes = [node for node, _ in t.walk(checked.tree, with_items=False)]
    return Diagnosis(
        True,
        indexed=checked.indexed,
        fields=tuple(sorted({node.name for node in nodes if isinstance(node, t.Field)})),
        headers=tuple(sorted({node.name for node in nodes if isinstance(node, t.Header)})),
    )


def complete(text: str, cursor: int, headers: Iterable[str] = ()) -> Completions:
    """The completions of ``text`` at the offset ``cursor``, for these known header names.

    There are none within a string, a number or a text that cannot be scanned.
    """
    known = _check(text, cursor, headers)
    start, typed = _typed(text, cursor)
    end = cursor if typed.startswith('"') else _end_of_word(text, cursor)
    try:
        tokens = scan(text[:start])[:-1]
    except BadFilter:
        return Completions(cursor, cursor, ())
    found = (item for item in _expected(tokens, start, known) if _fits(item, typed))
    items = tuple(item for item, _ in zip(found, range(MAX_COMPLETIONS), strict=False))
    return Completions(start, end, items)


def _check(text: object, cursor: object, headers: Iterable[str]) -> list[str]:
    if not isinstance(text, str):
        raise BadInput(f"text is {type(text).__name__}; it must be text.", field="text")
    if type(cursor) is not int or not 0 <= cursor <= len(text):
        raise BadInput(
            f"cursor must be an offset in the text, from 0 to {len(text)}.",
            field="cursor",
            limit=len(text),
        )
    known = list(headers)
    if not all(isinstance(name, str) for name in known):
        raise BadInput("headers must be a list of names.", field="headers")
    if len(known) > MAX_KNOWN_HEADERS:
        raise TooLarge(
            f"{len(known)} headers are too many; at most {MAX_KNOWN_HEADERS}.",
            field="headers",
            limit=MAX_KNOWN_HEADERS,
        )
    return sorted(set(known) - {""})


_WORD_BEFORE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_WORD_AFTER: Final = re.compile(r"[A-Za-z0-9_]*")
_CLOSED: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[^'"]""")


def _typed(text: str, cursor: int) -> tuple[int, str]:
    """Where the word or quoted name at the cursor begins, and its part before the cursor."""
    before = text[:cursor]
    place = 0
    while place < cursor:
        closed = _CLOSED.match(before, place)
        if closed is None:
            # A quote is open. In a string nothing is completed; the scanner will refuse it.
            return (cursor, "") if before[place] == "'" else (place, before[place:])
        place = closed.end()
    word = _WORD_BEFORE.search(before)
    return (cursor, "") if word is None else (word.start(), word.group())


def _end_of_word(text: str, cursor: int) -> int:
    found = _WORD_AFTER.match(text, cursor)
    return cursor if found is None else found.end()


def _fits(item: Completion, typed: str) -> bool:
    if typed.startswith('"'):
        return item.kind == "header" and f'"{_unquoted(item.text)}'.startswith(
            typed.replace('""', '"')
        )
    word = typed.lower()
    return item.text.lower().startswith(word) or (
        item.kind == "header"
        and item.text.startswith('"')
        and item.text[1:].lower().startswith(word)
    )


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


# -- what may follow --------------------------------------------------------------------------

_COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")
_ARITHMETIC: Final = ("+", "-", "*", "/", "%")
_OPENERS: Final = frozenset(("AND", "OR", "NOT", "("))
_PREDICATES: Final = ("IN (", "NOT IN (", "BETWEEN", "NOT BETWEEN", "LIKE", "NOT LIKE")
_LITERALS: Final = ("TRUE", "FALSE", "NULL")


class _Place(Struct):
    """What the parser would know at the cursor, within the innermost bracket."""

    bracket: str = ""
    """What opened it: ``(``, the name of a function, ``IN``; empty outside of brackets."""
    predicate: str = ""
    """The predicate that has begun since the last AND, OR or comma."""
    bounds: bool = False
    """Whether a BETWEEN waits for its AND."""
    operand: bool = False
    """Whether the last token ends an operand."""


def _expected(tokens: list[Scanned], start: int, headers: list[str]) -> Iterator[Completion]:
    place, last = _place(tokens)
    if tokens and tokens[-1].kind in ("number", "text", "quoted") and tokens[-1].end == start:
        # The cursor touches a number or a quote, which is not finished yet.
        return
    if place.operand:
        yield from _after_operand(place, last)
        return
    match last:
        case "IS":
            yield from _keywords("NULL", "NOT NULL")
        case "IS NOT":
            yield from _keywords("NULL")
        case "operand NOT":
            yield from _keywords("IN (", "BETWEEN", "LIKE")
        case "LIKE" | "ESCAPE" | "function":
            return
        case "IN":
            yield Completion("(", "operator")
        case _ if place.bracket == "IN":
            yield from _keywords(*_LITERALS)
        case _:
            yield from _operands(headers)
            if last in _OPENERS or not last:
                yield from _keywords("NOT")


def _operands(headers: list[str]) -> Iterator[Completion]:
    for name in t.FIELD_NAMES:
        yield Completion(name, "field")
    for header in headers:
        yield Completion(name_text(header), "header")
    for function in t.FUNCTIONS:
        yield Completion(f"{function}(", "function")
    yield from _keywords(*_LITERALS)


def _after_operand(place: _Place, last: str) -> Iterator[Completion]:
    if place.bracket == "IN":
        yield from (Completion(sign, "operator") for sign in (",", ")"))
        return
    if last == "condition":
        signs: tuple[str, ...] = ()
    else:
        signs = _ARITHMETIC if place.predicate else (*_COMPARISONS, *_ARITHMETIC)
    for sign in signs:
        if place.predicate not in ("LIKE", "IS"):
            yield Completion(sign, "operator")
    if place.bounds:
        yield from _keywords("AND")
        return
    if place.bracket in t.FUNCTIONS:
        yield Completion(",", "operator")
    else:
        if not place.predicate and last != "condition":
            yield from _keywords(*_PREDICATES, "IS NULL", "IS NOT NULL")
        if place.predicate == "LIKE":
            yield from _keywords("ESCAPE")
        yield from _keywords("AND", "OR")
    if place.bracket:
        yield Completion(")", "operator")


def _keywords(*words: str) -> Iterator[Completion]:
    return (Completion(word, "keyword") for word in words)


def _place(tokens: list[Scanned]) -> tuple[_Place, str]:
    """The innermost bracket at the end of the tokens, and what the last token was."""
    outer: list[_Place] = []
    place, last = _Place(), ""
    for token in tokens:
        if token.kind == "function":
            last = "function"
            outer.append(place)
            place = _Place(bracket=token.text)
            continue
        if token.kind != "sign":
            place.operand, last = True, "operand"
            continue
        match token.text:
            case "(":
                if last != "function":
                    outer.append(place)
                    place = _Place(bracket="IN" if last == "IN" else "(")
                last = "("
            case ")" if outer:
                inner, place = place, outer.pop()
                place.operand = True
                last = "condition" if inner.bracket == "IN" or inner.predicate else "operand"
            case "NOT":
                last = {"IS": "IS NOT"}.get(last, "operand NOT" if place.operand else "NOT")
                place.operand = False
            case "AND" if place.bounds:
                place.bounds, place.operand, last = False, False, "bound"
            case "AND" | "OR" | ",":
                place.predicate, place.operand, last = "", False, token.text
            case "ESCAPE":
                place.operand, last = False, "ESCAPE"
            case "IN" | "BETWEEN" | "LIKE" | "IS":
                place.predicate, place.operand, last = token.text, False, token.text
                place.bounds = token.text == "BETWEEN"
            case sign:
                if sign in _COMPARISONS:
                    place.predicate = sign
                place.operand, last = False, sign
    return place, last
