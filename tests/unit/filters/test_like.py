from __future__ import annotations

import pytest

from penstock.filters.like import matcher, parse_pattern

#: A header is at most 16 KiB and a pattern 4,000 characters; backtracking would take years here.
LONG = 16 * 1024
WORST = [
    ("%a" * 1000 + "%b", "a" * LONG),
    ("%a%a%a%a%a%a%a%b", "a" * LONG),
    ("%" + "a" * 2000 + "b%", "a" * LONG),
    ("%" + "a" * 2000 + "_b%", "a" * LONG),
    ("%_a" * 1000 + "%b", "a" * LONG),
    ("_%" * 1900 + "b", "a" * LONG),
    ("%" * 4000 + "b", "a" * LONG),
]


@pytest.mark.parametrize("pattern, text", WORST, ids=range(len(WORST)))
def test_worst_cases_are_linear(pattern: str, text: str) -> None:
    """A backtracking matcher would not return before the time limit of the test."""
    matches = matcher(parse_pattern(pattern, None))
    assert not matches(text)
    assert matches(text + "b" * pattern.endswith("b") + "ab" * pattern.endswith("b%"))


@pytest.mark.parametrize("pattern, text", WORST, ids=range(len(WORST)))
def test_worst_cases_are_linear_in_arrow(pattern: str, text: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from penstock.filters.to_arrow.kernels import like

    verdict = like(pa.array([text, text + "b", None]), parse_pattern(pattern, None))
    assert verdict.to_pylist()[::2] == [False, None]


@pytest.mark.parametrize("pattern, escape", [("a!", "!"), ("a!b", "!"), ("a", ""), ("a", "!!")])
def test_malformed_patterns(pattern: str, escape: str) -> None:
    with pytest.raises(ValueError, match=r"escape|ESCAPE"):
        parse_pattern(pattern, escape)
