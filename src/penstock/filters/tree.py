"""The filter tree, which every compiler starts from (R1).

There are two closed unions. A :data:`Value` is a piece of metadata or is computed from
metadata; a :data:`Condition` is TRUE, FALSE or NULL. Conditions are built from values and never
the other way round, so ``a = b = c`` or ``(a = 1) + 1`` cannot be represented.

A tree is canonical: ``And`` and ``Or`` are flat and have at least two operands, the negated
forms (``NOT IN``, ``IS NOT NULL`` …) are ``Not`` around the plain one, and a minus sign
before a number is part of the number, and ``+a`` is ``0 + a``. Nodes are frozen, hashable and
picklable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias, assert_never, get_args

from msgspec import Struct

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

#: Compilers recurse over the tree, and the generated code nests as deep as the tree. CPython
#: allows 200 brackets, and the parser takes 8 of 1,000 stack frames per level.
MAX_FILTER_DEPTH: Final = 32

FieldName: TypeAlias = Literal[
    "topic", "partition_key", "key", "priority", "published_at", "size", "content_type"
]
FunctionName: TypeAlias = Literal[
    "coalesce",
    "contains",
    "ends_with",
    "length",
    "lower",
    "matches_words",
    "starts_with",
    "upper",
]
ArithmeticOperator: TypeAlias = Literal["+", "-", "*", "/", "%"]
CompareOperator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]

FIELD_NAMES: Final[dict[str, FieldName]] = {name: name for name in get_args(FieldName)}
#: The system fields that hold strings; the others hold int64.
TEXT_FIELDS: Final[frozenset[FieldName]] = frozenset(
    ("topic", "partition_key", "key", "content_type")
)
#: Name to (fewest, most) arguments; ``None`` is "as many as the node limit allows".
FUNCTIONS: Final[dict[FunctionName, tuple[int, int | None]]] = {
    "coalesce": (1, None),
    "contains": (2, 2),
    "ends_with": (2, 2),
    "length": (1, 1),
    "lower": (1, 1),
    "matches_words": (2, 2),
    "starts_with": (2, 2),
    "upper": (1, 1),
}
KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE")
)
#: A name that needs no quotes.
WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Field(Struct, frozen=True, gc=False):
    """A system field of the message."""

    name: FieldName


class Header(Struct, frozen=True, gc=False):
    """A header by its exact name; NULL if the message has none of that name."""

    name: str


class Text(Struct, frozen=True, gc=False):
    """A string literal."""

    value: str


class Integer(Struct, frozen=True, gc=False):
    """An int64 literal."""

    value: int


class Float(Struct, frozen=True, gc=False):
    """A finite float64 literal."""

    value: float


class Boolean(Struct, frozen=True, gc=False):
    """``TRUE`` or ``FALSE``."""

    value: bool


class Null(Struct, frozen=True, gc=False):
    """``NULL``."""


class Arithmetic(Struct, frozen=True, gc=False):
    """``left operator right``."""

    operator: ArithmeticOperator
    left: Value
    right: Value


class Negate(Struct, frozen=True, gc=False):
    """``-operand``."""

    operand: Value


class Call(Struct, frozen=True, gc=False):
    """``function(arguments)``; the second argument of ``matches_words`` is a ``Text``."""

    function: FunctionName
    arguments: tuple[Value, ...]


class Compare(Struct, frozen=True, gc=False):
    """``left operator right``; NULL for operands of different types."""

    operator: CompareOperator
    left: Value
    right: Value


class In(Struct, frozen=True, gc=False):
    """``operand IN (items)``: the OR of ``operand = item``."""

    operand: Value
    items: tuple[Constant, ...]


class Between(Struct, frozen=True, gc=False):
    """``operand >= low AND operand <= high``."""

    operand: Value
    low: Value
    high: Value


class Like(Struct, frozen=True, gc=False):
    """``operand LIKE pattern [ESCAPE escape]``."""

    operand: Value
    pattern: str
    escape: str | None = None


class IsNull(Struct, frozen=True, gc=False):
    """``operand IS NULL``; never NULL itself."""

    operand: Value


class Truth(Struct, frozen=True, gc=False):
    """A value as a condition: itself if it is a bool, else NULL."""

    value: Value


class Not(Struct, frozen=True, gc=False):
    """``NOT operand``."""

    operand: Condition


class And(Struct, frozen=True, gc=False):
    """The conjunction of at least two conditions, which are not ``And`` themselves."""

    operands: tuple[Condition, ...]


class Or(Struct, frozen=True, gc=False):
    """The disjunction of at least two conditions, which are not ``Or`` themselves."""

    operands: tuple[Condition, ...]


Constant: TypeAlias = Text | Integer | Float | Boolean | Null
Value: TypeAlias = Field | Header | Constant | Arithmetic | Negate | Call
Condition: TypeAlias = Compare | In | Between | Like | IsNull | Truth | Not | And | Or


def may_be_boolean(value: Value) -> bool:
    """Whether ``value`` can be TRUE or FALSE for some message, or is the literal NULL."""
    match value:
        case Header() | Boolean() | Null():
            return True
        case Field() | Text() | Integer() | Float() | Arithmetic() | Negate():
            return False
        case Call(function="coalesce", arguments=arguments):
            return any(map(may_be_boolean, arguments))
        case Call(function=function):
            return function in ("starts_with", "ends_with", "contains", "matches_words")
        case _:
            assert_never(value)


def walk(
    root: Condition | Value, *, with_items: bool = True
) -> Iterator[tuple[Condition | Value, int]]:
    """Yield every node with its depth, the root first at depth 1; list items only if asked.

    ``Truth`` is not a node of the text, so it adds no depth.
    """
    pending: list[tuple[Condition | Value, int]] = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        yield node, depth
        if isinstance(node, In) and not with_items:
            pending.append((node.operand, depth + 1))
            continue
        below = depth if isinstance(node, Truth) else depth + 1
        pending.extend((child, below) for child in reversed(_children(node)))


def _children(node: Condition | Value) -> tuple[Condition | Value, ...]:
    match node:
        case Field() | Header() | Text() | Integer() | Float() | Boolean() | Null():
            return ()
        case Arithmetic(left=left, right=right) | Compare(left=left, right=right):
            return (left, right)
        case Negate(operand=operand) | Like(operand=operand) | IsNull(operand=operand):
            return (operand,)
        case Call(arguments=arguments):
            return arguments
        case In(operand=operand, items=items):
            return (operand, *items)
        case Between(operand=operand, low=low, high=high):
            return (operand, low, high)
        case Truth(value=value):
            return (value,)
        case Not(operand=condition):
            return (condition,)
        case And(operands=operands) | Or(operands=operands):
            return operands
        case _:
            assert_never(node)
