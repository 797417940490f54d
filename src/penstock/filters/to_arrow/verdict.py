"""Compiles a filter tree to kernel calls over the columns of a batch (R1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters import tree as t
from penstock.filters.like import parse_pattern
from penstock.filters.to_arrow import kernels
from penstock.filters.to_arrow.batch import Columns, Typed
from penstock.filters.values import call

__all__ = ["to_arrow"]


def to_arrow(tree: t.Condition, columns: Columns) -> pa.BooleanArray:
    """Return the verdict of ``tree`` for each row: true, false or null."""
    verdict = _condition(tree, columns)
    return _as_array(verdict, columns, pa.bool_())


def _condition(node: t.Condition, columns: Columns) -> pa.Array:
    match node:
        case t.Compare(operator, left, right):
            return kernels.compare(operator, _value(left, columns), _value(right, columns))
        case t.In(operand, items):
            return kernels.is_in(_value(operand, columns), items)
        case t.Between(operand, low, high):
            value = _value(operand, columns)
            above = kernels.compare(">=", value, _value(low, columns))
            return pc.and_kleene(above, kernels.compare("<=", value, _value(high, columns)))
        case t.Like(operand, pattern, escape):
            text = _value(operand, columns).text
            if text is None:
                return kernels.UNKNOWN
            return kernels.like(text, parse_pattern(pattern, escape))
        case t.IsNull(operand):
            return kernels.is_null(_value(operand, columns))
        case t.Truth(value):
            truth = _value(value, columns).truth
            return kernels.UNKNOWN if truth is None else truth
        case t.Not(condition):
            return pc.invert(_condition(condition, columns))
        case t.And(operands):
            return reduce(pc.and_kleene, [_condition(operand, columns) for operand in operands])
        case t.Or(operands):
            return reduce(pc.or_kleene, [_condition(operand, columns) for operand in operands])
        case _:
            assert_never(node)


def _value(node: t.Value, columns: Columns) -> Typed:
    match node:
        case t.Field(name):
            return columns.field(name)
        case t.Header(name):
            return columns.header(name)
        case t.Text(value):
            return Typed(text=pa.scalar(value, pa.string()))
        case t.Integer(value):
            return Typed(integer=pa.scalar(value, pa.int64()))
        case t.Float(value):
            return Typed(real=pa.scalar(value, pa.float64()))
        case t.Boolean(value):
            return Typed(truth=pa.scalar(value, pa.bool_()))
        case t.Null():
            return Typed()
        case t.Arithmetic(operator, left, right):
            return kernels.arithmetic(operator, _value(left, columns), _value(right, columns))
        case t.Negate(operand):
            return kernels.negate(_value(operand, columns))
        case t.Call(function, arguments):
            return _call(function, [_value(argument, columns) for argument in arguments], columns)
        case _:
            assert_never(node)


def _call(function: t.FunctionName, arguments: list[Typed], columns: Columns) -> Typed:
    if function == "coalesce":
        return reduce(_or_else, arguments)
    text = arguments[0].text
    if text is None:
        return Typed()
    match function:
        case "lower":
            return Typed(text=pc.ascii_lower(text))
        case "upper":
            return Typed(text=pc.ascii_upper(text))
        case "length":
            return Typed(integer=pc.cast(pc.utf8_length(text), pa.int64()))
        case "starts_with" | "ends_with" | "contains":
            part = arguments[1].text
            return Typed() if part is None else Typed(truth=_search(function, text, part, columns))
        case "matches_words":
            pattern = arguments[1].text
            return Typed() if pattern is None else Typed(truth=kernels.words(text, pattern.as_py()))
        case _:
            assert_never(function)


_SEARCH: Final[dict[t.FunctionName, Callable[..., Any]]] = {
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "contains": pc.match_substring,
}


def _search(function: t.FunctionName, text: pa.Array, part: pa.Array, columns: Columns) -> pa.Array:
    """Arrow searches only for a constant; a part from a column is searched row by row."""
    if isinstance(part, pa.Scalar):
        pattern = part.as_py()
        return kernels.UNKNOWN if pattern is None else _SEARCH[function](text, pattern)
    texts = _as_array(text, columns, pa.string()).to_pylist()
    parts = _as_array(part, columns, pa.string()).to_pylist()
    rows = [call(function, *pair) for pair in zip(texts, parts, strict=True)]
    return pa.array(rows, pa.bool_())


def _or_else(first: Typed, second: Typed) -> Typed:
    """``first``, or ``second`` in the rows where ``first`` has no value of any type."""
    empty = kernels.is_null(first)
    parts: list[pa.Array | None] = []
    for mine, other in zip(first, second, strict=True):
        if other is None:
            parts.append(mine)
            continue
        filled = pc.if_else(empty, other, pa.scalar(None, other.type))
        parts.append(filled if mine is None else pc.coalesce(mine, filled))
    return Typed(*parts)


def _as_array(value: pa.Array | pa.Scalar, columns: Columns, type_: pa.DataType) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()] * len(columns), type_)
    return value
