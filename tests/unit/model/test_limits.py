from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadInput, BadName
from penstock.model import limits
from penstock.model.limits import (
    MAX_ERROR_BYTES,
    Limits,
    check_limits,
    check_name,
    check_queue_name,
    cut_error,
    is_dead_letter,
)
from penstock.testing.laws import law

GOOD = ["a", "Z", "0", "orders", "a.b-c_d", "9.9", "a" * 128, "a..", "x.dlq2", "dlq", "a.DLQ"]
BAD = [
    "",
    ".",
    "-a",
    "_a",
    ".dlq",
    "a" * 129,
    "a b",
    "a/b",
    "a\n",
    "\na",
    "é",
    "a\x00",
    "٣",
    "a:b",
    None,
    7,
    b"orders",
]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name: str) -> None:
    assert check_name(name, "topic") == name
    assert check_queue_name(name) == name


@law("E1")
@pytest.mark.parametrize("name", BAD)
def test_bad_names(name: object) -> None:
    with pytest.raises(BadName) as caught:
        check_name(name, "topic")
    assert caught.value.field == "topic"
    with pytest.raises(BadName):
        check_queue_name(name)


@given(st.text())
def test_a_name_is_good_by_the_rule_and_by_nothing_else(name: str) -> None:
    good = (
        1 <= len(name) <= 128
        and name[0] in LETTERS
        and all(letter in LETTERS + "._-" for letter in name)
        and not name.endswith(".dlq")
    )
    if good:
        assert check_name(name, "topic") == name
    else:
        with pytest.raises(BadName):
            check_name(name, "topic")


@pytest.mark.parametrize("field", ["tenant", "topic", "consumer"])
def test_the_suffix_of_dead_letters_is_reserved(field: str) -> None:
    with pytest.raises(BadName, match="reserved"):
        check_name("orders.dlq", field)


def test_a_dead_letter_queue_can_be_named_where_it_exists() -> None:
    assert check_queue_name("orders.dlq") == "orders.dlq"
    assert is_dead_letter("orders.dlq")
    assert not is_dead_letter("orders")


@pytest.mark.parametrize("name", ["orders.dlq.dlq", ".dlq", "a b.dlq", "a" * 129 + ".dlq"])
def test_there_are_no_dead_letters_of_what_cannot_be_a_queue(name: str) -> None:
    with pytest.raises(BadName):
        check_queue_name(name)


def test_limits_that_a_format_depends_on() -> None:
    assert limits.MAX_ATTEMPTS == 2**16 - 1
    assert 10**limits.MAX_BUCKET_EXPONENT <= 2**16 - 1 < 10 ** (limits.MAX_BUCKET_EXPONENT + 1)
    assert limits.MAX_BATCH <= 2**16 - 1
    assert limits.MAX_TIME_MS < 2**63
    # Ten lanes of message ids, and a bucket's exponent, in the 64 bits of a claim id.
    assert 10 * (limits.MAX_OFFSET + 1) <= 2**60
    assert limits.MAX_PAYLOAD_BYTES <= 2**32 - 1
    assert limits.MAX_HEADERS_BYTES < 2**16
    assert limits.MAX_ERROR_BYTES < 2**16
    assert limits.MAX_KEY_BYTES < 2**16


def test_a_consumer_survives_two_lost_heartbeats() -> None:
    assert limits.CONSUMER_LEASE_MS == 30_000
    assert limits.MIN_LEASE_MS < limits.CONSUMER_LEASE_MS < limits.MAX_LEASE_MS


def test_the_limits_an_operator_may_move() -> None:
    assert limits.Limits() == limits.Limits(
        payload_bytes=1024 * 1024,
        log_retention_ms=24 * 3600 * 1000,
        queues=10_000,
        unindexed_filters=1_000,
        publish_deliveries=100_000,
    )


@law("E1")
@pytest.mark.parametrize(
    "field, most",
    [
        ("payload_bytes", limits.MAX_PAYLOAD_BYTES),
        ("log_retention_ms", limits.MAX_TIME_MS),
        ("queues", limits.MAX_QUEUES),
        ("unindexed_filters", limits.MAX_QUEUES),
        ("publish_deliveries", limits.MAX_PUBLISH_DELIVERIES),
    ],
)
def test_limits_have_bounds_themselves(field: str, most: int) -> None:
    for value in (0, 1, most):
        good: dict[str, Any] = {field: value}
        chosen = Limits(**good)
        assert check_limits(chosen) is chosen
    bad: list[Any] = [-1, most + 1, True, 1.0, "1", None]
    for value in bad:
        with pytest.raises(BadInput) as caught:
            check_limits(Limits(**{field: value}))
        assert (caught.value.field, caught.value.limit) == (field, most)


def test_a_name_that_is_too_long_is_not_remembered() -> None:
    """Or whoever sends names of a megabyte fills the memory with them."""
    before = limits._is_name.cache_info()
    for count in (129, 1_000_000):
        for name in ("x" * count, "x" * count + ".dlq"):
            with pytest.raises(BadName):
                check_name(name, "topic")
            with pytest.raises(BadName):
                check_queue_name(name)
    assert limits._is_name.cache_info() == before


@pytest.mark.parametrize(
    "error, kept",
    [
        ("", ""),
        ("é" * (MAX_ERROR_BYTES // 2), "é" * (MAX_ERROR_BYTES // 2)),
        ("x" * (MAX_ERROR_BYTES + 1), "x" * (MAX_ERROR_BYTES - 3) + "…"),
        ("é" * MAX_ERROR_BYTES, "é" * ((MAX_ERROR_BYTES - 3) // 2) + "…"),
        ("\ud800", "?"),
    ],
)
def test_errors_are_cut_and_never_refused(error: str, kept: str) -> None:
    assert cut_error(error) == kept
    assert len(kept.encode()) <= MAX_ERROR_BYTES
