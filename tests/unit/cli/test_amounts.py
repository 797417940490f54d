"""Durations, headers and starts: what they accept, and what they refuse with a hint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import printing
from penstock.cli.amounts import to_duration_ms, to_header
from penstock.model.message import HeaderValue
from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell


@pytest.mark.parametrize(
    "text, duration_ms",
    [
        ("0", 0),
        ("250ms", 250),
        ("5s", 5_000),
        ("1.5s", 1_500),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
    ],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert to_duration_ms(text) == duration_ms


@law("E1")
@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5S", "5sec", "1e3s", "∞", "٣s"])
def test_bad_durations_are_usage_errors(sh: Shell, text: str) -> None:
    """E1: nothing is opened, nothing is published."""
    result = sh("publish", "orders", "x", f"--delay={text}", code=2)
    assert "--delay" in result.stderr
    assert sh("queue", "list", code=7).stdout == ""


def test_a_number_without_a_unit_says_which_units_there_are(sh: Shell) -> None:
    assert (
        "30 has no unit; write 30s or 30ms." in sh("consume", "q", "--lease", "30", code=2).stderr
    )


@pytest.mark.parametrize(
    "text, value",
    [
        ("h=250", 250),
        ("h=-1", -1),
        ("h=2.5", 2.5),
        ("h=true", True),
        ("h=false", False),
        ('h="250"', "250"),
        ("h=007", "007"),
        ("h=+5", "+5"),
        ("h=null", "null"),
        ("h=[1]", "[1]"),
        ("h=DE", "DE"),
        ("h=a=b", "a=b"),
        ("h=", ""),
        ("h=NaN", "NaN"),
        ("h=Infinity", "Infinity"),
    ],
)
def test_headers_have_the_type_that_json_gives_them(text: str, value: HeaderValue) -> None:
    name, found = to_header(text)
    assert (name, found, type(found)) == ("h", value, type(value))


@pytest.mark.parametrize("text", ["amount", "=5", ""])
def test_what_is_not_a_header_is_a_usage_error(sh: Shell, text: str) -> None:
    assert "name=value" in sh("publish", "orders", "x", f"--header={text}", code=2).stderr


values = st.one_of(
    st.text(st.characters(codec="utf-8")),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)


@given(values)
def test_a_header_that_is_shown_can_be_given_again(value: HeaderValue) -> None:
    name, found = to_header(printing.headers({"h": value}))
    assert (name, found, type(found)) == ("h", value, type(value))


@pytest.mark.parametrize("text", ["soon", "offset:", "offset:x", "time:tomorrow", "latest:1"])
def test_a_bad_start_is_a_usage_error(sh: Shell, text: str) -> None:
    assert "earliest" in sh("queue", "create", "q", "--start", text, code=2).stderr


def test_a_queue_may_start_at_a_time(orders: Shell) -> None:
    everything = orders.json("queue", "create", "new", "--start", "time:2020-01-01T00:00:00Z")
    assert everything["cursor"] is None
    assert orders.json("queue", "show", "new")["stats"]["available"] == 3
    orders("queue", "create", "later", "--start", "time:2199-01-01")
    assert orders.json("queue", "show", "later")["stats"]["available"] == 0
