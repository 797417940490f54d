"""Compiles a filter tree to a Spark column (R1).

An operator reads its operands several times, once per type. So a computed operand is bound to a
name first (:func:`_let`); otherwise the expression would grow exponentially with the depth of
the tree.

``narrow`` selects the columns of the ``log`` table that many filters read, and no others. Data for
Python is written row by row and value by value, and a map of structs has many values: three
headers take three times as long as separate columns of the parts that matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from pyspark.sql import Column
from pyspark.sql import functions as f

from penstock.filters import tree as t
from penstock.filters.filter import Filter
from penstock.filters.like import parse_pattern
from penstock.filters.to_arrow.batch import PARTS, flat_name
from penstock.filters.to_spark import operators
from penstock.filters.to_spark.operators import Typed, or_null
from penstock.filters.values import MIRROR

if TYPE_CHECKING:
    from penstock.filters.to_arrow.many import ManyFilters

__all__ = ["MOST_FLAT", "matches", "narrow", "to_spark"]

#: The most headers that get separate columns. Filters that name more read the map: a message has
#: only a few of them, and every column costs something in every row.
MOST_FLAT: Final = 8

_Computed: TypeAlias = t.Arithmetic | t.Negate | t.Call


def matches(filter: Filter) -> Column:
    """Whether a row belongs to a queue with ``filter``; never NULL."""
    return f.coalesce(to_spark(filter.tree), f.lit(False))


def to_spark(condition: t.Condition) -> Column:
    """The verdict of ``condition`` for a row: true, false or null."""
    match condition:
        case t.Compare(operator, left, right) if isinstance(left, t.Constant):
            return _value(right, lambda value: _against(MIRROR[operator], value, left))
        case t.Compare(operator, left, right):
            return _value(left, lambda value: _against(operator, value, right))
        case t.In(operand, items):
            return _value(operand, lambda value: operators.is_in(value, items))
        case t.Between(operand, low, high):
            return _value(
                operand, lambda value: _against(">=", value, low) & _against("<=", value, high)
            )
        case t.Like(operand, pattern, escape):
            parsed = parse_pattern(pattern, escape)
            return _value(operand, lambda value: operators.like(value.text, parsed))
        case t.IsNull(operand):
            return _value(operand, lambda value: ~operators.present(value))
        case t.Truth(operand):
            return _value(operand, lambda value: or_null(value.truth, "boolean"))
        case t.Not(operand):
            return ~to_spark(operand)
        case t.And(operands):
            return reduce(Column.__and__, map(to_spark, operands))
        case t.Or(operands):
            return reduce(Column.__or__, map(to_spark, operands))
        case _:
            assert_never(condition)


def narrow(many: ManyFilters) -> list[Column]:
    """The columns that ``many`` reads."""
    columns = [f.col("timestamp" if name == "published_at" else name) for name in many.fields]
    if len(many.headers) > MOST_FLAT:
        return [*columns, f.col("headers")]
    for number, (name, parts) in enumerate(many.headers.items()):
        value = f.try_element_at(f.col("headers"), f.lit(name))
        columns += [value.getField(part).alias(flat_name(number, part)) for part in parts]
    return columns


def _against(sign: t.CompareOperator, value: Typed, other: t.Value) -> Column:
    if isinstance(other, t.Integer | t.Float):
        return operators.compare_number(sign, value, other.value)
    return _value(other, lambda with_it: operators.compare(sign, value, with_it))


def _value(node: t.Value, then: Callable[[Typed], Column]) -> Column:
    """Pass the value of ``node`` to ``then``, which may read it several times."""
    match node:
        case t.Arithmetic(operator, left, right):
            return _operands((left, right), lambda a, b: then(operators.arithmetic(operator, a, b)))
        case t.Negate(operand):
            return _operands((operand,), lambda a: then(operators.negate(a)))
        case t.Call("matches_words", (operand, t.Text(pattern))):
            return _operands(
                (operand,), lambda a: then(Typed(truth=operators.words(a.text, pattern)))
            )
        case t.Call(function, arguments):
            return _operands(arguments, lambda *values: then(operators.call(function, *values)))
        case _:
            return then(_leaf(node))


def _operands(nodes: tuple[t.Value, ...], then: Callable[..., Column]) -> Column:
    """Pass the values of ``nodes`` to ``then``, with names for the computed ones."""
    leaves = [None if isinstance(node, _Computed) else _leaf(node) for node in nodes]
    computed = [
        _value(node, _packed).alias(f"v{place}")
        for place, node in enumerate(nodes)
        if isinstance(node, _Computed)
    ]

    def go_on(names: Column) -> Column:
        return then(
            *(
                _unpacked(names.getField(f"v{place}")) if leaf is None else leaf
                for place, leaf in enumerate(leaves)
            )
        )

    return _let(f.struct(*computed), go_on) if computed else then(*leaves)


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    """``body`` of a name for ``value``, so that a large expression is written once."""
    return f.get(f.transform(f.array(value), body), f.lit(0))


def _packed(value: Typed) -> Column:
    text, integer, real, truth = value
    return f.struct(
        or_null(text, "string").alias("s"),
        or_null(integer, "bigint").alias("i"),
        or_null(real, "double").alias("d"),
        or_null(truth, "boolean").alias("b"),
    )


def _unpacked(packed: Column) -> Typed:
    return Typed(*(packed.getField(part) for part in PARTS))


def _leaf(node: t.Field | t.Header | t.Constant) -> Typed:
    match node:
        case t.Field(name):
            return _field(name)
        case t.Header(name):
            return _header(name)
        case t.Text(value):
            return Typed(text=f.lit(value))
        case t.Integer(value):
            return Typed(integer=operators.whole(value))
        case t.Float(value):
            return Typed(real=f.lit(value))
        case t.Boolean(value):
            return Typed(truth=f.lit(value))
        case t.Null():
            return Typed()
        case _:
            assert_never(node)


def _field(name: t.FieldName) -> Typed:
    if name in t.TEXT_FIELDS:
        return Typed(text=f.col(name))
    if name == "published_at":
        return Typed(integer=f.unix_millis(f.col("timestamp")))
    return Typed(integer=f.col(name).cast("bigint"))


def _header(name: str) -> Typed:
    text, integer, real, truth = _unpacked(f.try_element_at(f.col("headers"), f.lit(name)))
    assert real is not None
    return Typed(text, integer, f.nanvl(real, or_null(None, "double")), truth)
