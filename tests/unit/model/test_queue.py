from __future__ import annotations

from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.errors import BadPolicy
from penstock.model.queue import (
    Backoff,
    Ordering,
    QueuePolicy,
    TopicPolicy,
    changed_policy,
    check_queue_policy,
    check_topic_policy,
)
from penstock.testing.laws import law

#: Fields in which 0 means unlimited.
UNLIMITED = ("max_depth", "message_ttl_ms", "throughput_limit")


class Level(IntEnum):
    THREE = 3


DAY_S = 24 * 3600
HALF_DAY_MS = DAY_S * 500

#: Field, lowest and highest value.
BOUNDS: list[tuple[str, int, int]] = [
    ("max_attempts", 1, 65_535),
    ("min_lease_ms", 1, HALF_DAY_MS),
    ("lease_ms", 1, HALF_DAY_MS),
    ("done_retention_s", 0, 2**32 - 1),
    ("failed_retention_s", 0, 2**32 - 1),
    ("max_depth", 1, 2**53),
    ("message_ttl_ms", 1, 3650 * DAY_S * 1000),
    ("throughput_limit", 1, 10**9),
    ("partition_concurrency", 1, 1000),
    ("partition_batch", 1, 1000),
    ("bucket_size", 0, 4),
]
TOPIC_BOUNDS: list[tuple[str, int, int]] = [
    ("default_ttl_ms", 1, 3650 * DAY_S * 1000),
    ("dedup_window_ms", 0, 30 * DAY_S * 1000),
]


def _policy(field: str, value: object) -> QueuePolicy:
    # The longest lease, so that min_lease_ms can be tried up to its own bound.
    return replace(QueuePolicy(max_lease_ms=HALF_DAY_MS), **{field: value})


def test_the_default_policy_is_the_one_of_the_contract() -> None:
    policy = check_queue_policy(QueuePolicy())
    assert (policy.max_attempts, policy.lease_ms) == (5, 30_000)
    assert policy.failed_retention_s == 14 * DAY_S
    assert (policy.ordering, policy.partition_concurrency) == (Ordering.NONE, 1)
    assert (policy.max_depth, policy.throughput_limit, policy.paused) == (None, None, False)
    assert policy.filter == "TRUE"


@pytest.mark.parametrize("field, low, high", BOUNDS)
def test_both_bounds_are_inside(field: str, low: int, high: int) -> None:
    for value in (low, high):
        policy = _policy(field, value)
        assert check_queue_policy(policy) is policy


@pytest.mark.parametrize("field", UNLIMITED)
def test_zero_is_unlimited(field: str) -> None:
    assert getattr(check_queue_policy(_policy(field, 0)), field) is None
    with pytest.raises(BadPolicy) as caught:
        check_queue_policy(_policy(field, -1))
    assert (caught.value.field, caught.value.limit) == (field, 0)


@law("E1")
@pytest.mark.parametrize("field, low, high", [b for b in BOUNDS if b[0] not in UNLIMITED])
def test_what_is_outside_is_refused_with_the_bound(field: str, low: int, high: int) -> None:
    for value, limit in ((low - 1, low), (high + 1, high)):
        with pytest.raises(BadPolicy) as caught:
            check_queue_policy(_policy(field, value))
        assert (caught.value.field, caught.value.limit) == (field, limit)


@law("E1")
@pytest.mark.parametrize("field", [field for field, _, _ in BOUNDS])
@pytest.mark.parametrize("value", [1.0, "1", True, b"1", Level.THREE])
def test_only_whole_numbers_are_numbers(field: str, value: object) -> None:
    with pytest.raises(BadPolicy) as caught:
        check_queue_policy(_policy(field, value))
    assert caught.value.field == field


def test_max_lease_is_not_below_min_lease() -> None:
    check_queue_policy(QueuePolicy(min_lease_ms=500, max_lease_ms=500))
    with pytest.raises(BadPolicy) as caught:
        check_queue_policy(QueuePolicy(min_lease_ms=500, max_lease_ms=499))
    assert (caught.value.field, caught.value.limit) == ("max_lease_ms", 500)


@pytest.mark.parametrize(
    "backoff, field",
    [
        (Backoff(-1, 10), "backoff.base_ms"),
        (Backoff(HALF_DAY_MS + 1, HALF_DAY_MS + 2), "backoff.base_ms"),
        (Backoff(10, 9), "backoff.max_ms"),
        (Backoff(10, 7 * DAY_S * 1000 + 1), "backoff.max_ms"),
    ],
)
def test_backoff_bounds(backoff: Backoff, field: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        check_queue_policy(QueuePolicy(backoff=backoff))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "field, value",
    [
        ("ordering", "fifo"),
        # Only the broker reads text: here it would be compared with "is", and never be ordered.
        ("ordering", "partition"),
        ("backoff", None),
        ("backoff", {"base_ms": 1}),
        ("description", "\ud800"),
        ("ordering", None),
        ("retry_position", "back"),
        ("retry_position", None),
        ("paused", 1),
        ("paused", None),
        ("dead_letters", 0),
        ("dead_letters", "no"),
        ("dead_letter_expired", 1),
        ("dead_letter_expired", None),
        ("description", "x" * 4097),
        ("description", "é" * 2049),
        ("description", None),
        ("labels", None),
        ("labels", ["team"]),
        ("labels", {f"label{number}": "" for number in range(17)}),
        ("labels", {"": "x"}),
        ("labels", {"-team": "x"}),
        ("labels", {"a b": "x"}),
        ("labels", {"a" * 65: "x"}),
        ("labels", {5: "x"}),
        ("labels.team", {"team": 5}),
        ("labels.team", {"team": "\ud800"}),
        ("labels.team", {"team": "é" * 129}),
        ("labels.team", {"team": "a,b"}),
    ],
)
def test_other_fields(field: str, value: object) -> None:
    with pytest.raises(BadPolicy) as caught:
        check_queue_policy(_policy(field.partition(".")[0], value))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "field, value",
    [
        ("description", "é" * 2048),
        ("ordering", Ordering.PARTITION),
        ("labels", {f"{number:02}{'a' * 62}": "é" * 128 for number in range(16)}),
        ("labels", {"penstock.io/team-1": "=", "x_": ""}),
    ],
)
def test_other_fields_at_their_bound(field: str, value: object) -> None:
    policy = _policy(field, value)
    assert check_queue_policy(policy) is policy


# -- topics --------------------------------------------------------------------------------


@pytest.mark.parametrize("field, low, high", TOPIC_BOUNDS)
def test_topic_bounds(field: str, low: int, high: int) -> None:
    for value in (low, high):
        policy = replace(TopicPolicy(), **{field: value})
        assert check_topic_policy(policy) is policy
    for value in (low - 1, high + 1):
        with pytest.raises(BadPolicy) as caught:
            check_topic_policy(replace(TopicPolicy(), **{field: value}))
        assert caught.value.field == field


@pytest.mark.parametrize(
    "policy, field",
    [
        (TopicPolicy(schema_type="xml", schema="<a/>"), "schema_type"),
        (TopicPolicy(schema_type="avro"), "schema"),
        (TopicPolicy(schema="{}"), "schema"),
        (TopicPolicy(schema_type="avro", schema="x" * (64 * 1024 + 1)), "schema"),
        (TopicPolicy(schema_type="avro", schema="\ud800"), "schema"),
        ({"schema": "{}"}, "policy"),
        (None, "policy"),
    ],
)
def test_schemas(policy: TopicPolicy, field: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        check_topic_policy(policy)
    assert caught.value.field == field


def test_good_topics() -> None:
    for policy in (
        TopicPolicy(),
        TopicPolicy(schema_type="json-schema", schema="{}"),
        TopicPolicy(schema_type="avro", schema="x" * (64 * 1024)),
    ):
        assert check_topic_policy(policy) is policy


# -- backoff -------------------------------------------------------------------------------


@law("E1")
def test_a_misspelled_field_of_the_backoff_is_refused() -> None:
    with pytest.raises(BadPolicy, match="no field 'first_ms'; it has base_ms and max_ms") as caught:
        changed_policy(QueuePolicy(), {"backoff": {"base_ms": 1, "first_ms": 0}})
    assert caught.value.field == "backoff"


@pytest.mark.parametrize(
    "attempts, ceiling",
    [
        (0, 1_000),
        (1, 1_000),
        (2, 2_000),
        (3, 4_000),
        (9, 256_000),
        (10, 300_000),
        (65_535, 300_000),
    ],
)
def test_backoff_ceilings(attempts: int, ceiling: int) -> None:
    assert Backoff().ceiling_ms(attempts) == ceiling


@given(st.integers(0, HALF_DAY_MS), st.integers(0, 7 * DAY_S * 1000), st.integers(1, 65_534))
def test_backoff_grows_and_stays_below_its_ceiling(
    base_ms: int, max_ms: int, attempts: int
) -> None:
    backoff = Backoff(base_ms, max_ms)
    now, after = backoff.ceiling_ms(attempts), backoff.ceiling_ms(attempts + 1)
    assert 0 <= now <= after <= max_ms
    assert after <= 2 * now or now == 0


def test_no_backoff_at_all() -> None:
    assert Backoff(0, 0).ceiling_ms(5) == 0
