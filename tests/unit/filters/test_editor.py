from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadInput, TooLarge
from penstock.filters import complete, validate
from penstock.filters.editor import MAX_COMPLETIONS, MAX_KNOWN_HEADERS, Completion
from penstock.model.limits import MAX_FILTER_BYTES

HEADERS = ["amount", "x-request-id", "Amount", "NOT"]


def offered(marked: str, headers: list[str] = HEADERS) -> list[str]:
    """The texts that are offered at the bar in ``marked``."""
    text = marked.replace("|", "", 1)
    return [item.text for item in complete(text, marked.index("|"), headers).items]


def test_a_filter_is_valid() -> None:
    found = validate("topic = 'orders' AND amount > 5 AND \"x-y\" IN ('a')")
    assert found.valid
    assert (found.indexed, found.fields, found.headers) == (True, ("topic",), ("amount", "x-y"))
    assert (found.message, found.position, found.end) == (None, None, None)
    assert validate("amount > 5").indexed is False


@pytest.mark.parametrize(
    "text, position, end",
    [
        ("a = ", 4, 4),
        ("a = 'x", 4, 6),
        ("a = = b", 4, 5),
        ("a AND lower(b)", 6, 14),
        ("(a = 1) IS NULL", 0, 7),
        ("foo(a)", 0, 3),
        ("a IN (1, b, 2)", 9, 10),
        ("a = 12x", 4, 7),
        ("a LIKE b", 7, 8),
        ("matches_words(a, 'b*') AND c", 17, 21),
        ("(a", 2, 2),
        ("", 0, 0),
    ],
)
def test_an_error_has_a_start_and_an_end(text: str, position: int, end: int) -> None:
    found = validate(text)
    assert not found.valid
    assert found.message
    assert (found.position, found.end) == (position, end), found.message


def test_a_limit_is_named() -> None:
    found = validate("x" * (MAX_FILTER_BYTES + 1))
    assert (found.valid, found.limit, found.position) == (False, MAX_FILTER_BYTES, 0)


@pytest.mark.parametrize(
    "marked, wanted, unwanted",
    [
        (
            "|",
            {"topic", "amount", '"x-request-id"', '"NOT"', "lower(", "NOT", "TRUE"},
            {"AND", "="},
        ),
        ("to|", {"topic"}, {"amount", "lower("}),
        ("TO|", {"topic"}, {"amount"}),
        ("am|", {"amount", "Amount"}, {"topic"}),
        ("x|", {'"x-request-id"'}, {"amount"}),
        ('"x-r|', {'"x-request-id"'}, {"amount", "topic"}),
        ("topic |", {"=", "<>", "IN (", "LIKE", "IS NULL", "AND", "+"}, {"topic", ")", "ESCAPE"}),
        ("topic I|", {"IN (", "IS NULL", "IS NOT NULL"}, {"LIKE", "="}),
        ("topic = |", {"topic", "amount", "lower("}, {"NOT", "AND"}),
        ("topic = 'x' |", {"AND", "OR", "+"}, {"=", "LIKE", ")"}),
        ("topic = 'x' AND |", {"amount", "NOT"}, {"AND"}),
        ("NOT |", {"amount", "NOT"}, {"AND"}),
        ("topic NOT |", {"IN (", "LIKE", "BETWEEN"}, {"NULL", "topic"}),
        ("topic IS |", {"NULL", "NOT NULL"}, {"TRUE", "topic"}),
        ("topic IS NOT |", {"NULL"}, {"NOT NULL"}),
        ("topic IS NULL |", {"AND", "OR"}, {"=", "+"}),
        ("size BETWEEN 1 |", {"AND", "+"}, {"OR"}),
        ("size BETWEEN 1 AND |", {"amount"}, {"NOT"}),
        ("size BETWEEN 1 AND 2 |", {"AND", "OR"}, {"="}),
        ("a LIKE |", set(), {"topic", "amount"}),
        ("a LIKE 'x' |", {"ESCAPE", "AND"}, {"="}),
        ("a IN |", {"("}, {"topic"}),
        ("a IN (|", {"TRUE", "NULL"}, {"topic", "NOT"}),
        ("a IN (1 |", {",", ")"}, {"AND"}),
        ("a IN (1) |", {"AND", "OR"}, {"=", ")"}),
        ("lower(|", {"topic", "amount"}, {"AND"}),
        ("lower(topic |", {")", ","}, {"AND"}),
        ("lower(topic) |", {"=", "LIKE"}, {")"}),
        ("(topic = 'x' |", {")", "AND"}, {"LIKE"}),
        ("(topic = 'x') |", {"AND", "OR"}, {"=", "LIKE"}),
        ("(size + 1) |", {"=", "*"}, {")"}),
    ],
)
def test_completions_fit_the_place(marked: str, wanted: set[str], unwanted: set[str]) -> None:
    found = set(offered(marked))
    assert wanted <= found
    assert not unwanted & found


@pytest.mark.parametrize("marked", ["topic = 'or|", "a = 'x'|", "a = 12|", "a ; |", "foo(|"])
def test_nothing_is_offered_in_a_literal_or_after_an_error(marked: str) -> None:
    assert offered(marked) == []


def test_the_whole_word_is_replaced() -> None:
    found = complete("topic = 'x' AND pri = 1", 18, [])
    assert (found.start, found.end) == (16, 19)
    assert found.items == (Completion("priority", "field"),)


@pytest.mark.parametrize("text", ["", "topic ", "NOT ", "topic = 'x' ", "a IN (1 ", "lower(topic "])
def test_what_is_offered_can_be_scanned_and_goes_on(text: str) -> None:
    """No completion is an unexpected token; only what follows it may be missing."""
    for item in complete(text, len(text), HEADERS).items:
        found = validate(text + item.text)
        missing = found.position == len(text + item.text)
        assert found.valid or missing or "xpected" not in str(found.message), item


@pytest.mark.parametrize("cursor", [-1, 4, None, "1", True])
def test_the_cursor_is_in_the_text(cursor: Any) -> None:
    with pytest.raises(BadInput) as refusal:
        complete("abc", cursor, [])
    assert (refusal.value.field, refusal.value.limit) == ("cursor", 3)


def test_bad_headers_are_refused() -> None:
    wrong: Any = ["a", 5]
    with pytest.raises(BadInput) as refusal:
        complete("", 0, wrong)
    assert refusal.value.field == "headers"
    with pytest.raises(TooLarge) as large:
        complete("", 0, map(str, range(MAX_KNOWN_HEADERS + 1)))
    assert large.value.limit == MAX_KNOWN_HEADERS
    with pytest.raises(BadInput) as text:
        complete(wrong, 0)
    assert text.value.field == "text"


def test_completions_are_bounded() -> None:
    assert len(offered("|", [f"h{n}" for n in range(MAX_KNOWN_HEADERS)])) == MAX_COMPLETIONS
