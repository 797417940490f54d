"""Parses tokens to the filter tree with sqlglot's expression parser.

sqlglot decides only precedence. It never sees a name, a literal or a function: each operand
is a placeholder with the token's number, so no dialect rule, keyword or function alias of
that library can change the meaning of a filter, and every error still has its position (E1).
Only the nodes below are accepted from it, with exactly the named arguments; anything else is
refused. No type of sqlglot leaves this module (R1: all compilers start from Penstock's own
tree).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError
from sqlglot.parser import Parser

from penstock.errors import BadFilter
from penstock.filters import tree as t
from penstock.filters.like import parse_pattern
from penstock.filters.scan import Scanned, scan
from penstock.model.limits import MAX_FILTER_NODES

__all__ = ["parse_tree"]

_SIGNS: Final = {
    "AND": TokenType.AND,
    "OR": TokenType.OR,
    "NOT": TokenType.NOT,
    "IN": TokenType.IN,
    "BETWEEN": TokenType.BETWEEN,
    "LIKE": TokenType.LIKE,
    "ESCAPE": TokenType.ESCAPE,
    "IS": TokenType.IS,
    "=": TokenType.EQ,
    "<>": TokenType.NEQ,
    "<": TokenType.LT,
    "<=": TokenType.LTE,
    ">": TokenType.GT,
    ">=": TokenType.GTE,
    "+": TokenType.PLUS,
    "-": TokenType.DASH,
    "*": TokenType.STAR,
    "/": TokenType.SLASH,
    "%": TokenType.MOD,
    "(": TokenType.L_PAREN,
    ")": TokenType.R_PAREN,
    ",": TokenType.COMMA,
}
_COMPARE: Final[dict[type[Any], t.CompareOperator]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: Final[dict[type[Any], t.ArithmeticOperator]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
}
#: Prefix of a function's placeholder; no SQL function is named f and a number.
_FUNCTION: Final = "f"


def parse_tree(text: str) -> t.Condition:
    """Return the tree of the filter ``text``, or raise :class:`BadFilter`."""
    tokens = scan(text)
    try:
        (root,) = Parser().parse([_placeholder(n, token) for n, token in enumerate(tokens)], text)
        if root is None:
            raise BadFilter("The filter is not an expression.", position=0)
        tree = _Reader(tokens).condition(root)
    except ParseError as error:
        raise _refused(error, tokens) from error
    except RecursionError:
        # The scanner bounds nesting; this is for callers whose stack is already deep.
        raise BadFilter("The filter nests too deeply.", position=0) from None
    _check_bounds(tree)
    return tree


def _placeholder(number: int, token: Scanned) -> Token:
    match token.kind:
        case "sign":
            kind, text = _SIGNS[token.text], token.text
        case "function":
            kind, text = TokenType.VAR, f"{_FUNCTION}{number}"
        case "text":
            kind, text = TokenType.STRING, str(number)
        case _:
            kind, text = TokenType.IDENTIFIER, str(number)
    # The column is the token's number, which a ParseError reports.
    return Token(kind, text, 1, number, token.position, token.position, [])


def _refused(error: ParseError, tokens: tuple[Scanned, ...]) -> BadFilter:
    column = error.errors[0].get("col") if error.errors else None
    token = tokens[column] if isinstance(column, int) and column < len(tokens) else tokens[0]
    return BadFilter(
        f"The filter does not parse at {token.text!r}, position {token.position}.",
        position=token.position,
    )


def _check_bounds(tree: t.Condition) -> None:
    nodes = 0
    for node, depth in t.walk(tree):
        nodes += not isinstance(node, t.Truth)
        if depth > t.MAX_FILTER_DEPTH:
            raise BadFilter(
                f"The filter nests deeper than {t.MAX_FILTER_DEPTH}; use brackets to balance it.",
                position=0,
                limit=t.MAX_FILTER_DEPTH,
            )
    if nodes > MAX_FILTER_NODES:
        raise BadFilter(
            f"The filter has {nodes} nodes, over the limit of {MAX_FILTER_NODES}.",
            position=0,
            limit=MAX_FILTER_NODES,
        )


class _Reader:
    """Converts sqlglot's nodes to the tree; the tokens resolve the placeholders."""

    def __init__(self, tokens: tuple[Scanned, ...]) -> None:
        self._tokens = tokens
        self._depth = 0

    def condition(self, node: exp.Expr) -> t.Condition:
        node = _bare(node)
        if isinstance(node, exp.And | exp.Or):
            return self._connected(node)
        if isinstance(node, exp.Not):
            return t.Not(self.condition(self._only(node, "this")["this"]))
        if type(node) in _COMPARE:
            sides = self._only(node, "this", "expression")
            return t.Compare(
                _COMPARE[type(node)], self.value(sides["this"]), self.value(sides["expression"])
            )
        reader = self._predicates.get(type(node))
        if reader is not None:
            return reader(self, node)
        value = self.value(node)
        if not t.may_be_boolean(value):
            self._refuse(node, "is not a condition: compare it with something")
        return t.Truth(value)

    def _connected(self, node: exp.And | exp.Or) -> t.Condition:
        """Read a chain of ANDs or of ORs, which nests to the left and may be hundreds long."""
        kind = type(node)
        flat: list[t.Condition] = []
        pending: list[exp.Expr] = [node]
        while pending:
            part = _bare(pending.pop())
            if type(part) is kind:
                sides = self._only(part, "this", "expression")
                pending += (sides["expression"], sides["this"])
            else:
                flat.append(self.condition(part))
        return t.And(tuple(flat)) if kind is exp.And else t.Or(tuple(flat))

    def _in(self, node: exp.Expr) -> t.Condition:
        parts = self._only(node, "this", "expressions")
        items = tuple(self._constant(item) for item in parts["expressions"])
        return t.In(self.value(parts["this"]), items)

    def _between(self, node: exp.Expr) -> t.Condition:
        parts = self._only(node, "this", "low", "high")
        return t.Between(*(self.value(parts[name]) for name in ("this", "low", "high")))

    def _is_null(self, node: exp.Expr) -> t.Condition:
        parts = self._only(node, "this", "expression")
        if self.value(parts["expression"]) != t.Null():
            self._refuse(node, "uses IS with something other than NULL or NOT NULL")
        return t.IsNull(self.value(parts["this"]))

    def _like(self, node: exp.Expr) -> t.Condition:
        """``NOT LIKE`` is a flag on the node, below the ESCAPE if there is one."""
        escape: str | None = None
        if isinstance(node, exp.Escape):
            parts = self._only(node, "this", "expression")
            escape = self._string(parts["expression"], "ESCAPE takes a string literal")
            node = parts["this"]
        if not isinstance(node, exp.Like):
            self._refuse(node, "uses ESCAPE without LIKE")
        negated = bool(node.args.get("negate"))
        parts = self._only(node, "this", "expression", ignore="negate")
        pattern = self._string(parts["expression"], "LIKE takes a string literal as its pattern")
        try:
            parse_pattern(pattern, escape)
        except ValueError as error:
            self._refuse(parts["expression"], f"is a malformed LIKE pattern: {error}")
        like = t.Like(self.value(parts["this"]), pattern, escape)
        return t.Not(like) if negated else like

    _predicates: Final[dict[type[Any], Callable[[_Reader, exp.Expr], t.Condition]]] = {
        exp.In: _in,
        exp.Between: _between,
        exp.Is: _is_null,
        exp.Like: _like,
        exp.Escape: _like,
    }

    def value(self, node: exp.Expr) -> t.Value:
        node = _bare(node)
        if isinstance(node, exp.Column | exp.Literal):
            return self._operand(self._token(node))
        # A chain of + nests to the left without brackets, so the scanner has not bounded it.
        self._depth += 1
        if self._depth > t.MAX_FILTER_DEPTH:
            self._refuse(
                node, f"nests deeper than {t.MAX_FILTER_DEPTH}; use brackets to balance it"
            )
        value = self._computed(node)
        self._depth -= 1
        return value

    def _computed(self, node: exp.Expr) -> t.Value:
        if isinstance(node, exp.Neg):
            operand = self._only(node, "this")["this"]
            if isinstance(operand, exp.Column) and self._token(operand).kind == "number":
                return self._number(self._token(operand), "-")
            return t.Negate(self.value(operand))
        if type(node) in _ARITHMETIC:
            sides = self._only(node, "this", "expression", ignore=("typed", "safe"))
            return t.Arithmetic(
                _ARITHMETIC[type(node)], self.value(sides["this"]), self.value(sides["expression"])
            )
        if not isinstance(node, exp.Anonymous):
            self._refuse(node, "is a condition or a list where a value is expected")
        return self._call(node)

    def _call(self, node: exp.Anonymous) -> t.Value:
        parts = self._only(node, "this", ignore="expressions")
        token = self._tokens[int(parts["this"].removeprefix(_FUNCTION))]
        name = cast("t.FunctionName", token.text)
        arguments = tuple(self.value(part) for part in node.args.get("expressions") or ())
        fewest, most = t.FUNCTIONS[name]
        if len(arguments) < fewest or (most is not None and len(arguments) > most):
            count = f"at least {fewest}" if most is None else str(fewest)
            self._refuse(node, f"takes {count} argument(s), not {len(arguments)}")
        return t.Call(name, arguments)

    def _constant(self, node: exp.Expr) -> t.Constant:
        value = self.value(node)
        if not isinstance(value, t.Constant):
            self._refuse(node, "is not a literal, and IN lists literals only")
        return value

    def _string(self, node: exp.Expr, reason: str) -> str:
        value = self.value(node)
        if not isinstance(value, t.Text):
            self._refuse(node, f"is not valid here: {reason}")
        return value.value

    def _operand(self, token: Scanned) -> t.Value:
        match token.kind:
            case "name":
                field = t.FIELD_NAMES.get(token.text.lower())
                return t.Header(token.text) if field is None else t.Field(field)
            case "quoted":
                return t.Header(token.text)
            case "text":
                return t.Text(token.text)
            case "number":
                return self._number(token, "")
            case _:
                return t.Null() if token.text == "NULL" else t.Boolean(token.text == "TRUE")

    def _number(self, token: Scanned, sign: str) -> t.Constant:
        if token.text.isdigit():
            whole = int(sign + token.text)
            if not t.INT64_MIN <= whole <= t.INT64_MAX:
                raise BadFilter(
                    f"The integer at {token.position} does not fit 64 bits; "
                    f"write {token.text}.0 for a float.",
                    position=token.position,
                )
            return t.Integer(whole)
        real = float(sign + token.text)
        if math.isinf(real):
            raise BadFilter(
                f"The number at {token.position} does not fit a float64.", position=token.position
            )
        return t.Float(real)

    def _token(self, node: exp.Column | exp.Literal) -> Scanned:
        part = node.this
        return self._tokens[int(part.this if isinstance(part, exp.Identifier) else part)]

    def _only(
        self, node: exp.Expr, *names: str, ignore: str | tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Return the arguments ``names`` of ``node``; refuse the node if it has others."""
        present = {name: part for name, part in node.args.items() if part not in (None, [], False)}
        extra = present.keys() - {*names, *((ignore,) if isinstance(ignore, str) else ignore)}
        if extra or not present.keys() >= set(names):
            self._refuse(node, "is not part of the filter language")
        return present

    def _refuse(self, node: exp.Expr, reason: str) -> NoReturn:
        token = self._tokens[min(_numbers(node), default=0)]
        raise BadFilter(
            f"The expression starting with {token.text!r} at {token.position} {reason}.",
            position=token.position,
        )


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _numbers(node: exp.Expr) -> list[int]:
    """The numbers of the tokens below ``node``; its text starts at the lowest."""
    numbers = []
    for part in node.walk():
        if isinstance(part, exp.Identifier | exp.Literal):
            numbers.append(int(part.this))
        elif isinstance(part, exp.Anonymous):
            numbers.append(int(str(part.this).removeprefix(_FUNCTION)))
    return numbers
