"""Splits a filter into branches of one condition per source, which ``many`` decides by value.

A filter is TRUE iff one of its branches is, and a branch iff all its parts are. A part that
reads one source has the same verdict for the same value, so it is decided once per value (a
*gate*). Parts that read several sources remain as ``rest``. Splitting preserves three-valued
logic: NOT is pushed down to the leaves by De Morgan's laws, which hold for NULL too (R1).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.filters.access import Source
from penstock.filters.tree import (
    And,
    Between,
    Boolean,
    Compare,
    Condition,
    Constant,
    Field,
    Float,
    Header,
    In,
    Integer,
    IsNull,
    Not,
    Null,
    Or,
    Text,
    Truth,
    Value,
    walk,
)

__all__ = ["MAX_BRANCHES", "Branch", "GateKey", "branches", "constants", "is_plain", "sources"]

#: A filter that would have more branches keeps some of its ORs unsplit, in ``rest``.
MAX_BRANCHES: Final = 16

#: A source, and whether the conditions on it are plain (see :func:`is_plain`).
GateKey: TypeAlias = tuple[Source, bool]
_Line: TypeAlias = tuple[Condition, ...]

_TOPIC: Final = Field("topic")


class Branch(Struct, frozen=True):
    """Conditions that all have to be TRUE, at most two per source; ``rest`` reads several."""

    gates: tuple[tuple[GateKey, Condition], ...]
    rest: Condition | None


def branches(tree: Condition) -> tuple[Branch, ...]:
    """Return the branches of ``tree``: it is TRUE iff one of them is."""
    return tuple(map(_branch, dict.fromkeys(_lines(tree, True))))


def is_plain(condition: Condition, source: Source) -> bool:
    """Whether only the constants of ``condition`` divide the values of ``source`` into classes.

    Then all numbers between the same two constants have the same verdict, and so do all strings
    that are not among the constants.
    """
    match condition:
        case And(operands) | Or(operands):
            return all(is_plain(operand, source) for operand in operands)
        case Not(operand):
            return is_plain(operand, source)
        case Compare(operator, left, right):
            ordered = operator not in ("=", "<>") and (
                isinstance(left, Text) or isinstance(right, Text)
            )
            return not ordered and _simple(left, source) and _simple(right, source)
        case In(operand, _):
            return _simple(operand, source)
        case Between(operand, low, high):
            bounds = isinstance(low, _NO_TEXT) and isinstance(high, _NO_TEXT)
            return bounds and _simple(operand, source)
        case IsNull(operand) | Truth(operand):
            return _simple(operand, source)
        case _:
            return False


_NO_TEXT: Final = (Integer, Float, Boolean, Null)


def constants(conditions: Iterable[Condition]) -> list[Text | Integer | Float]:
    """The strings and numbers that occur in ``conditions``, each once."""
    nodes = (node for condition in conditions for node, _ in walk(condition))
    return list(dict.fromkeys(node for node in nodes if isinstance(node, Text | Integer | Float)))


def _simple(value: Value, source: Source) -> bool:
    return value == source or isinstance(value, Constant)


def _lines(node: Condition, wanted: bool) -> list[_Line]:
    """Conjunctions, one of which is TRUE iff ``node`` is TRUE (or FALSE, by ``wanted``)."""
    whole: list[_Line] = [(node if wanted else Not(node),)]
    match node:
        case _ if len(sources(node)) <= 1:
            return whole
        case Not(operand):
            return _lines(operand, not wanted)
        case And(operands) | Or(operands) if isinstance(node, And) == wanted:
            return _all_of(operands, wanted)
        case And(operands) | Or(operands):
            lines = [line for operand in operands for line in _lines(operand, wanted)]
            return lines if len(lines) <= MAX_BRANCHES else whole
        case _:
            return whole


def _all_of(operands: tuple[Condition, ...], wanted: bool) -> list[_Line]:
    parts: list[list[_Line]] = []
    count = 1
    for operand in operands:
        part = _lines(operand, wanted)
        if count * len(part) > MAX_BRANCHES:
            part = [(operand if wanted else Not(operand),)]
        count *= len(part)
        parts.append(part)
    return [sum(choice, ()) for choice in product(*parts)]


def _branch(line: _Line) -> Branch:
    gates: dict[GateKey, list[Condition]] = {}
    rest: list[Condition] = []
    for part in line:
        read = sources(part)
        if len(read) > 1:
            rest.append(part)
            continue
        # A part that reads nothing is the same for every topic.
        source = next(iter(read), _TOPIC)
        gates.setdefault((source, is_plain(part, source)), []).append(part)
    return Branch(
        tuple((key, _conjunction(parts)) for key, parts in gates.items()),
        _conjunction(rest) if rest else None,
    )


def _conjunction(parts: list[Condition]) -> Condition:
    unique = tuple(dict.fromkeys(parts))
    return unique[0] if len(unique) == 1 else And(unique)


def sources(node: Condition) -> set[Source]:
    """The fields and headers that ``node`` reads."""
    return {part for part, _ in walk(node) if isinstance(part, Field | Header)}
