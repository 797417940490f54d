"""Depth is seen without recursing, and places are written short."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.nesting import MAX_DEPTH, check_depth, pointer, printable

brackets = st.text(st.sampled_from('[]{}"\\ab,'), max_size=6)
values = st.recursive(
    brackets | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(brackets, inner, max_size=3),
)


def wrapped(value: object, levels: int) -> object:
    for level in range(levels):
        value = {'}"': value} if level % 2 else [value]
    return value


def depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(values, st.integers(MAX_DEPTH - 5, MAX_DEPTH + 2), st.booleans())
def test_depth_is_what_it_is(value: object, levels: int, wide: bool) -> None:
    value = wrapped([value, *([[]] * MAX_DEPTH if wide else [])], levels)
    assert check_depth(json.dumps(value).encode()) == (depth(value) <= MAX_DEPTH)


@pytest.mark.parametrize("text", [b"[" * 1_000_000, b'{"a":' * 200_000, b"[{" * 70 + b"]" * 9])
def test_what_is_not_closed_is_not_passed_on(text: bytes) -> None:
    assert not check_depth(text)


def test_a_wide_text_is_not_deep() -> None:
    assert check_depth(json.dumps([{"a": []}] * 100_000).encode())
    assert check_depth(json.dumps(["[" * 1_000, '\\"[']).encode())


def test_places() -> None:
    assert pointer([]) == "the top"
    assert pointer(["lines", 3, "a/b~c"]) == "/lines/3/a~1b~0c"
    assert len(pointer(["x" * 10_000])) <= 120
    assert printable("a\nb\x00", 10) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"
