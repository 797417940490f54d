"""The semantics of a filter's operators, one function each, on plain Python values.

``None`` is NULL. These functions are the reference (R1): the Python compiler calls them
unless it has faster code with the same result, and the other compilers are tested against them.
``evaluate`` applies them to a whole tree: slow, but ``explain`` needs the value of any node, which
the compiled predicate does not keep.

The rules: NaN is NULL; different types compare as NULL, and bool is a type of its own; int
and float compare exactly; arithmetic is on numbers only, and a result that does not fit
int64 or is not a finite float is NULL.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final, TypeAlias, assert_never, cast

from penstock.filters import tree as t
from penstock.filters.like import matcher, parse_pattern
from penstock.filters.tree import INT64_MAX, INT64_MIN
from penstock.filters.words import words_matcher
from penstock.model.message import Message

__all__ = [
    "INVERSE",
    "MIRROR",
    "Scalar",
    "arithmetic",
    "ascii_lower",
    "ascii_upper",
    "call",
    "compare",
    "evaluate",
    "evaluate_value",
    "known",
    "like",
    "negate",
]

Scalar: TypeAlias = str | int | float | bool | None

#: The operator that is TRUE exactly where the key is FALSE.
INVERSE: Final[dict[t.CompareOperator, t.CompareOperator]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
#: The operator with the operands exchanged.
MIRROR: Final[dict[t.CompareOperator, t.CompareOperator]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
_COMPARE: Final[dict[t.CompareOperator, Callable[[Any, Any], bool]]] = {
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


def compare(sign: t.CompareOperator, left: Scalar, right: Scalar) -> bool | None:
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


def arithmetic(sign: t.ArithmeticOperator, left: Scalar, right: Scalar) -> int | float | None:
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


def call(function: t.FunctionName, *arguments: Scalar) -> Scalar:
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
        case "matches_words", (str(text), str(pattern)):
            return words_matcher(pattern)(text)
        case _:
            return None


def like(matches: Callable[[str], bool], value: Scalar) -> bool | None:
    """Whether ``value`` has the pattern of ``matches``, of LIKE or of words."""
    return matches(value) if isinstance(value, str) else None


# -- whole trees ------------------------------------------------------------------------------


def evaluate(node: t.Condition, message: Message) -> bool | None:
    """Return whether ``node`` is TRUE, FALSE or NULL (``None``) for ``message``."""
    match node:
        case t.Compare(operator, left, right):
            return compare(operator, evaluate_value(left, message), evaluate_value(right, message))
        case t.In(operand, items):
            value = evaluate_value(operand, message)
            return _any([compare("=", value, evaluate_value(i, message)) for i in items])
        case t.Between(operand, low, high):
            value = evaluate_value(operand, message)
            above = compare(">=", value, evaluate_value(low, message))
            below = compare("<=", value, evaluate_value(high, message))
            return _not(_any([_not(above), _not(below)]))
        case t.Like(operand, pattern, escape):
            return like(matcher(parse_pattern(pattern, escape)), evaluate_value(operand, message))
        case t.IsNull(operand):
            return evaluate_value(operand, message) is None
        case t.Truth(value_node):
            value = evaluate_value(value_node, message)
            return value if isinstance(value, bool) else None
        case t.Not(condition):
            return _not(evaluate(condition, message))
        case t.And(operands):
            return _not(_any([_not(evaluate(operand, message)) for operand in operands]))
        case t.Or(operands):
            return _any([evaluate(operand, message) for operand in operands])
        case _:
            assert_never(node)


def evaluate_value(node: t.Value, message: Message) -> Scalar:
    """Return the value of ``node`` for ``message``; NULL is ``None``."""
    match node:
        case t.Field(name):
            return cast("str | int | None", getattr(message, name))
        case t.Header(name):
            return known(message.headers.get(name))
        case t.Text() | t.Integer() | t.Float() | t.Boolean():
            return node.value
        case t.Null():
            return None
        case t.Arithmetic(operator, left, right):
            return arithmetic(
                operator, evaluate_value(left, message), evaluate_value(right, message)
            )
        case t.Negate(operand):
            return negate(evaluate_value(operand, message))
        case t.Call(function, arguments):
            return call(function, *(evaluate_value(part, message) for part in arguments))
        case _:
            assert_never(node)


def _any(verdicts: list[bool | None]) -> bool | None:
    if True in verdicts:
        return True
    return None if None in verdicts else False


def _not(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict
