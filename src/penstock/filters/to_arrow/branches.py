"""Splits a filter into branches of one condition per source, which ``many`` decides by value.

A filter is TRUE iff one of its branches is, and a branch iff all its parts are. A part that
reads one source has the same verdict for the same value, so it is decided once per value (a
*gate*). Parts that read several sources remain as ``rest``. Splitting preserves three-valued
logic: NOT is pushed down to the leaves by De Morgan's laws, which hold for NULL too (R1).

``parts_read`` says which types of a header can affect a filter. ``amount > 5`` is NULL for a string
as it is for a missing header, so the strings need not be read for it. Only ``IS NULL`` and
``coalesce`` depend on the presence of a value of any type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, TypeAlias, assert_never

from msgspec import Struct

from penstock.filters import tree as t
from penstock.filters.access import Source
from penstock.filters.to_arrow.batch import PARTS

__all__ = ["MAX_BRANCHES", "Branch", "GateKey", "branches", "constants", "parts_read", "sources"]

#: A filter that would have more branches keeps some of its ORs unsplit, in ``rest``.
MAX_BRANCHES: Final = 16

#: A source, and whether the conditions on it are plain (see :func:`is_plain`).
GateKey: TypeAlias = tuple[Source, bool]
_Line: TypeAlias = tuple[t.Condition, ...]

_TOPIC: Final = t.Field("topic")

#: The name of a header, and some of its types.
_Read: TypeAlias = tuple[str, str]

_TEXT: Final = "s"
_NUMBER: Final = "id"
_TRUTH: Final = "b"
_NOTHING: Final = ""


class Branch(Struct, frozen=True):
    """Conditions that all have to be TRUE, at most two per source; ``rest`` reads several."""

    gates: tuple[tuple[GateKey, t.Condition], ...]
    rest: t.Condition | None


def branches(tree: t.Condition) -> tuple[Branch, ...]:
    """Return the branches of ``tree``: it is TRUE iff one of them is."""
    return tuple(map(_branch, dict.fromkeys(_lines(tree, True))))


def is_plain(condition: t.Condition, source: Source) -> bool:
    """Whether only the constants of ``condition`` divide the values of ``source`` into classes.

    Then all numbers between the same two constants have the same verdict, and so do all strings
    that are not among the constants.
    """
    match condition:
        case t.And(operands) | t.Or(operands):
            return all(is_plain(operand, source) for operand in operands)
        case t.Not(operand):
            return is_plain(operand, source)
        case t.Compare(operator, left, right):
            ordered = operator not in ("=", "<>") and (
                isinstance(left, t.Text) or isinstance(right, t.Text)
            )
            return not ordered and _simple(left, source) and _simple(right, source)
        case t.In(operand, _):
            return _simple(operand, source)
        case t.Between(operand, low, high):
            bounds = isinstance(low, _NO_TEXT) and isinstance(high, _NO_TEXT)
            return bounds and _simple(operand, source)
        case t.IsNull(operand) | t.Truth(operand):
            return _simple(operand, source)
        case _:
            return False


_NO_TEXT: Final = (t.Integer, t.Float, t.Boolean, t.Null)


def constants(conditions: Iterable[t.Condition]) -> list[t.Text | t.Integer | t.Float]:
    """The strings and numbers that occur in ``conditions``, each once."""
    nodes = (node for condition in conditions for node, _ in t.walk(condition))
    found = (node for node in nodes if isinstance(node, t.Text | t.Integer | t.Float))
    return list(dict.fromkeys(found))


def _simple(value: t.Value, source: Source) -> bool:
    return value == source or isinstance(value, t.Constant)


def _lines(node: t.Condition, wanted: bool) -> list[_Line]:
    """Conjunctions: ``node`` is TRUE (or FALSE, by ``wanted``) iff one of them is TRUE."""
    whole: list[_Line] = [(node if wanted else t.Not(node),)]
    match node:
        case _ if len(sources(node)) <= 1:
            return whole
        case t.Not(operand):
            return _lines(operand, not wanted)
        case t.And(operands) | t.Or(operands) if isinstance(node, t.And) == wanted:
            return _all_of(operands, wanted)
        case t.And(operands) | t.Or(operands):
            lines = [line for operand in operands for line in _lines(operand, wanted)]
            return lines if len(lines) <= MAX_BRANCHES else whole
        case _:
            return whole


def _all_of(operands: tuple[t.Condition, ...], wanted: bool) -> list[_Line]:
    parts: list[list[_Line]] = []
    count = 1
    for operand in operands:
        part = _lines(operand, wanted)
        if count * len(part) > MAX_BRANCHES:
            part = [(operand if wanted else t.Not(operand),)]
        count *= len(part)
        parts.append(part)
    return [sum(choice, ()) for choice in product(*parts)]


def _branch(line: _Line) -> Branch:
    gates: dict[GateKey, list[t.Condition]] = {}
    rest: list[t.Condition] = []
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


def _conjunction(parts: list[t.Condition]) -> t.Condition:
    unique = tuple(dict.fromkeys(parts))
    return unique[0] if len(unique) == 1 else t.And(unique)


def sources(node: t.Condition) -> set[Source]:
    """The fields and headers that ``node`` reads."""
    return {part for part, _ in t.walk(node) if isinstance(part, t.Field | t.Header)}


# -- the types of headers ---------------------------------------------------------------------


def parts_read(conditions: Iterable[t.Condition]) -> dict[str, str]:
    """For each header that is read, by name, the parts of it that matter, in order."""
    found: dict[str, set[str]] = {}
    for condition in conditions:
        for name, parts in _of_condition(condition):
            found.setdefault(name, set()).update(parts)
    return {name: "".join(p for p in PARTS if p in found[name]) for name in sorted(found)}


def _of_condition(node: t.Condition) -> Iterator[_Read]:
    match node:
        case t.And(operands) | t.Or(operands):
            for operand in operands:
                yield from _of_condition(operand)
        case t.Not(condition):
            yield from _of_condition(condition)
        case t.Compare(_, left, right):
            yield from _of_value(left, _like(right))
            yield from _of_value(right, _like(left))
        case t.In(value, items):
            yield from _of_value(value, "".join(map(_like, items)))
        case t.Between(value, low, high):
            yield from _of_value(value, _like(low) + _like(high))
            yield from _of_value(low, _like(value))
            yield from _of_value(high, _like(value))
        case t.Like(value, _, _):
            yield from _of_value(value, _TEXT)
        case t.IsNull(value):
            yield from _of_value(value, PARTS)
        case t.Truth(value):
            yield from _of_value(value, _TRUTH)
        case _:
            assert_never(node)


def _of_value(node: t.Value, wanted: str) -> Iterator[_Read]:
    """What ``node`` reads to produce a value of one of the types ``wanted``."""
    match node:
        case t.Header(name):
            yield name, wanted
        case t.Arithmetic(_, left, right):
            yield from _of_value(left, _NUMBER)
            yield from _of_value(right, _NUMBER)
        case t.Negate(operand):
            yield from _of_value(operand, _NUMBER)
        case t.Call(function, arguments):
            for argument in arguments:
                yield from _of_value(argument, PARTS if function == "coalesce" else _TEXT)
        case _:
            return


def _like(node: t.Value) -> str:
    """The types that can be compared with ``node``."""
    match node:
        case t.Text():
            return _TEXT
        case t.Integer() | t.Float() | t.Arithmetic() | t.Negate():
            return _NUMBER
        case t.Boolean():
            return _TRUTH
        case t.Null():
            return _NOTHING
        case t.Field(name):
            return _TEXT if name in t.TEXT_FIELDS else _NUMBER
        case t.Header() | t.Call():
            return PARTS
        case _:
            assert_never(node)
