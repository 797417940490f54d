from __future__ import annotations

from math import nan

import pytest

from penstock.filters import explain, parse


@pytest.mark.parametrize(
    "text, headers, said",
    [
        ("amount >= 100", {}, "amount >= 100 is NULL because header amount is absent"),
        (
            "country IN ('DE','AT')",
            {"country": "FR"},
            "country IN ('DE', 'AT') is FALSE because country is 'FR'",
        ),
        (
            "amount >= 100",
            {"amount": "150"},
            "amount >= 100 is NULL because amount is '150' (a string)",
        ),
        ("amount >= 100", {"amount": nan}, "amount >= 100 is NULL because header amount is NaN"),
        ("key = 'k'", {}, "key = 'k' is NULL because key is not set"),
        ("urgent", {"urgent": False}, "urgent is FALSE because urgent is FALSE"),
        ("FALSE", {}, "FALSE is FALSE because it reads nothing of the message"),
        ("topic = 'orders'", {}, "topic = 'orders' is TRUE"),
        (
            "topic = 'x' AND (a = 1 OR b = 2) AND priority = 4",
            {"a": 2},
            (
                "topic = 'x' is FALSE because topic is 'orders'; a = 1 is FALSE because a is 2; "
                "b = 2 is NULL because header b is absent"
            ),
        ),
        ("NOT (a = 1 OR b = 2)", {"a": 1, "b": 3}, "NOT a = 1 is FALSE because a is 1"),
        ("NOT NOT a = 1", {"a": 2}, "a = 1 is FALSE because a is 2"),
        ("a NOT LIKE 'x%'", {"a": "xy"}, "a NOT LIKE 'x%' is FALSE because a is 'xy'"),
        ("a < b", {"a": 2, "b": 1.5}, "a < b is FALSE because a is 2 and b is 1.5"),
    ],
)
def test_says_why(text: str, headers: dict, said: str, message) -> None:
    assert str(explain(parse(text), message(**headers))) == said
