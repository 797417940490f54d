"""Literals for the connections of other drivers."""

from __future__ import annotations

import pytest

from penstock.storage.sql.postgresql.caller_session import literal


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, "NULL"),
        (True, "E't'"),
        (-(2**63), "E'-9223372036854775808'"),
        (b"\x00'", "E'\\\\x0027'"),
        ("it's \\ $1", "E'it''s \\\\ $1'"),
        ("\n\u00e9\U0001f600", "E'\\u000a\\u00e9\\U0001f600'"),
        ([], "E'{}'"),
        ([1, None], "E'{\"1\",NULL}'"),
        ([b"\xff"], "E'{\"\\\\\\\\xff\"}'"),
        (['a"b'], 'E\'{"a\\\\"b"}\''),
        ([[1], [2]], 'E\'{{"1"},{"2"}}\''),
    ],
)
def test_a_literal_is_ascii_and_cannot_end_early(value: object, expected: str) -> None:
    assert literal(value) == expected
    assert literal(value).isascii()


def test_an_unknown_type_is_a_bug() -> None:
    with pytest.raises(TypeError):
        literal(object())
