"""Which types of a header can affect a filter.

A header may be a string, an integer, a float or a boolean. ``amount > 5`` is NULL for a string
as it is for a missing header, so the strings need not be read for it (R1). Only ``IS NULL`` and
``coalesce`` depend on the presence of a value of any type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias, assert_never

from penstock.filters.to_arrow.batch import PARTS
from penstock.filters.tree import (
    TEXT_FIELDS,
    And,
    Arithmetic,
    Between,
    Boolean,
    Call,
    Compare,
    Condition,
    Field,
    Float,
    Header,
    In,
    Integer,
    IsNull,
    Like,
    Negate,
    Not,
    Null,
    Or,
    Text,
    Truth,
    Value,
)

__all__ = ["parts_read"]

#: The name of a header, and some of its types.
_Read: TypeAlias = tuple[str, str]

_TEXT: Final = "s"
_NUMBER: Final = "id"
_TRUTH: Final = "b"
_NOTHING: Final = ""


def parts_read(conditions: Iterable[Condition]) -> dict[str, str]:
    """For each header that is read, by name, the parts of it that matter, in order."""
    found: dict[str, set[str]] = {}
    for condition in conditions:
        for name, parts in _of_condition(condition):
            found.setdefault(name, set()).update(parts)
    return {name: "".join(p for p in PARTS if p in found[name]) for name in sorted(found)}


def _of_condition(node: Condition) -> Iterator[_Read]:
    match node:
        case And(operands) | Or(operands):
            for operand in operands:
                yield from _of_condition(operand)
        case Not(condition):
            yield from _of_condition(condition)
        case Compare(_, left, right):
            yield from _of_value(left, _like(right))
            yield from _of_value(right, _like(left))
        case In(value, items):
            yield from _of_value(value, "".join(map(_like, items)))
        case Between(value, low, high):
            yield from _of_value(value, _like(low) + _like(high))
            yield from _of_value(low, _like(value))
            yield from _of_value(high, _like(value))
        case Like(value, _, _):
            yield from _of_value(value, _TEXT)
        case IsNull(value):
            yield from _of_value(value, PARTS)
        case Truth(value):
            yield from _of_value(value, _TRUTH)
        case _:
            assert_never(node)


def _of_value(node: Value, wanted: str) -> Iterator[_Read]:
    """What ``node`` reads to produce a value of one of the types ``wanted``."""
    match node:
        case Header(name):
            yield name, wanted
        case Arithmetic(_, left, right):
            yield from _of_value(left, _NUMBER)
            yield from _of_value(right, _NUMBER)
        case Negate(operand):
            yield from _of_value(operand, _NUMBER)
        case Call(function, arguments):
            for argument in arguments:
                yield from _of_value(argument, PARTS if function == "coalesce" else _TEXT)
        case _:
            return


def _like(node: Value) -> str:
    """The types that can be compared with ``node``."""
    match node:
        case Text():
            return _TEXT
        case Integer() | Float() | Arithmetic() | Negate():
            return _NUMBER
        case Boolean():
            return _TRUTH
        case Null():
            return _NOTHING
        case Field(name):
            return _TEXT if name in TEXT_FIELDS else _NUMBER
        case Header() | Call():
            return PARTS
        case _:
            assert_never(node)
