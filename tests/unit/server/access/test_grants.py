"""What a grant covers, and what it does not."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadInput, Forbidden
from penstock.server.access import (
    ALL_GRANTS,
    ANYBODY,
    EVERYTHING,
    Action,
    Credential,
    Grant,
    parse_grant,
    parse_grants,
)
from penstock.testing.laws import law


def holder(*grants: str, tenant: str = "acme") -> Credential:
    return Credential(tenant=tenant, grants=parse_grants(grants), name="shop", id="k1")


@pytest.mark.parametrize(
    "grant, action, name, covered",
    [
        ("publish:orders", "publish", "orders", True),
        ("publish:orders", "publish", "orders-eu", False),
        ("publish:orders", "publish", "Orders", False),
        ("publish:orders", "consume", "orders", False),
        ("publish:orders", "admin", "orders", False),
        ("consume:orders", "publish", "orders", False),
        ("read:orders", "read", "orders", True),
        ("read:orders", "read", "orders.dlq", True),
        ("read:orders", "consume", "orders", False),
        ("read:orders", "publish", "orders", False),
        ("read:orders", "admin", "orders", False),
        ("consume:orders", "read", "orders", True),
        ("publish:orders", "read", "orders", False),
        ("admin:orders", "read", "orders", True),
        ("admin:orders", "publish", "orders", True),
        ("admin:orders", "consume", "orders", True),
        ("admin:orders", "admin", "other", False),
        ("publish:orders-*", "publish", "orders-", True),
        ("publish:orders-*", "publish", "orders-eu", True),
        ("publish:orders-*", "publish", "orders", False),
        ("publish:orders-*", "publish", "my-orders-eu", False),
        ("publish:*-eu", "publish", "orders-eu", True),
        ("publish:*-eu", "publish", "orders-eu-west", False),
        ("publish:a*b*c", "publish", "abc", True),
        ("publish:a*b*c", "publish", "a-b-b-c", True),
        ("publish:a*b*c", "publish", "acb", False),
        ("publish:ab*ba", "publish", "aba", False),
        ("publish:*a*", "publish", "bab", True),
        ("publish:*.*", "publish", "orders", False),
        ("publish:**", "publish", "orders", True),
        ("consume:*", "consume", "orders.dlq", True),
        ("consume:orders", "consume", "orders.dlq", True),
        ("consume:*orders", "consume", "orders.dlq", True),
        ("consume:orders", "consume", "orders.eu.dlq", False),
        ("consume:orders?", "consume", "orders1", None),
        ("publish:*", "publish", EVERYTHING, True),
        ("admin:*", "consume", EVERYTHING, True),
        ("publish:a*", "publish", EVERYTHING, False),
        ("publish:*a", "publish", EVERYTHING, False),
        ("publish:*a*", "publish", EVERYTHING, False),
        ("publish:orders", "publish", "", False),
        ("admin:*", "drop", "orders", True),
        ("publish:*", "drop", "orders", False),
    ],
)
def test_what_a_grant_covers(grant: str, action: str, name: str, covered: bool | None) -> None:
    if covered is None:
        with pytest.raises(BadInput):
            parse_grant(grant)
    else:
        assert parse_grant(grant).covers(action, name) is covered


@law("E1")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "publish",
        "publish:",
        ":orders",
        "Publish:orders",
        "delete:orders",
        "publish:orders:more",
        "publish:a b",
        "publish:[ab]",
        "publish:-a",
        "publish:ä",
        "publish:a\n",
        "publish:orders.dlq",
        "publish:*.dlq",
        "publish:" + "a" * 129,
        None,
        5,
        b"publish:orders",
        ["publish:orders"],
    ],
)
def test_what_is_no_grant(text: object) -> None:
    with pytest.raises(BadInput) as caught:
        parse_grant(text)
    assert caught.value.field == "grants"


def test_grants_are_bounded_and_each_counts_once() -> None:
    assert parse_grants(["publish:a", "publish:a"]) == (Grant(Action.PUBLISH, "a"),)
    with pytest.raises(BadInput) as caught:
        parse_grants([f"publish:a{n}" for n in range(65)])
    assert caught.value.limit == 64


def test_a_grant_is_written_as_it_is_read() -> None:
    for text in ("publish:orders-*", "consume:a", "admin:*"):
        assert str(parse_grant(text)) == text


NAMES = st.text("ab-", min_size=1, max_size=12).filter(lambda name: name[0] != "-")
PATTERNS = st.text("ab-*", min_size=1, max_size=12).filter(lambda name: name[0] != "-")


@settings(deadline=None)
@given(PATTERNS, NAMES)
def test_the_wildcard_means_what_it_means_in_a_shell(pattern: str, name: str) -> None:
    covered = parse_grant(f"publish:{pattern}").covers("publish", name)
    assert covered is fnmatch.fnmatchcase(name, pattern)


def test_no_pattern_is_slow() -> None:
    """A backtracking matcher would not return before the time limit of the test."""
    grant = parse_grant("publish:" + "*a" * 63 + "*b")
    for n in range(1000):
        assert not grant.covers("publish", "a" * (128 - n % 100))


def test_a_name_that_is_too_long_is_covered_by_everything_only() -> None:
    assert not parse_grant("publish:a*").covers("publish", "a" * 10_000)
    assert ALL_GRANTS[0].covers("publish", "a" * 10_000)


def test_a_credential_needs_one_grant_that_covers() -> None:
    shop = holder("publish:orders-*", "consume:billing")
    assert shop.allows("publish", "orders-eu")
    assert shop.allows("consume", "billing.dlq")
    assert not shop.allows("consume", "orders-eu")
    assert not holder().allows("publish", "orders")
    shop.check("publish", "orders-eu")


@law("T1")
def test_a_refusal_names_what_is_missing_and_nothing_else() -> None:
    shop = holder("publish:orders-*")
    with pytest.raises(Forbidden) as caught:
        shop.check("consume", "billing")
    error = caught.value
    assert error.status == 403
    assert "consume:billing" in error.detail
    assert "shop" in error.detail
    # Not the grants it has, nor the tenant: the caller may be showing this to somebody else.
    assert "orders" not in str(error)
    assert "acme" not in str(error)


def test_a_refusal_is_short_and_harmless_whatever_the_name() -> None:
    with pytest.raises(Forbidden) as caught:
        holder().check("consume", "a\r\nb" + "x" * 10_000)
    assert len(caught.value.detail) < 400
    assert caught.value.detail.isprintable()


@law("T1")
def test_operators_administrate_everything_in_the_default_tenant() -> None:
    assert ANYBODY.is_operator
    assert holder("admin:*", tenant="default").is_operator
    for other in (
        holder("admin:*", tenant="acme"),
        holder("admin:a*", tenant="default"),
        holder("consume:*", "publish:*", tenant="default"),
    ):
        assert not other.is_operator
        with pytest.raises(Forbidden):
            other.check_operator()
    ANYBODY.check_operator()


def test_expiry() -> None:
    assert ANYBODY.is_valid(2**60)
    brief = Credential(tenant="acme", grants=(), name="x", id="x", expires_at=1000)
    assert brief.is_valid(999)
    assert not brief.is_valid(1000)
