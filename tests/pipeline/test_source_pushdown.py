"""Filters that the server takes over: only those that mean the same there as in Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from penstock.filters import parse
from penstock.filters.tree import MAX_FILTER_DEPTH
from penstock.model.limits import MAX_FILTER_BYTES, MAX_FILTER_ITEMS, MAX_FILTER_NODES
from penstock.pipeline.format.pushdown import NOTHING, Pushed, push
from tests.pipeline.hosted import Hosted
from tests.pipeline.reading import reader

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_704_110_400_000
HALF = timedelta(microseconds=500)


@pytest.mark.parametrize(
    "one, low, high",
    [
        (EqualTo(("offset",), 5), 5, 6),
        (GreaterThan(("offset",), 5), 6, NOTHING.high),
        (GreaterThanOrEqual(("offset",), 5), 5, NOTHING.high),
        (LessThan(("offset",), 5), 0, 5),
        (LessThanOrEqual(("offset",), 5), 0, 6),
        (LessThan(("offset",), -5), 0, -5),
    ],
)
def test_offsets_are_a_range(one: Filter, low: int, high: int) -> None:
    assert push([one], NOTHING) == (Pushed(low, high), [])


def test_ranges_are_cut_with_each_other() -> None:
    found, left = push(
        [
            GreaterThan(("offset",), 5),
            LessThan(("offset",), 50),
            GreaterThanOrEqual(("offset",), 3),
            IsNotNull(("offset",)),
        ],
        Pushed(10, 100),
    )
    assert (found, left) == (Pushed(10, 50), [])


@pytest.mark.parametrize(
    "one, text",
    [
        (EqualTo(("topic",), "it's"), "topic = 'it''s'"),
        (Not(EqualTo(("topic",), "a")), "NOT (topic = 'a')"),
        (EqualNullSafe(("key",), "a"), "partition_key = 'a'"),
        (EqualNullSafe(("key",), None), "partition_key IS NULL"),
        (IsNull(("replace_key",)), "key IS NULL"),
        (IsNotNull(("partition_key",)), "partition_key IS NOT NULL"),
        (In(("topic",), ("a", "b")), "topic IN ('a', 'b')"),
        (Not(In(("priority",), (1, 2))), "NOT (priority IN (1, 2))"),
        (LessThanOrEqual(("priority",), -1), "priority <= -1"),
        (GreaterThan(("size",), 2**62), f"size > {2**62}"),
        (GreaterThan(("content_type",), "a"), "content_type > 'a'"),
        (StringStartsWith(("topic",), "a%"), "starts_with(topic, 'a%')"),
        (StringEndsWith(("key",), "a"), "ends_with(partition_key, 'a')"),
        (StringContains(("replace_key",), "a"), "contains(key, 'a')"),
        (EqualTo(("timestamp",), NOON), f"published_at = {NOON_MS}"),
        (
            EqualTo(("timestamp",), NOON.astimezone(timezone(timedelta(hours=5)))),
            f"published_at = {NOON_MS}",
        ),
        (GreaterThan(("timestamp",), NOON + HALF), f"published_at > {NOON_MS}"),
        (GreaterThanOrEqual(("timestamp",), NOON + HALF), f"published_at >= {NOON_MS + 1}"),
        (LessThan(("timestamp",), NOON + HALF), f"published_at < {NOON_MS + 1}"),
        (LessThanOrEqual(("timestamp",), NOON + HALF), f"published_at <= {NOON_MS}"),
        (GreaterThanOrEqual(("timestamp",), NOON), f"published_at >= {NOON_MS}"),
    ],
)
def test_conditions_of_the_server(one: Filter, text: str) -> None:
    assert push([one], NOTHING) == (Pushed(where=text), [])
    parse(text)


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("id",), 5),
        EqualTo(("headers", "a"), "x"),
        EqualTo(("offset", "a"), 1),
        EqualTo(("offset",), 1.5),
        EqualTo(("offset",), True),
        EqualTo(("priority",), 1.5),
        EqualTo(("size",), 2**64),
        EqualTo(("topic",), "a\x00b"),
        EqualTo(("topic",), "x" * MAX_FILTER_BYTES),
        Not(EqualTo(("offset",), 5)),
        In(("offset",), (1, 2)),
        In(("priority",), tuple(range(MAX_FILTER_ITEMS + 1))),
        In(("topic",), ("a", None)),
        Not(In(("key",), ("a", None))),
        In(("topic",), ()),
        Not(EqualNullSafe(("key",), "a")),
        IsNull(("timestamp",)),
        StringStartsWith(("priority",), "1"),
        EqualTo(("timestamp",), NOON + HALF),
        EqualTo(("timestamp",), NOON.replace(tzinfo=None)),
        EqualTo(("deliver_at",), NOON),
    ],
)
def test_what_is_not_the_same_is_left_to_spark(one: Filter) -> None:
    assert push([one], NOTHING) == (NOTHING, [one])


def test_conditions_are_joined_as_long_as_there_is_room() -> None:
    # A comparison has three nodes, so a third of the limit is more than there is room for.
    count = MAX_FILTER_NODES // 3
    many = [EqualTo(("topic",), f"topic-{number}") for number in range(count)]
    found, left = push(many, Pushed(where="(a = 1 OR b = 2)"))
    assert found.where is not None
    assert found.where.startswith("(a = 1 OR b = 2) AND topic = 'topic-0' AND ")
    parse(found.where)
    assert 0 < len(left) < count
    assert left == many[-len(left) :]


def test_a_reader_works_where_pushdown_is_off(server: Hosted) -> None:
    """Spark refuses readers there that have a method of their own."""
    found = reader(server).pushFilters
    assert getattr(found, "__func__", None) is DataSourceReader.pushFilters
    assert found([EqualTo(("id",), 1)]) == [EqualTo(("id",), 1)]


def test_what_is_pushed_is_read(server: Hosted) -> None:
    for topic in ("a", "b"):
        server.publish(topic, *[b"x"] * 5)
    pushed = reader(server, where="topic = 'a' OR topic = 'b'", entriesPerPartition=4)
    wanted = [EqualTo(("topic",), "b"), GreaterThan(("offset",), 6), LessThan(("offset",), 9)]
    assert pushed.pushFilters(wanted) == []
    parts = pushed.partitions()
    batches: list[Any] = [batch for part in parts for batch in pushed.read(part)]
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == [7, 8]
    # Only what the range leaves was asked for.
    asked = [seen.path for seen in server.host.requests if "format=arrow" in seen.path]
    assert all("from=7&to=9" in path for path in asked)


def _longest() -> str:
    start = "topic = 'a' OR topic = '"
    return start + "x" * (MAX_FILTER_BYTES - len(start) - 1) + "'"


@pytest.mark.parametrize(
    "where", [_longest(), "(" * MAX_FILTER_DEPTH + "topic = 'a'" + ")" * MAX_FILTER_DEPTH]
)
def test_a_filter_at_a_limit_is_read_and_conditions_are_left_to_spark(
    server: Hosted, where: str
) -> None:
    server.publish("a", b"x")
    server.publish("b", b"x")
    full = reader(server, where=where)
    assert full.pushFilters([EqualTo(("topic",), "b")]) == [EqualTo(("topic",), "b")]
    batches: list[Any] = [batch for part in full.partitions() for batch in full.read(part)]
    assert [topic for batch in batches for topic in batch.column("topic").to_pylist()] == ["a"]
