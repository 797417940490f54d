"""The operators of a filter on typed Spark columns: the rules of ``values`` (R1).

Spark differs from the language in these ways, which are corrected here: NaN is the largest number
and equal to itself, integers are rounded before they are compared with doubles, overflow and
division by zero are errors (ANSI), ``lower`` and ``upper`` use Unicode, LIKE has an escape of
its own and backtracks. No row can make a column fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Final, NamedTuple, assert_never

from pyspark.sql import Column
from pyspark.sql import functions as f

from penstock.filters import tree as t
from penstock.filters.like import Pattern, Piece
from penstock.filters.values import MIRROR
from penstock.filters.words import exact_words, parse_words

__all__ = [
    "Typed",
    "arithmetic",
    "call",
    "compare",
    "compare_number",
    "is_in",
    "like",
    "negate",
    "or_null",
    "present",
    "whole",
    "words",
]

_TWO_63: Final = 2.0**63
_CAPITALS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SMALLS: Final = _CAPITALS.lower()

_COMPARE: Final[dict[t.CompareOperator, Callable[[Column, Column], Column]]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Typed(NamedTuple):
    """A value of any type: at most one of the four is set in a row.

    ``None`` instead of a column means that no row has the type.
    """

    text: Column | None = None
    integer: Column | None = None
    real: Column | None = None
    truth: Column | None = None


def whole(value: int) -> Column:
    """``value`` as an int64, even if it is small."""
    return f.lit(value).cast("bigint")


def or_null(column: Column | None, type_: str) -> Column:
    """``column``, or NULL of its type if no row has one."""
    return f.lit(None).cast(type_) if column is None else column


def _or_unknown(verdict: Column | None) -> Column:
    return or_null(verdict, "boolean")


def present(value: Typed) -> Column:
    """Whether there is a value of any type."""
    found = [part.isNotNull() for part in value if part is not None]
    return reduce(Column.__or__, found) if found else f.lit(False)


def compare(sign: t.CompareOperator, left: Typed, right: Typed) -> Column:
    """``left sign right``: a row has a verdict if both sides have the same type."""
    holds = _COMPARE[sign]
    verdicts = [
        holds(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None
    ]
    if left.integer is not None and right.real is not None:
        verdicts.append(_compare_exactly(sign, left.integer, right.real))
    if left.real is not None and right.integer is not None:
        verdicts.append(_compare_exactly(MIRROR[sign], right.integer, left.real))
    return _first(verdicts)


def compare_number(sign: t.CompareOperator, value: Typed, number: float) -> Column:
    """``value sign number``, for a number that can be rounded to either type beforehand."""
    verdicts = []
    if value.integer is not None:
        verdicts.append(_compare_whole(sign, value.integer, number))
    if value.real is not None:
        verdicts.append(_compare_real(sign, value.real, number))
    return _first(verdicts)


def _compare_whole(sign: t.CompareOperator, part: Column, number: float) -> Column:
    below = math.floor(number)
    if below < t.INT64_MIN:
        return _all(part, sign in ("<>", ">", ">="))
    if below == number and below <= t.INT64_MAX:
        return _COMPARE[sign](part, whole(below))
    return _beside(sign, part, whole(min(below, t.INT64_MAX)))


def _compare_real(sign: t.CompareOperator, part: Column, number: float) -> Column:
    near = float(number)
    if near == number:
        return _COMPARE[sign](part, f.lit(near))
    return _beside(sign, part, f.lit(near if near < number else math.nextafter(near, -math.inf)))


def _beside(sign: t.CompareOperator, part: Column, below: Column) -> Column:
    """Compare with a number that the type cannot represent; ``below`` is the next one below."""
    if sign in ("=", "<>"):
        return _all(part, sign == "<>")
    return part <= below if sign in ("<", "<=") else part > below


def _compare_exactly(sign: t.CompareOperator, integer: Column, real: Column) -> Column:
    """Compare with the whole part of ``real`` first, which int64 can hold if it is in range."""
    whole = real.try_cast("bigint")
    again = whole.cast("double")
    order = (
        f.when(integer.isNull() | real.isNull(), f.lit(None).cast("int"))
        .when(real >= _TWO_63, -1)
        .when(real < -_TWO_63, 1)
        .when(integer < whole, -1)
        .when(integer > whole, 1)
        .when(again < real, -1)
        .when(again > real, 1)
        .otherwise(0)
    )
    return _COMPARE[sign](order, f.lit(0))


def _first(verdicts: list[Column]) -> Column:
    if not verdicts:
        return _or_unknown(None)
    return verdicts[0] if len(verdicts) == 1 else f.coalesce(*verdicts)


def is_in(value: Typed, items: tuple[t.Constant, ...]) -> Column:
    """The OR of ``value = item``, with one set lookup for strings and one for integers."""
    texts = {item.value for item in items if isinstance(item, t.Text)}
    numbers = {item.value for item in items if isinstance(item, t.Integer | t.Float)}
    truths = {item.value for item in items if isinstance(item, t.Boolean)}
    wholes = {int(n) for n in numbers if n == int(n) and -(2**63) <= n < 2**63}
    reals = {float(n) for n in numbers if float(n) == n}
    verdicts = []
    if value.text is not None and texts:
        verdicts.append(value.text.isin(sorted(texts)))
    if value.integer is not None and numbers:
        verdicts.append(_member(value.integer, [whole(item) for item in sorted(wholes)]))
    if value.real is not None and numbers:
        # Equality instead of a set: a large one of Spark's distinguishes -0.0 from 0.0.
        verdicts.append(_any_equal(value.real, sorted(reals)))
    if value.truth is not None and truths:
        verdicts.append(_any_equal(value.truth, sorted(truths)))
    found = _first(verdicts)
    # A miss is FALSE only if every item is comparable; a NULL item or another type makes it NULL.
    mixed = sum(map(bool, (texts, numbers, truths))) > 1 or t.Null() in items
    return f.when(found, f.lit(True)) if mixed else found


def _member(part: Column, wanted: list[Column]) -> Column:
    return part.isin(wanted) if wanted else _all(part, False)


def _any_equal(part: Column, wanted: list[float] | list[bool]) -> Column:
    return reduce(Column.__or__, [part == f.lit(item) for item in wanted], _all(part, False))


def _all(part: Column, verdict: bool) -> Column:
    """``verdict``, and NULL where ``part`` is."""
    return f.when(part.isNotNull(), f.lit(verdict))


def arithmetic(sign: t.ArithmeticOperator, left: Typed, right: Typed) -> Typed:
    """``left sign right``, NULL if the result does not fit its type."""
    a, b = _as_real(left), _as_real(right)
    if a is None or b is None:
        return Typed()
    if sign == "/":
        return Typed(real=_finite(f.try_divide(a, b)))
    integer = None
    if left.integer is not None and right.integer is not None:
        integer = _INTEGERS[sign](left.integer, right.integer)
    if sign == "%" or (left.real is None and right.real is None):
        return Typed(integer=integer)
    real = _finite(_REALS[sign](a, b))
    if left.integer is not None and right.integer is not None:
        real = f.when(left.integer.isNull() | right.integer.isNull(), real)
    return Typed(integer=integer, real=real)


_INTEGERS: Final[dict[t.ArithmeticOperator, Callable[[Column, Column], Column]]] = {
    "+": f.try_add,
    "-": f.try_subtract,
    "*": f.try_multiply,
    "%": f.try_mod,
}
_REALS: Final[dict[t.ArithmeticOperator, Callable[[Column, Column], Column]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def _as_real(value: Typed) -> Column | None:
    if value.integer is None:
        return value.real
    rounded = value.integer.cast("double")
    return rounded if value.real is None else f.coalesce(value.real, rounded)


def _finite(real: Column) -> Column:
    """NULL for infinity, and for NaN, which is above infinity in Spark."""
    return f.when(f.abs(real) < math.inf, real)


def negate(value: Typed) -> Typed:
    """``-value``; the lowest int64 has no negation."""
    integer = None if value.integer is None else f.try_subtract(whole(0), value.integer)
    return Typed(integer=integer, real=None if value.real is None else _finite(-value.real))


def call(function: t.FunctionName, *arguments: Typed) -> Typed:
    """``function(arguments)``."""
    if function == "coalesce":
        return _coalesce(arguments)
    text = arguments[0].text
    if text is None:
        return Typed()
    match function:
        case "lower":
            return Typed(text=f.translate(text, _CAPITALS, _SMALLS))
        case "upper":
            return Typed(text=f.translate(text, _SMALLS, _CAPITALS))
        case "length":
            return Typed(integer=f.char_length(text).cast("bigint"))
        case "starts_with" | "ends_with" | "contains":
            part = arguments[1].text
            return Typed() if part is None else Typed(truth=_SEARCH[function](text, part))
        case "matches_words":
            raise AssertionError("the pattern is a constant; see words")
        case _:
            assert_never(function)


_SEARCH: Final[dict[t.FunctionName, Callable[[Column, Column], Column]]] = {
    "starts_with": f.startswith,
    "ends_with": f.endswith,
    "contains": f.contains,
}


def _coalesce(arguments: tuple[Typed, ...]) -> Typed:
    """Each type of the first argument that has a value of any type."""
    parts: list[Column | None] = []
    for n, type_ in enumerate(("string", "bigint", "double", "boolean")):
        if all(argument[n] is None for argument in arguments):
            parts.append(None)
            continue
        chosen = f.lit(None).cast(type_)
        for argument in reversed(arguments):
            chosen = f.when(present(argument), or_null(argument[n], type_)).otherwise(chosen)
        parts.append(chosen)
    return Typed(*parts)


def like(text: Column | None, pattern: Pattern) -> Column:
    """``text LIKE pattern``: plain searches for the usual shapes, else a regular expression.

    The expression cannot backtrack: pieces have a fixed length, so the leftmost match of each is
    always the best one, and an atomic group keeps it.
    """
    if text is None:
        return _or_unknown(None)
    if not pattern.has_one:
        match ["".join(map(str, piece)) for piece in pattern.pieces]:
            case [whole]:
                return text == f.lit(whole)
            case [start, ""]:
                return f.startswith(text, f.lit(start))
            case ["", end]:
                return f.endswith(text, f.lit(end))
            case ["", part, ""]:
                return f.contains(text, f.lit(part))
    first, *others = map(_expression, pattern.pieces)
    if not others:
        return f.rlike(text, f.lit(rf"(?s)\A{first}\z"))
    *inner, last = others
    found = "".join(f"(?>.*?{piece})" for piece in inner if piece)
    return f.rlike(text, f.lit(rf"(?s)\A{first}{found}.*{last}\z"))


def words(text: Column | None, pattern: str) -> Column:
    """``matches_words(text, pattern)`` as a regular expression without backtracking (see ``like``).

    A dot is put before the text, so that each word begins with one, and the empty text has none.
    """
    if text is None:
        return _or_unknown(None)
    if exact_words(pattern):
        return text == f.lit(pattern)
    dotted = f.when(text == f.lit(""), text).otherwise(f.concat(f.lit("."), text))
    first, *others = map(_words_expression, parse_words(pattern).pieces)
    if not others:
        return f.rlike(dotted, f.lit(rf"(?s)\A{first}\z"))
    *inner, last = others
    found = "".join(f"(?>.*?{piece})" for piece in inner if piece)
    return f.rlike(dotted, f.lit(rf"(?s)\A{first}{found}.*{last}\z"))


def _words_expression(piece: Piece) -> str:
    return "".join(
        rf"\.{_expression(tuple(word))}(?=\.|\z)" if isinstance(word, str) else r"\.[^.]*+"
        for word in piece
    )


def _expression(piece: Piece) -> str:
    return "".join(rf"\x{{{ord(part):x}}}" if isinstance(part, str) else "." for part in piece)
