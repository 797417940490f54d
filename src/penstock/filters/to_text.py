"""Renders a filter tree as canonical SQL text, such that parsing it gives the tree back."""

from __future__ import annotations

from typing import assert_never

from penstock.filters.tree import (
    FIELD_NAMES,
    KEYWORDS,
    WORD,
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

__all__ = ["to_text", "value_text"]


def to_text(node: Condition) -> str:
    """Return ``node`` as text: keywords in upper case, brackets only where they matter."""
    match node:
        case Compare(operator, left, right):
            return f"{value_text(left)} {operator} {value_text(right)}"
        case In() | Between() | Like() | IsNull():
            return _predicate(node, "")
        case Truth(value):
            return value_text(value)
        case Not(operand):
            if isinstance(operand, In | Between | Like | IsNull):
                return _predicate(operand, "NOT ")
            return f"NOT {_bracketed(operand, And, Or)}"
        case And(operands):
            return " AND ".join(_bracketed(operand, And, Or) for operand in operands)
        case Or(operands):
            return " OR ".join(_bracketed(operand, Or) for operand in operands)
        case _:
            assert_never(node)


def value_text(node: Value) -> str:
    """Return ``node`` as text."""
    match node:
        case Field(name):
            return name
        case Header(name):
            return _name(name)
        case Text(value):
            return _quoted(value)
        case Integer(value) | Float(value):
            return repr(value)
        case Boolean(value):
            return "TRUE" if value else "FALSE"
        case Null():
            return "NULL"
        case Arithmetic(operator, left, right):
            # Chains nest to the left, so only a left operand may omit brackets.
            loose = isinstance(left, Arithmetic) and left.operator in "+-" and operator in "*/%"
            first = f"({value_text(left)})" if loose else value_text(left)
            second = value_text(right)
            return (
                f"{first} {operator} {f'({second})' if isinstance(right, Arithmetic) else second}"
            )
        case Negate(operand):
            # Brackets separate a number from its own sign, and keep two signs from being a comment.
            plain = isinstance(operand, Field | Header | Call | Text | Boolean | Null)
            return f"-{value_text(operand)}" if plain else f"-({value_text(operand)})"
        case Call(function, arguments):
            return f"{function}({', '.join(map(value_text, arguments))})"
        case _:
            assert_never(node)


def _predicate(node: In | Between | Like | IsNull, negation: str) -> str:
    operand = value_text(node.operand)
    match node:
        case In(items=items):
            return f"{operand} {negation}IN ({', '.join(map(value_text, items))})"
        case Between(low=low, high=high):
            return f"{operand} {negation}BETWEEN {value_text(low)} AND {value_text(high)}"
        case Like(pattern=pattern, escape=escape):
            suffix = "" if escape is None else f" ESCAPE {_quoted(escape)}"
            return f"{operand} {negation}LIKE {_quoted(pattern)}{suffix}"
        case IsNull():
            return f"{operand} IS {negation}NULL"
        case _:
            assert_never(node)


def _bracketed(node: Condition, *kinds: type[And | Or]) -> str:
    return f"({to_text(node)})" if isinstance(node, kinds) else to_text(node)


def _name(name: str) -> str:
    bare = WORD.fullmatch(name) and name.upper() not in KEYWORDS and name.lower() not in FIELD_NAMES
    return name if bare else '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
