from __future__ import annotations

import pytest

from penstock.filters.words import parse_words, words_matcher

#: A header is at most 16 KiB and a pattern 4,000 characters; backtracking would take years here.
LONG = ".".join("a" * 8_000)
WORST = ["#.a." * 900 + "#.b", "#.*." * 900 + "#.b", "#." * 1_900 + "b", "*." * 1_900 + "#.b"]


@pytest.mark.parametrize("pattern", WORST, ids=range(len(WORST)))
def test_worst_cases_are_linear(pattern: str) -> None:
    """A backtracking matcher would not return before the time limit of the test."""
    matches = words_matcher(pattern)
    assert not matches(LONG)
    assert matches(LONG + ".b")


@pytest.mark.parametrize("pattern", ["a*", "*a", "a.#b", "**", "##", "#*", "a.*#.b"])
def test_wildcards_are_whole_words(pattern: str) -> None:
    with pytest.raises(ValueError, match="whole words"):
        parse_words(pattern)


@pytest.mark.parametrize("pattern", ["", "a", "*", "#", "a.b", "a.*.#", "..", ".*", "#.#"])
def test_patterns_may_have_empty_words(pattern: str) -> None:
    words_matcher(pattern)("a")
    parse_words(pattern)
