"""Evaluates a filter tree for one message: slow, but it can return the value of any node.

``explain`` needs the intermediate values, which the compiled predicate does not keep. Both
use ``values``, so they cannot disagree about an operator, only about its position (R1).
"""

from __future__ import annotations

from typing import assert_never, cast

from penstock.filters.like import matcher, parse_pattern
from penstock.filters.tree import (
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
from penstock.filters.values import Scalar, arithmetic, call, compare, known, like, negate
from penstock.model.message import Message

__all__ = ["evaluate", "evaluate_value"]


def evaluate(node: Condition, message: Message) -> bool | None:
    """Return whether ``node`` is TRUE, FALSE or NULL (``None``) for ``message``."""
    match node:
        case Compare(operator, left, right):
            return compare(operator, evaluate_value(left, message), evaluate_value(right, message))
        case In(operand, items):
            value = evaluate_value(operand, message)
            return _any([compare("=", value, evaluate_value(i, message)) for i in items])
        case Between(operand, low, high):
            value = evaluate_value(operand, message)
            above = compare(">=", value, evaluate_value(low, message))
            below = compare("<=", value, evaluate_value(high, message))
            return _not(_any([_not(above), _not(below)]))
        case Like(operand, pattern, escape):
            return like(matcher(parse_pattern(pattern, escape)), evaluate_value(operand, message))
        case IsNull(operand):
            return evaluate_value(operand, message) is None
        case Truth(value_node):
            value = evaluate_value(value_node, message)
            return value if isinstance(value, bool) else None
        case Not(condition):
            return _not(evaluate(condition, message))
        case And(operands):
            return _not(_any([_not(evaluate(operand, message)) for operand in operands]))
        case Or(operands):
            return _any([evaluate(operand, message) for operand in operands])
        case _:
            assert_never(node)


def evaluate_value(node: Value, message: Message) -> Scalar:
    """Return the value of ``node`` for ``message``; NULL is ``None``."""
    match node:
        case Field(name):
            return cast("str | int | None", getattr(message, name))
        case Header(name):
            return known(message.headers.get(name))
        case Text() | Integer() | Float() | Boolean():
            return node.value
        case Null():
            return None
        case Arithmetic(operator, left, right):
            return arithmetic(
                operator, evaluate_value(left, message), evaluate_value(right, message)
            )
        case Negate(operand):
            return negate(evaluate_value(operand, message))
        case Call(function, arguments):
            return call(function, *(evaluate_value(part, message) for part in arguments))
        case _:
            assert_never(node)


def _any(verdicts: list[bool | None]) -> bool | None:
    if True in verdicts:
        return True
    return None if None in verdicts else False


def _not(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict
