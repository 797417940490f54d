"""Escaped names: every text has exactly one, and it leads back to the text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import BadName
from penstock.model.limits import check_name
from penstock.model.names import escape, unescape
from penstock.testing.laws import law

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
#: Texts of the characters that matter, so that prefixes, suffixes and codes occur.
TRICKY = st.lists(
    st.sampled_from(
        ["esc.", "penstock.", ".dlq", "_", "__", "_40", "_2E", "4", "0", "a", ".", "-", "@", "é"]
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize(
    "text, name",
    [
        ("orders", "orders"),
        ("a.b-c_d", "a.b-c_d"),
        ("x" * 128, "x" * 128),
        ("celery@host", "esc.celery_40host"),
        ("_x", "esc.__x"),
        ("a/b", "esc.a_2Fb"),
        ("", "esc."),
        ("grün", "esc.gr_C3_BCn"),
        ("😀", "esc._F0_9F_98_80"),
        (".x", "esc..x"),
        ("esc.x", "esc.esc.x"),
        ("orders.dlq", "esc.orders_2Edlq"),
        ("a\x00b", "esc.a_00b"),
        ("penstock.x", "esc.penstock.x"),
        ("penstock", "penstock"),
    ],
)
def test_examples(text: str, name: str) -> None:
    assert escape(text) == name
    assert unescape(name) == text


@given(TEXTS | TRICKY)
def test_every_text_has_a_valid_name_that_leads_back(text: str) -> None:
    assume(len(text.encode()) <= 41)  # Longer ones may have no name.
    name = escape(text)
    assert check_name(name, "topic") == name
    assert not name.endswith(".dlq")
    assert not name.startswith("penstock.")
    assert unescape(name) == text


@given(TEXTS | TRICKY, TEXTS | TRICKY)
def test_two_texts_have_two_names(one: str, other: str) -> None:
    assume(one != other and len(one.encode()) < 40 and len(other.encode()) < 40)
    assert escape(one) != escape(other)


@given(st.from_regex(r"(esc\.)?[A-Za-z0-9._-]{0,20}", fullmatch=True) | TRICKY)
def test_a_name_is_escaped_or_refused(name: str) -> None:
    try:
        text = unescape(name)
    except BadName:
        return
    assert escape(text) == name


@law("E1")
@pytest.mark.parametrize(
    "name", ["", "_x", "a/b", "esc._4", "esc._41", "esc._c3_BC", "esc._C3", "esc.plain", "x.dlq", 7]
)
def test_what_escape_never_returns_is_refused(name: Any) -> None:
    with pytest.raises(BadName) as refused:
        unescape(name, "queue")
    assert refused.value.field == "queue"


@law("E1")
@pytest.mark.parametrize(
    "text, limit",
    [("@" * 42, 128), ("x" * 129, 128), ("@" * 10**6, 128), ("\ud800", None), (7, None)],
)
def test_a_text_without_a_name(text: Any, limit: int | None) -> None:
    with pytest.raises(BadName) as refused:
        escape(text, "topic")
    assert (refused.value.field, refused.value.limit) == ("topic", limit)
