"""R1: every compiler of a filter agrees, the index finds what brute force finds, and the
canonical text of a tree parses back to it."""

from __future__ import annotations

import math
from functools import reduce

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import BadFilter
from penstock.filters import Filter, FilterIndex, explain, parse
from penstock.filters import tree as t
from penstock.filters.parse import parse_tree
from penstock.filters.to_python import to_python
from penstock.filters.to_text import to_text
from penstock.filters.values import evaluate
from penstock.model.limits import MAX_FILTER_BYTES, MAX_FILTER_NODES
from penstock.model.message import Message, MessageId, Offset
from penstock.testing.laws import law

NAMES = ["a", "b", "x-y", "topic", 'q"q', "NOT"]
EDGES = [
    0,
    1,
    -1,
    2,
    3,
    t.INT64_MAX,
    t.INT64_MIN,
    2**53,
    2**53 + 1,
    -(2**53) - 1,
    2**62,
    3037000500,
]
FLOATS = [0.0, -0.0, 1.0, 0.5, -1.5, 2.0**53, 2.0**63, -(2.0**63), 1e300, 5e-324]

words = st.sampled_from(
    ["", "a", "A", "ab", "aXb", "é", "É", "ß", "😀", "\uffff", "a\nb", "%", "_", "x", "'"]
)
dotted = st.lists(st.sampled_from(["a", "b", "ab", "é", "", "x\ny"]), max_size=5).map(".".join)
texts = (
    words
    | dotted
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6)
)
integers = st.sampled_from(EDGES) | st.integers(t.INT64_MIN, t.INT64_MAX)
finite = st.sampled_from(FLOATS) | st.floats(allow_nan=False, allow_infinity=False)
floats = finite | st.sampled_from([math.nan, math.inf, -math.inf])
header_values = texts | integers | floats | st.booleans()


@st.composite
def messages(draw: st.DrawFn) -> Message:
    return Message(
        id=MessageId(1),
        offset=Offset(1),
        topic=draw(st.sampled_from(["a", "ab", "orders"])),
        priority=draw(st.integers(0, 9)),
        published_at=draw(st.sampled_from([0, 1_700_000_000_000])),
        deliver_at=0,
        expires_at=None,
        size=draw(st.sampled_from([0, 1, 2**20])),
        checksum=0,
        partition_key=draw(st.none() | words),
        key=draw(st.none() | words),
        content_type=draw(st.none() | words),
        headers=draw(st.dictionaries(st.sampled_from(NAMES), header_values, max_size=4)),
    )


constants = st.one_of(
    st.builds(t.Text, texts),
    st.builds(t.Integer, integers),
    st.builds(t.Float, finite),
    st.builds(t.Boolean, st.booleans()),
    st.just(t.Null()),
)
sources = st.builds(t.Field, st.sampled_from(list(t.FIELD_NAMES.values()))) | st.builds(
    t.Header, st.sampled_from(NAMES)
)


word_patterns = st.lists(st.sampled_from(["*", "#", "a", "b", "ab", "é", ""]), max_size=5).map(
    ".".join
)


def _calls(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(
        st.builds(
            lambda f, v: t.Call(f, (v,)), st.sampled_from(["lower", "upper", "length"]), values
        ),
        st.builds(
            lambda f, a, b: t.Call(f, (a, b)),
            st.sampled_from(["starts_with", "ends_with", "contains"]),
            values,
            values,
        ),
        st.builds(lambda v, p: t.Call("matches_words", (v, t.Text(p))), values, word_patterns),
        st.builds(lambda v: t.Call("coalesce", tuple(v)), st.lists(values, min_size=1, max_size=3)),
    )


values = st.recursive(
    sources | constants,
    lambda below: st.one_of(
        st.builds(t.Arithmetic, st.sampled_from(["+", "-", "*", "/", "%"]), below, below),
        st.builds(t.Negate, below),
        _calls(below),
    ),
    max_leaves=5,
)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[str, str | None]:
    pieces = draw(st.lists(st.sampled_from(["%", "_", "a", "b", "A", "é", "\n", "!"]), max_size=6))
    escape = draw(st.sampled_from([None, "!", "%"]))
    if escape is None:
        return "".join(pieces), None
    return "".join(escape + p if p in ("!", "%") and p == escape else p for p in pieces), escape


leaves = st.one_of(
    st.builds(t.Compare, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), values, values),
    st.builds(t.Compare, st.just("="), sources, constants),
    st.builds(t.In, values, st.lists(constants, min_size=1, max_size=4).map(tuple)),
    st.builds(t.Between, values, values, values),
    st.builds(lambda v, p: t.Like(v, *p), values, patterns()),
    st.builds(t.IsNull, values),
    values.filter(t.may_be_boolean).map(t.Truth),
)


def flat(kind: type[t.And | t.Or], parts: list[t.Condition]) -> t.Condition:
    flat: list[t.Condition] = []
    for part in parts:
        if isinstance(part, t.And | t.Or) and type(part) is kind:
            flat += part.operands
        else:
            flat.append(part)
    return kind(tuple(flat))


conditions = st.recursive(
    leaves,
    lambda below: st.one_of(
        st.builds(t.Not, below),
        st.builds(lambda p: flat(t.And, p), st.lists(below, min_size=2, max_size=3)),
        st.builds(lambda p: flat(t.Or, p), st.lists(below, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)


def _within_bounds(tree: t.Condition) -> bool:
    nodes = list(t.walk(tree))
    return (
        len(nodes) <= MAX_FILTER_NODES
        and max(depth for _, depth in nodes) <= t.MAX_FILTER_DEPTH // 2
        and len(to_text(tree).encode()) <= MAX_FILTER_BYTES
    )


trees = conditions.filter(_within_bounds)


# -- a second opinion, written without looking at the package's own operators -------------


def _nan(value):
    return isinstance(value, float) and math.isnan(value)


def _same_type(a, b) -> bool:
    def group(v):
        return "b" if isinstance(v, bool) else "s" if isinstance(v, str) else "n"

    return a is not None and b is not None and group(a) == group(b)


def _refer_compare(op, a, b):
    if not _same_type(a, b):
        return None
    order = (a > b) - (a < b)
    wanted = {"=": "e", "<>": "lg", "<": "l", "<=": "le", ">": "g", ">=": "ge"}[op]
    return {-1: "l", 0: "e", 1: "g"}[order] in wanted


def _refer_arithmetic(op, a, b):
    if any(v is None or isinstance(v, bool | str) for v in (a, b)):
        return None
    whole = isinstance(a, int) and isinstance(b, int)
    if op in "/%" and (b == 0 or (op == "%" and not whole)):
        return None
    if op == "/":
        return _refer_fit(float(a) / float(b))
    if op == "%":
        return _refer_fit(a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)))
    x, y = (a, b) if whole else (float(a), float(b))
    return _refer_fit(x + y if op == "+" else x - y if op == "-" else x * y)


def _refer_fit(result):
    if isinstance(result, float):
        return result if math.isfinite(result) else None
    return result if -(2**63) <= result < 2**63 else None


def _fold(text, upper):
    lo, hi, shift = ("a", "z", -32) if upper else ("A", "Z", 32)
    return "".join(chr(ord(c) + shift) if lo <= c <= hi else c for c in text)


def _refer_call(name, args):
    if name == "coalesce":
        return next((a for a in args if a is not None), None)
    if not all(isinstance(a, str) for a in args):
        return None
    a, b = args[0], args[-1]
    return {
        "lower": lambda: _fold(a, False),
        "upper": lambda: _fold(a, True),
        "length": lambda: len(a),
        "starts_with": lambda: a[: len(b)] == b,
        "ends_with": lambda: b == "" or a[-len(b) :] == b,
        "contains": lambda: b in a,
        "matches_words": lambda: _refer_words(b.split(".") if b else [], a.split(".") if a else []),
    }[name]()


def _refer_words(pattern, words):
    """The definition, as a recursion that tries every length of #."""
    if not pattern:
        return not words
    first, *rest = pattern
    if first == "#":
        return any(_refer_words(rest, words[n:]) for n in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and _refer_words(rest, words[1:])


def _refer_value(node, message):
    match node:
        case t.Field(name):
            return getattr(message, name)
        case t.Header(name):
            value = message.headers.get(name)
            return None if _nan(value) else value
        case t.Null():
            return None
        case t.Arithmetic(op, a, b):
            return _refer_arithmetic(op, _refer_value(a, message), _refer_value(b, message))
        case t.Negate(a):
            # -0.0 rather than 0, so that a float keeps its sign; equality cannot tell.
            return _refer_arithmetic("*", -1, _refer_value(a, message))
        case t.Call(name, args):
            return _refer_call(name, [_refer_value(a, message) for a in args])
    return node.value


def _refer_like(pattern, escape, text):
    """Dynamic programming over (pattern, text) positions: quadratic and obvious."""
    parts, i = [], 0
    while i < len(pattern):
        if pattern[i] == escape:
            parts.append(("is", pattern[i + 1]))
            i += 2
            continue
        parts.append({"%": ("any", ""), "_": ("one", "")}.get(pattern[i], ("is", pattern[i])))
        i += 1
    row = [True] + [False] * len(text)
    for kind, c in parts:
        if kind == "any":
            row = [any(row[: j + 1]) for j in range(len(row))]
        else:
            row = [False] + [row[j] and (kind == "one" or text[j] == c) for j in range(len(text))]
    return row[-1]


def _or(verdicts):
    return True if True in verdicts else None if None in verdicts else False


def _negated(verdict):
    return None if verdict is None else not verdict


def refer(node, message):
    """The reference verdict."""
    match node:
        case t.Compare(op, a, b):
            return _refer_compare(op, _refer_value(a, message), _refer_value(b, message))
        case t.In(a, items):
            value = _refer_value(a, message)
            return _or([_refer_compare("=", value, _refer_value(i, message)) for i in items])
        case t.Between(a, low, high):
            both = t.And((t.Compare(">=", a, low), t.Compare("<=", a, high)))
            return refer(both, message)
        case t.Like(a, pattern, escape):
            value = _refer_value(a, message)
            return _refer_like(pattern, escape, value) if isinstance(value, str) else None
        case t.IsNull(a):
            return _refer_value(a, message) is None
        case t.Truth(a):
            value = _refer_value(a, message)
            return value if isinstance(value, bool) else None
        case t.Not(a):
            return _negated(refer(a, message))
        case t.And(parts):
            return _negated(_or([_negated(refer(p, message)) for p in parts]))
        case t.Or(parts):
            return _or([refer(p, message) for p in parts])


# -- the properties ----------------------------------------------------------------------


@law("R1")
@settings(deadline=None, max_examples=300)
@given(trees, st.lists(messages(), min_size=1, max_size=5))
def test_every_compiler_agrees(tree: t.Condition, rows: list[Message]) -> None:
    arrow = pytest.importorskip("penstock.filters.to_arrow")
    expected = [refer(tree, row) for row in rows]
    is_true, is_false = to_python(tree), to_python(t.Not(tree))
    assert [is_true(row) for row in rows] == [verdict is True for verdict in expected]
    assert [is_false(row) for row in rows] == [verdict is False for verdict in expected]
    assert [evaluate(tree, row) for row in rows] == expected
    assert arrow.to_arrow(tree, arrow.Columns(arrow.batch_of(rows))).to_pylist() == expected


@settings(deadline=None)
@given(trees, messages())
def test_explain_blames_something_iff_the_filter_is_not_true(
    tree: t.Condition, message: Message
) -> None:
    checked = Filter(to_text(tree))
    explanation = explain(checked, message)
    assert explanation.verdict == refer(tree, message)
    assert explanation.matches == checked.matches(message) == (not explanation.blames)
    for blame in explanation.blames:
        assert evaluate(parse_tree(blame.clause), message) is blame.verdict is not True
        assert str(blame)


@settings(deadline=None)
@given(trees)
def test_canonical_text_parses_back(tree: t.Condition) -> None:
    assert parse_tree(to_text(tree)) == tree


@law("R1")
@settings(deadline=None)
@given(st.lists(trees, max_size=8), st.lists(messages(), max_size=4), st.data())
def test_index_finds_what_brute_force_finds(
    filters: list[t.Condition], rows: list[Message], data: st.DataObject
) -> None:
    index: FilterIndex[int] = FilterIndex()
    present = {f"q{n}": (parse(to_text(tree)), n) for n, tree in enumerate(filters)}
    for name in data.draw(st.permutations(sorted(present))):
        index.add(name, *present[name])
    for row in rows:
        wanted = [n for _, (f, n) in sorted(present.items()) if f.matches(row)]
        assert index.match(row) == wanted
        if present:
            name = data.draw(st.sampled_from(sorted(present)))
            if data.draw(st.booleans()):
                index.replace(name, parse("TRUE"), 99)
                present[name] = (parse("TRUE"), 99)
            else:
                index.remove(name)
                del present[name]
            assert index.match(row) == [
                n for _, (f, n) in sorted(present.items()) if f.matches(row)
            ]
    assert list(index) == sorted(present)


simple = st.builds(
    lambda parts: reduce(lambda a, b: flat(t.And, [a, b]), parts),
    st.lists(st.builds(t.Compare, st.just("="), sources, constants), min_size=1, max_size=3),
)


disjunctions = st.builds(lambda p: flat(t.Or, p), st.lists(simple, min_size=2, max_size=3))


@law("R1")
@settings(deadline=None)
@given(st.lists(simple | disjunctions, min_size=1, max_size=30), messages())
def test_hash_lookup_is_equality(filters: list[t.Condition], row: Message) -> None:
    index: FilterIndex[str] = FilterIndex()
    for n, tree in enumerate(filters):
        index.add(f"q{n:02}", parse(to_text(tree)), f"q{n:02}")
    assert index.match(row) == [f"q{n:02}" for n, f in enumerate(filters) if refer(f, row) is True]


ALPHABET = [
    *("a", "topic", '"x"', "'s'", "1", "1.5", "(", ")", ",", "=", "<>", "!=", "<", "-", "--"),
    *(
        "+",
        "1.",
        "1.E1",
        "matches_words(",
        "'a.#'",
        "*",
        "/",
        "%",
        "AND",
        "OR",
        "NOT",
        "IN",
        "LIKE",
        "ESCAPE",
        "BETWEEN",
        "IS",
        "NULL",
    ),
    *("TRUE", "lower(", "cast(", ";", "::", ".", "é", "\x00", "\ud800", "'", '"', "/*"),
    *("SELECT", "0x1F", "||", "@", "?", "{", "\\"),
]


@law("E1")
@settings(deadline=None)
@given(st.lists(st.sampled_from(ALPHABET), max_size=25).map(" ".join) | st.text(max_size=30))
@example("(" * 32_000)
@example("NOT " * 8_000)
@example("- " * 16_000)
@example("+ " * 16_000)
@example("a + " * 8_000 + "a")
@example("NOT a BETWEEN b AND " * 1_600 + "c")
@example("lower(" * 5_000)
@example("a AND (" * 4_600)
def test_any_text_parses_or_is_refused_with_a_position(text: str) -> None:
    position: int | None = 0
    end: int | None = 0
    try:
        tree = parse_tree(text)
        assert parse_tree(to_text(tree)) == tree
    except BadFilter as error:
        position, end = error.position, error.end
    assert position is not None
    assert end is not None
    assert 0 <= position <= end <= len(text)
