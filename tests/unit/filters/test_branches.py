"""Which types of a header can make a difference to a filter (R1)."""

from __future__ import annotations

import pytest

from penstock.filters import parse
from penstock.filters.to_arrow.branches import parts_read


@pytest.mark.parametrize(
    "text, parts",
    [
        ("a = 'x'", {"a": "s"}),
        ("NOT 'x' < a", {"a": "s"}),
        ("a = 1", {"a": "id"}),
        ("a >= 1.5", {"a": "id"}),
        ("a = TRUE", {"a": "b"}),
        ("a", {"a": "b"}),
        ("a = NULL", {"a": ""}),
        ("a = topic", {"a": "s"}),
        ("a = size", {"a": "id"}),
        ("a = b", {"a": "sidb", "b": "sidb"}),
        ("a IN ('x', 'y')", {"a": "s"}),
        ("a IN ('x', 1, TRUE, NULL)", {"a": "sidb"}),
        ("a BETWEEN 1 AND 2", {"a": "id"}),
        ("a BETWEEN b AND 'x'", {"a": "sidb", "b": "sidb"}),
        ("size BETWEEN a AND b", {"a": "id", "b": "id"}),
        ("a LIKE 'x%'", {"a": "s"}),
        ("a IS NULL", {"a": "sidb"}),
        ("a + 1 > b * 2", {"a": "id", "b": "id"}),
        ("-a > 1", {"a": "id"}),
        ("a + 1 > b", {"a": "id", "b": "id"}),
        ("lower(a) = 'x'", {"a": "s"}),
        ("length(a) > b", {"a": "s", "b": "sidb"}),
        ("contains(a, b)", {"a": "s", "b": "s"}),
        ("coalesce(a, 1) = 1", {"a": "sidb"}),
        ("a > 1 AND a = 'x' OR b", {"a": "sid", "b": "b"}),
        ("topic = 'x'", {}),
    ],
)
def test_parts_that_matter(text: str, parts: dict[str, str]) -> None:
    assert parts_read([parse(text).tree]) == parts


def test_parts_of_several_filters_are_those_of_each() -> None:
    trees = [parse(text).tree for text in ("b = 1", "a = 'x'", "b = 'y'")]
    assert list(parts_read(trees).items()) == [("a", "s"), ("b", "sid")]
