"""The semantics of a filter's operators, one function each, on plain Python values.

``None`` is NULL. These functions are the reference (R1): the Python compiler calls them
unless it has faster code with the same result, ``explain`` evaluates the tree with them, and
the other compilers are tested against them.

The rules: NaN is NULL; different types compare as NULL, and bool is a type of its own; int
and float compare exactly; arithmetic is on numbers only, and a result that does not fit
int64 or is not a finite float is NULL.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final, TypeAlias, assert_never

from penstock.filters.tree import (
    INT64_MAX,
    INT64_MIN,
    ArithmeticOperator,
    CompareOperator,
    FunctionName,
)

__all__ = [
    "INVERSE",
    "Scalar",
    "arithmetic",
    "ascii_lower",
    "ascii_upper",
    "call",
    "compare",
    "known",
    "like",
    "negate",
]

Scalar: TypeAlias = str | int | float | bool | None

#: The operator that is TRUE exactly where the key is FALSE.
INVERSE: Final[dict[CompareOperator, CompareOperator]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
_COMPARE: Final[dict[CompareOperator, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TO_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_TO_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def known(value: Scalar) -> Scalar:
    """Return ``value``, with NaN as NULL."""
    return value if value == value else None  # noqa: PLR0124 - only NaN differs from itself


def compare(sign: CompareOperator, left: Scalar, right: Scalar) -> bool | None:
    """``left sign right``; Python compares int with float exactly, and str by code point."""
    alike = _kind(left)
    if alike is None or alike != _kind(right):
        return None
    return _COMPARE[sign](left, right)


def _kind(value: Scalar) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "bool"
        case str():
            return "text"
        case _:
            return None if value != value else "number"  # noqa: PLR0124


def _number(value: Scalar) -> int | float | None:
    if isinstance(value, bool | str):
        return None
    return value


def arithmetic(sign: ArithmeticOperator, left: Scalar, right: Scalar) -> int | float | None:
    """``left sign right``: int64 if both are, except that ``/`` always divides as float64."""
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return None
    if sign == "/":
        # Not a / b: Python divides large ints more exactly than two float64 can.
        return _fit(float(a) / float(b)) if b != 0 else None
    if sign == "%":
        if isinstance(a, float) or isinstance(b, float) or b == 0:
            return None
        rest = abs(a) % abs(b)
        return -rest if a < 0 else rest
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    match sign:
        case "+":
            return _fit(a + b)
        case "-":
            return _fit(a - b)
        case "*":
            return _fit(a * b)
        case _:
            assert_never(sign)


def negate(value: Scalar) -> int | float | None:
    """``-value``."""
    number = _number(value)
    return None if number is None else _fit(-number)


def _fit(number: float) -> int | float | None:
    if isinstance(number, int):
        return number if INT64_MIN <= number <= INT64_MAX else None
    return number if math.isfinite(number) else None


def ascii_lower(text: str) -> str:
    """Fold only A-Z, which does not depend on a Unicode version or locale."""
    return text.lower() if text.isascii() else text.translate(_TO_LOWER)


def ascii_upper(text: str) -> str:
    """Fold only a-z."""
    return text.upper() if text.isascii() else text.translate(_TO_UPPER)


def call(function: FunctionName, *arguments: Scalar) -> Scalar:
    """``function(arguments)``; the parser has checked the number of arguments."""
    match function, arguments:
        case "coalesce", _:
            return next((a for a in map(known, arguments) if a is not None), None)
        case "lower", (str(text),):
            return ascii_lower(text)
        case "upper", (str(text),):
            return ascii_upper(text)
        case "length", (str(text),):
            return len(text)
        case "starts_with", (str(text), str(part)):
            return text.startswith(part)
        case "ends_with", (str(text), str(part)):
            return text.endswith(part)
        case "contains", (str(text), str(part)):
            return part in text
        case _:
            return None


def like(matches: Callable[[str], bool], value: Scalar) -> bool | None:
    """``value LIKE`` the pattern of ``matches``."""
    return matches(value) if isinstance(value, str) else None
