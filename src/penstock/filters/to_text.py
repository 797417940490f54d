"""Renders a filter tree as canonical SQL text, such that parsing it gives the tree back."""

from __future__ import annotations

from typing import assert_never

from penstock.filters import tree as t

__all__ = ["name_text", "to_text", "value_text"]


def to_text(node: t.Condition) -> str:
    """Return ``node`` as text: keywords in upper case, brackets only where they matter."""
    match node:
        case t.Compare(operator, left, right):
            return f"{value_text(left)} {operator} {value_text(right)}"
        case t.In() | t.Between() | t.Like() | t.IsNull():
            return _predicate(node, "")
        case t.Truth(value):
            return value_text(value)
        case t.Not(operand):
            if isinstance(operand, t.In | t.Between | t.Like | t.IsNull):
                return _predicate(operand, "NOT ")
            return f"NOT {_bracketed(operand, t.And, t.Or)}"
        case t.And(operands):
            return " AND ".join(_bracketed(operand, t.And, t.Or) for operand in operands)
        case t.Or(operands):
            return " OR ".join(_bracketed(operand, t.Or) for operand in operands)
        case _:
            assert_never(node)


def value_text(node: t.Value) -> str:
    """Return ``node`` as text."""
    match node:
        case t.Field(name):
            return name
        case t.Header(name):
            return name_text(name)
        case t.Text(value):
            return _quoted(value)
        case t.Integer(value) | t.Float(value):
            return repr(value)
        case t.Boolean(value):
            return "TRUE" if value else "FALSE"
        case t.Null():
            return "NULL"
        case t.Arithmetic(operator, left, right):
            # Chains nest to the left, so only a left operand may omit brackets.
            loose = isinstance(left, t.Arithmetic) and left.operator in "+-" and operator in "*/%"
            first = f"({value_text(left)})" if loose else value_text(left)
            second = value_text(right)
            if isinstance(right, t.Arithmetic):
                second = f"({second})"
            return f"{first} {operator} {second}"
        case t.Negate(operand):
            # Brackets separate a number from its own sign, and keep two signs from being a comment.
            plain = isinstance(operand, t.Field | t.Header | t.Call | t.Text | t.Boolean | t.Null)
            return f"-{value_text(operand)}" if plain else f"-({value_text(operand)})"
        case t.Call(function, arguments):
            return f"{function}({', '.join(map(value_text, arguments))})"
        case _:
            assert_never(node)


def _predicate(node: t.In | t.Between | t.Like | t.IsNull, negation: str) -> str:
    operand = value_text(node.operand)
    match node:
        case t.In(items=items):
            return f"{operand} {negation}IN ({', '.join(map(value_text, items))})"
        case t.Between(low=low, high=high):
            return f"{operand} {negation}BETWEEN {value_text(low)} AND {value_text(high)}"
        case t.Like(pattern=pattern, escape=escape):
            suffix = "" if escape is None else f" ESCAPE {_quoted(escape)}"
            return f"{operand} {negation}LIKE {_quoted(pattern)}{suffix}"
        case t.IsNull():
            return f"{operand} IS {negation}NULL"
        case _:
            assert_never(node)


def _bracketed(node: t.Condition, *kinds: type[t.And | t.Or]) -> str:
    return f"({to_text(node)})" if isinstance(node, kinds) else to_text(node)


def name_text(name: str) -> str:
    """The header ``name`` as text, in quotes if it needs them."""
    reserved = name.upper() in t.KEYWORDS or name.lower() in t.FIELD_NAMES
    return name if t.WORD.fullmatch(name) and not reserved else '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
