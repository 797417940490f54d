from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from penstock.errors import BadFilter
from penstock.filters import parse
from penstock.filters.tree import MAX_FILTER_DEPTH
from penstock.model.limits import (
    MAX_FILTER_BYTES,
    MAX_FILTER_ITEMS,
    MAX_FILTER_NODES,
    MAX_FILTER_PATTERNS,
)
from penstock.testing.laws import law


def test_is_frozen_and_equal_by_text() -> None:
    one = parse("topic = 'x'")
    assert one is parse("topic = 'x'")
    assert one != parse("topic  = 'x'")
    assert len({one, parse("topic = 'x'")}) == 1
    with pytest.raises(AttributeError):
        one.text = "TRUE"


def test_survives_pickling(message) -> None:
    again = pickle.loads(pickle.dumps(parse("topic = 'orders'")))
    assert again == parse("topic = 'orders'")
    assert again.matches(message())


def test_importing_filters_does_not_import_pyarrow() -> None:
    check = "import sys, penstock.filters; sys.exit('pyarrow' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", check], env=environment).returncode == 0


@law("E1")
@pytest.mark.parametrize("wrong", [None, 5, b"TRUE"])
def test_only_strings(wrong: Any) -> None:
    with pytest.raises(BadFilter):
        parse(wrong)


@law("E1")
def test_bytes_are_counted_in_utf8() -> None:
    longest = "a = '" + "é" * ((MAX_FILTER_BYTES - 6) // 2) + "'"
    parse(longest)
    with pytest.raises(BadFilter) as refusal:
        parse(longest + "  ")
    assert refusal.value.limit == MAX_FILTER_BYTES


@law("E1")
def test_nodes_are_bounded() -> None:
    parse(" OR ".join(["a"] * (MAX_FILTER_NODES - 1)))
    with pytest.raises(BadFilter) as refusal:
        parse(" OR ".join(["a"] * MAX_FILTER_NODES))
    assert refusal.value.limit == MAX_FILTER_NODES


@law("E1")
def test_list_items_are_bounded() -> None:
    most = ", ".join(map(str, range(MAX_FILTER_ITEMS)))
    parse(f"a IN ({most}) AND {' AND '.join(['b'] * (MAX_FILTER_NODES - 3))}")
    with pytest.raises(BadFilter) as refusal:
        parse(f"a IN ({most}) OR b IN (1)")
    assert refusal.value.limit == MAX_FILTER_ITEMS


@law("E1")
@pytest.mark.parametrize("text", ["a LIKE '{}'", "matches_words(a, '{}')"])
def test_patterns_are_bounded_together(text: str) -> None:
    half = text.format("x" * (MAX_FILTER_PATTERNS // 2))
    parse(f"{half} OR {half}")
    with pytest.raises(BadFilter) as refusal:
        parse(f"{half} OR {half} OR b LIKE '%'")
    assert refusal.value.limit == MAX_FILTER_PATTERNS


def test_long_filters_count_as_several_evaluations() -> None:
    assert parse("a = 1").weight == 1
    assert parse(f"a IN ({', '.join(map(str, range(MAX_FILTER_ITEMS)))})").weight == 1
    assert parse(" OR ".join(["a > b"] * (MAX_FILTER_NODES // 3))).weight > 10


@law("E1")
@pytest.mark.parametrize(
    "before, after",
    [("(", ")"), ("NOT ", ""), ("NOT (", ")"), ("coalesce(", ")"), ("a OR (b AND ", ")")],
)
def test_depth_is_bounded_and_the_bound_compiles(before: str, after: str, message) -> None:
    step = before.count("(") + before.count("NOT") + before.count("AND")
    deepest = (MAX_FILTER_DEPTH - 2) // step
    parse(before * deepest + "c" + after * deepest).matches(message())
    with pytest.raises(BadFilter):
        parse(before * (MAX_FILTER_DEPTH + 1) + "c" + after * (MAX_FILTER_DEPTH + 1))


@law("E1")
@pytest.mark.parametrize(
    "text", ["(" * 4000, "NOT " * 1000, "- " * 2000, "+ " * 2000, "lower(" * 600]
)
def test_depth_is_refused_deep_in_the_stack_too(text: str) -> None:
    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            parse(text)

    with pytest.raises(BadFilter):
        deeper(600)


NASTY = [
    "'); import os; ('",
    "\\'); raise SystemExit #",
    "{__builtins__}",
    "' or True or '",
    'a"b',
    "\n\r\t\u2028",
    "m.topic",
    "%s%(x)s",
]


@pytest.mark.parametrize("nasty", NASTY)
def test_names_and_literals_stay_data(nasty: str, message) -> None:
    name = '"' + nasty.replace('"', '""') + '"'
    literal = "'" + nasty.replace("'", "''") + "'"
    filter_ = parse(f"{name} = {literal} AND {name} IN ({literal}) AND {name} >= {literal}")
    assert filter_.matches(message(**{nasty: nasty}))
    assert not filter_.matches(message(**{nasty: "x"}))
    assert not filter_.matches(message())
