"""The router over record batches: who takes what, however much that is (R1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.filters import parse
from penstock.filters.to_arrow import batch_of
from penstock.filters.to_arrow.many import ManyFilters
from penstock.filters.to_spark.verdict import MOST_FLAT, narrow
from penstock.model.message import Message, MessageId, Offset
from penstock.pipeline import router as module
from penstock.pipeline.router import ROUTED_SCHEMA, routed, router
from penstock.testing.laws import law

FILTERS = {
    name: parse(text)
    for name, text in {
        "all": "TRUE",
        "none": "topic = 'nothing'",
        "german": "country = 'DE'",
        "large": "amount >= 20 AND topic LIKE 'o%'",
        "either": "country = 'AT' OR amount < 10",
    }.items()
}
FIRST = 100


def message(number: int, *, keyed: bool = False) -> Message:
    return Message(
        id=MessageId(number),
        offset=Offset(FIRST + number),
        topic=("orders", "others", "bills")[number % 3],
        priority=4,
        published_at=0,
        deliver_at=0,
        expires_at=None,
        size=1,
        checksum=0,
        key=f"k{number}" if keyed else None,
        headers={"country": ("DE", "AT", "CH")[number % 3], "amount": number},
    )


SOME = [message(number, keyed=number % 7 == 3) for number in range(40)]
NO_KEYS = [message(number) for number in range(40)]
ONLY_KEYS = [message(number, keyed=True) for number in range(40)]


def rows_of(messages: Sequence[Message]) -> pa.RecordBatch:
    """As Spark hands them over."""
    marked = [~m.offset if m.key is not None else m.offset for m in messages]
    batch = batch_of(messages)
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(marked, pa.int64())], names=[*batch.schema.names, "marked"]
    )


def route(*batches: pa.RecordBatch) -> tuple[dict[str, list[int]], int]:
    """The offsets that each queue takes, in the order in which they come; and in how many rows."""
    taken: defaultdict[str, list[int]] = defaultdict(list)
    count = 0
    for found in router(ManyFilters(FILTERS))(batches):
        assert found.schema.equals(ROUTED_SCHEMA)
        for queue, offsets in zip(*(column.to_pylist() for column in found.columns), strict=True):
            assert offsets
            taken[queue] += offsets
            count += 1
    return dict(taken), count


def wanted(messages: Sequence[Message]) -> dict[str, list[int]]:
    by_queue = {
        name: [int(m.offset) for m in messages if m.key is not None or one.matches(m)]
        for name, one in FILTERS.items()
    }
    return {name: offsets for name, offsets in by_queue.items() if offsets}


@law("R1")
@pytest.mark.parametrize("messages", [SOME, NO_KEYS, ONLY_KEYS], ids=["some", "none", "all"])
@pytest.mark.parametrize("most", [1, 23, 10_000_000])
def test_queues_take_what_their_filters_do(
    monkeypatch: pytest.MonkeyPatch, messages: list[Message], most: int
) -> None:
    monkeypatch.setattr(module, "_MOST_PAIRS", most)
    expected = wanted(messages)
    found, rows = route(rows_of(messages))
    assert found == expected
    # One each, unless that would be too much to hold at once.
    assert rows == len(expected) if most > 1000 else rows > len(expected)


def test_a_batch_of_nothing_goes_nowhere() -> None:
    assert route(rows_of([])) == ({}, 0)
    assert route() == ({}, 0)


def test_nobody_takes_anything() -> None:
    (found,) = router(ManyFilters({}))([rows_of(NO_KEYS)])
    assert found.num_rows == 0
    assert found.schema.equals(ROUTED_SCHEMA)


def test_only_what_filters_read_goes_to_python(spark: SparkSession) -> None:
    del spark  # Columns need a session to be made.
    texts = ["topic = 'a' AND amount > 1", "Amount = 'x' AND published_at > 5", "amount = 2.5"]
    many = ManyFilters({text: parse(text) for text in texts})
    assert many.fields == ("published_at", "topic")
    assert many.headers == {"Amount": "s", "amount": "id"}
    assert len(narrow(many)) == 5


@law("R1")
@pytest.mark.parametrize("count", [MOST_FLAT, MOST_FLAT + 1])
def test_few_headers_and_many(spark: SparkSession, count: int) -> None:
    """In columns of their own, and in the map."""
    names = [f"{letter}{n // 2}" for n, letter in enumerate(("h", "H") * count)][:count]
    filters = {name: parse(f'"{name}" = 1 OR "{name}" = \'one\'') for name in names}
    rows = [
        Message(
            **{field: getattr(SOME[0], field) for field in ("id", "topic", "priority", "size")},
            offset=Offset(n),
            published_at=0,
            deliver_at=0,
            expires_at=None,
            checksum=0,
            headers={names[n % count]: value},
        )
        for n, value in enumerate((1, "one", 1.0, True, 2, "1") * count)
    ]
    batch = batch_of(rows)
    table = pa.Table.from_batches([batch]).append_column(
        "offset", pa.array([row.offset for row in rows], pa.int64())
    )
    found = routed(spark.createDataFrame(table), filters).collect()
    assert {row["queue"]: row["offsets"] for row in found} == {
        name: offsets
        for name, one in filters.items()
        if (offsets := [int(row.offset) for row in rows if one.matches(row)])
    }
