"""Parses a filter's tokens to its tree: recursive descent, one method per level of precedence.

An expression may turn out to be a value or a condition, because ``(a)`` and ``(a = 1)`` start
alike. The level above checks which one it got. Every refusal (E1) has the start and the end of the
text to blame. Each node is visited once, so parsing takes time linear in the text.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias, cast

from penstock.errors import BadFilter
from penstock.filters import tree as t
from penstock.filters.like import parse_pattern
from penstock.filters.scan import Scanned, scan
from penstock.filters.words import parse_words
from penstock.model.limits import MAX_FILTER_ITEMS, MAX_FILTER_NODES, MAX_FILTER_PATTERNS

__all__ = ["parse_tree"]

_COMPARE: Final = frozenset(("=", "<>", "<", "<=", ">", ">="))
_NEGATABLE: Final = frozenset(("IN", "BETWEEN", "LIKE"))
_PREDICATES: Final = _COMPARE | _NEGATABLE | {"NOT", "IS", "ESCAPE"}
_SUM: Final = frozenset("+-")
_PRODUCT: Final = frozenset("*/%")
_LITERALS: Final = frozenset(("text", "number", "constant"))
_OPERANDS: Final = _LITERALS | {"name", "quoted"}

#: What a bracket may hold, before the level above decides what it needs.
_Expression: TypeAlias = t.Value | t.Condition


def parse_tree(text: str) -> t.Condition:
    """Return the tree of the filter ``text``, or raise :class:`BadFilter`."""
    try:
        tree = _Parser(scan(text)).filter()
    except RecursionError:
        # The parser bounds nesting; this is for callers whose stack is already deep.
        raise BadFilter("The filter nests too deeply.", position=0, end=len(text)) from None
    _check_bounds(tree, len(text))
    return tree


def _check_bounds(tree: t.Condition, end: int) -> None:
    nodes = items = patterns = deepest = 0
    for node, depth in t.walk(tree, with_items=False):
        nodes += not isinstance(node, t.Truth)
        deepest = max(deepest, depth)
        match node:
            case t.In():
                items += len(node.items)
            case t.Like(pattern=pattern) | t.Call("matches_words", (_, t.Text(pattern))):
                patterns += len(pattern)
    for found, what, limit in (
        (deepest, "levels of nesting", t.MAX_FILTER_DEPTH),
        (nodes, "nodes", MAX_FILTER_NODES),
        (items, "list items", MAX_FILTER_ITEMS),
        (patterns, "characters of patterns", MAX_FILTER_PATTERNS),
    ):
        if found > limit:
            raise BadFilter(
                f"The filter has {found} {what}, over the limit of {limit}.",
                position=0,
                end=end,
                limit=limit,
            )


class _Parser:
    """Reads the tokens of one filter from left to right."""

    def __init__(self, tokens: list[Scanned]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def filter(self) -> t.Condition:
        """The whole text."""
        if len(self._tokens) == 1:
            raise BadFilter(
                "The filter is empty; write TRUE to match every message.",
                position=0,
                end=self._token.end,
            )
        expression = self._disjunction()
        if not self._ends:
            raise self._refuse_after_operand()
        return self._condition(0, expression)

    # -- conditions ----------------------------------------------------------------------

    def _disjunction(self) -> _Expression:
        first = self._next
        expression = self._conjunction()
        if self._sign != "OR":
            return expression
        operands: list[t.Condition] = []
        _extend(operands, t.Or, self._condition(first, expression))
        while self._take("OR"):
            first = self._next
            _extend(operands, t.Or, self._condition(first, self._conjunction()))
        return t.Or(tuple(operands))

    def _conjunction(self) -> _Expression:
        first = self._next
        expression = self._negation()
        if self._sign != "AND":
            return expression
        operands: list[t.Condition] = []
        _extend(operands, t.And, self._condition(first, expression))
        while self._take("AND"):
            first = self._next
            _extend(operands, t.And, self._condition(first, self._negation()))
        return t.And(tuple(operands))

    def _negation(self) -> _Expression:
        if self._sign != "NOT":
            return self._predicate()
        self._enter()
        first = self._next
        operand = self._condition(first, self._negation())
        self._depth -= 1
        return t.Not(operand)

    def _predicate(self) -> _Expression:
        first = self._next
        expression = self._sum()
        while self._sign in _PREDICATES:
            left = self._value(first, expression)
            sign = self._token.text
            if sign in _COMPARE:
                self._next += 1
                right = self._operand()
                expression = t.Compare(cast("t.CompareOperator", sign), left, right)
            else:
                expression = self._words(left)
        return expression

    def _words(self, left: t.Value) -> t.Condition:
        """A predicate that is written with keywords."""
        token = self._token
        self._next += 1
        match token.text:
            case "NOT" if self._sign in _NEGATABLE:
                return t.Not(self._words(left))
            case "NOT":
                raise self._expected("IN, BETWEEN or LIKE after NOT", token)
            case "IN":
                return t.In(left, self._items(token))
            case "BETWEEN":
                low = self._operand()
                if not self._take("AND"):
                    raise self._expected("AND and the upper bound of BETWEEN", self._token)
                return t.Between(left, low, self._operand())
            case "LIKE":
                return self._like(left)
            case "IS":
                return self._is_null(left, token)
            case _:
                raise self._refuse("uses ESCAPE without LIKE", token, token)

    def _items(self, keyword: Scanned) -> tuple[t.Constant, ...]:
        if self._sign != "(":
            raise self._expected("a list in brackets after IN", keyword)
        plain = self._plain_items()
        if plain:
            return plain
        items: list[t.Constant] = []
        for first, last, value in self._list():
            if not isinstance(value, t.Constant):
                reason = "is not a literal, and IN lists literals only"
                raise self._refuse(reason, self._tokens[first], self._tokens[last])
            items.append(value)
        return tuple(items)

    def _plain_items(self) -> tuple[t.Constant, ...]:
        """The items of a list without signs and brackets; empty if the list has any.

        Generated lists have thousands of items, and this takes a third of the time per item.
        """
        tokens = self._tokens
        items: list[t.Constant] = []
        place = self._next + 1
        while True:
            item = tokens[place]
            if item.kind not in _LITERALS:
                return ()
            # The last token is not a literal, so there is one more.
            after = tokens[place + 1]
            if after.kind != "sign" or after.text not in ",)":
                return ()
            items.append(cast("t.Constant", _literal_or_name(item)))
            place += 2
            if after.text == ")":
                self._next = place
                return tuple(items)

    def _is_null(self, left: t.Value, keyword: Scanned) -> t.Condition:
        negation = self._token
        negated = self._take("NOT")
        if self._token.kind != "constant" or self._token.text != "NULL":
            if negated:
                raise self._expected("NULL after IS NOT", negation)
            raise self._expected("NULL or NOT NULL after IS", keyword)
        self._next += 1
        return t.Not(t.IsNull(left)) if negated else t.IsNull(left)

    def _like(self, left: t.Value) -> t.Condition:
        first = self._next
        pattern = self._string("LIKE takes a string literal as its pattern")
        last = self._tokens[self._next - 1]
        escape = self._string("ESCAPE takes a string literal") if self._take("ESCAPE") else None
        try:
            parse_pattern(pattern, escape)
        except ValueError as error:
            reason = f"is a malformed LIKE pattern: {error}"
            raise self._refuse(reason, self._tokens[first], last) from None
        return t.Like(left, pattern, escape)

    def _string(self, reason: str) -> str:
        first = self._next
        value = self._operand()
        if not isinstance(value, t.Text):
            raise self._refuse_from(first, f"is not valid here: {reason}")
        return value.value

    # -- values --------------------------------------------------------------------------

    def _operand(self) -> t.Value:
        first = self._next
        return self._value(first, self._sum())

    def _sum(self) -> _Expression:
        first = self._next
        expression = self._product()
        length = 1
        while self._sign in _SUM:
            left = self._value(first, expression)
            sign = cast("t.ArithmeticOperator", self._operator(length))
            length += 1
            right_first = self._next
            expression = t.Arithmetic(sign, left, self._value(right_first, self._product()))
        return expression

    def _product(self) -> _Expression:
        first = self._next
        expression = self._unary()
        length = 1
        while self._sign in _PRODUCT:
            left = self._value(first, expression)
            sign = cast("t.ArithmeticOperator", self._operator(length))
            length += 1
            right_first = self._next
            expression = t.Arithmetic(sign, left, self._value(right_first, self._unary()))
        return expression

    def _operator(self, length: int) -> str:
        """Take an arithmetic operator. A chain of them nests to the left."""
        if length > t.MAX_FILTER_DEPTH:
            raise self._too_deep("; use brackets to balance it")
        self._next += 1
        return self._tokens[self._next - 1].text

    def _unary(self) -> _Expression:
        sign = self._sign
        if sign not in ("-", "+"):
            return self._primary()
        self._enter()
        token = self._token
        if sign == "-" and token.kind == "number":
            self._next += 1
            value: t.Value = _number(token, "-")
        else:
            first = self._next
            operand = self._value(first, self._unary())
            value = t.Negate(operand) if sign == "-" else _plus(operand)
        self._depth -= 1
        return value

    def _primary(self) -> _Expression:
        token = self._token
        if token.kind in _OPERANDS:
            self._next += 1
            return _literal_or_name(token)
        if token.kind == "function":
            return self._call(token)
        if token.text != "(" or token.kind != "sign":
            raise self._refuse_before_operand()
        self._enter()
        expression = self._disjunction()
        self._close()
        return expression

    def _call(self, token: Scanned) -> t.Value:
        name = cast("t.FunctionName", token.text)
        self._next += 1
        parts = self._list()
        arguments = tuple(argument for _, _, argument in parts)
        fewest, most = t.FUNCTIONS[name]
        if len(arguments) < fewest or (most is not None and len(arguments) > most):
            count = f"at least {fewest}" if most is None else str(fewest)
            reason = f"takes {count} argument(s), not {len(arguments)}"
            raise self._refuse(reason, token, self._tokens[self._next - 1])
        if name == "matches_words":
            self._check_words(arguments[1], parts[1][0])
        return t.Call(name, arguments)

    def _check_words(self, pattern: t.Value, first: int) -> None:
        if not isinstance(pattern, t.Text):
            raise self._refuse(
                "is not valid here: the pattern is a string literal", self._tokens[first]
            )
        try:
            parse_words(pattern.value)
        except ValueError as error:
            reason = f"is a malformed word pattern: {error}"
            raise self._refuse(reason, self._tokens[first]) from None

    def _list(self) -> list[tuple[int, int, t.Value]]:
        """Values in brackets, separated by commas, each after its first and its last token."""
        self._enter()
        values: list[tuple[int, int, t.Value]] = []
        while True:
            first = self._next
            value = self._value(first, self._disjunction())
            values.append((first, self._next - 1, value))
            if not self._take(","):
                self._close()
                return values

    # -- tokens --------------------------------------------------------------------------

    @property
    def _token(self) -> Scanned:
        return self._tokens[self._next]

    @property
    def _ends(self) -> bool:
        """Whether there are no more tokens."""
        return self._next == len(self._tokens) - 1

    @property
    def _sign(self) -> str:
        """The text of the next token if it is an operator, keyword, bracket or comma."""
        token = self._tokens[self._next]
        return token.text if token.kind == "sign" else ""

    def _take(self, sign: str) -> bool:
        """Whether the next token is ``sign``, which is then skipped."""
        token = self._tokens[self._next]
        if token.text != sign or token.kind != "sign":
            return False
        self._next += 1
        return True

    def _enter(self) -> None:
        """Skip a bracket or a prefix operator: each makes the parser recurse."""
        if self._depth >= t.MAX_FILTER_DEPTH:
            raise self._too_deep("")
        self._depth += 1
        self._next += 1

    def _close(self) -> None:
        if self._ends:
            raise BadFilter(
                "A bracket is not closed at the end of the filter.",
                position=self._token.position,
                end=self._token.end,
            )
        if not self._take(")"):
            raise self._refuse_after_operand()
        self._depth -= 1

    # -- what an expression turns out to be --------------------------------------------------

    def _condition(self, first: int, expression: _Expression) -> t.Condition:
        """``expression``, whose first token is ``first``, as a condition."""
        if isinstance(expression, t.Condition):
            return expression
        if not t.may_be_boolean(expression):
            raise self._refuse_from(first, "is not a condition: compare it with something")
        return t.Truth(expression)

    def _value(self, first: int, expression: _Expression) -> t.Value:
        """``expression``, whose first token is ``first``, as a value."""
        if isinstance(expression, t.Value):
            return expression
        raise self._refuse_from(first, "is a condition where a value is expected")

    # -- refusing ------------------------------------------------------------------------

    def _refuse_from(self, first: int, reason: str) -> BadFilter:
        """Refuse the expression from the token ``first`` to the one before the next."""
        return self._refuse(reason, self._tokens[first], self._tokens[self._next - 1])

    def _refuse(self, reason: str, first: Scanned, last: Scanned | None = None) -> BadFilter:
        return BadFilter(
            f"The expression starting with {first.text!r} at {first.position} {reason}.",
            position=first.position,
            end=(last or first).end,
        )

    def _expected(self, what: str, token: Scanned) -> BadFilter:
        return BadFilter(
            f"Expected {what} at {token.position}.", position=token.position, end=token.end
        )

    def _refuse_before_operand(self) -> BadFilter:
        token, before = self._token, self._tokens[self._next - 1]
        if token.kind == "end":
            return BadFilter(
                f"The filter ends after {before.text!r}.", position=token.position, end=token.end
            )
        if token.text == ")" and self._next and before.text == "(":
            return self._expected("something in the brackets before ')'", token)
        return self._expected(f"a name or a literal before {token.text!r}", token)

    def _refuse_after_operand(self) -> BadFilter:
        token = self._token
        if token.kind == "sign" and token.text == ")":
            return BadFilter(
                f"The bracket at {token.position} closes nothing.",
                position=token.position,
                end=token.end,
            )
        return self._expected(f"AND, OR or an operator before {token.text!r}", token)

    def _too_deep(self, hint: str) -> BadFilter:
        token = self._token
        return BadFilter(
            f"The filter nests deeper than {t.MAX_FILTER_DEPTH} at {token.position}{hint}.",
            position=token.position,
            end=token.end,
            limit=t.MAX_FILTER_DEPTH,
        )


def _extend(operands: list[t.Condition], kind: type[t.And | t.Or], operand: t.Condition) -> None:
    """Add ``operand``, flat: the operands of a chain in brackets are added one by one."""
    if isinstance(operand, kind):
        operands += operand.operands
    else:
        operands.append(operand)


def _plus(operand: t.Value) -> t.Value:
    """``+operand``: a number unchanged, NULL for any other type, as for ``-``."""
    if isinstance(operand, t.Integer | t.Float):
        return operand
    return t.Arithmetic("+", t.Integer(0), operand)


def _literal_or_name(token: Scanned) -> t.Value:
    match token.kind:
        case "name":
            field = t.FIELD_NAMES.get(token.text.lower())
            return t.Header(token.text) if field is None else t.Field(field)
        case "quoted":
            return t.Header(token.text)
        case "text":
            return t.Text(token.text)
        case "number":
            return _number(token, "")
        case _:
            return t.Null() if token.text == "NULL" else t.Boolean(token.text == "TRUE")


def _number(token: Scanned, sign: str) -> t.Constant:
    if token.text.isdigit():
        whole = int(sign + token.text)
        if not t.INT64_MIN <= whole <= t.INT64_MAX:
            raise BadFilter(
                f"The integer at {token.position} does not fit 64 bits; "
                f"write {token.text}.0 for a float.",
                position=token.position,
                end=token.end,
            )
        return t.Integer(whole)
    real = float(sign + token.text)
    if math.isinf(real):
        raise BadFilter(
            f"The number at {token.position} does not fit a float64.",
            position=token.position,
            end=token.end,
        )
    return t.Float(real)
