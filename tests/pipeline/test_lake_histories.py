"""Histories in the lake: when they are read again, and how old and new become one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.pipeline.lake.commits import Block, File
from penstock.pipeline.lake.compaction import groups
from penstock.pipeline.lake.histories import due, merged, spans
from penstock.pipeline.lake.schemas import SCHEMAS

HOUR = 3_600_000


def block(start: int, end: int, read_at: int | None = None, **more: bool) -> Block:
    return Block(start, end, end - start, 0, read_at, **more)


@pytest.mark.parametrize(
    "one, now, once, expected",
    [
        (block(0, 9), 0, False, True),
        (block(0, 9, HOUR), 2 * HOUR - 1, False, False),
        (block(0, 9, HOUR), 2 * HOUR, False, True),
        # Never later than a queue forgets what is done.
        (block(0, 9, 100 * HOUR), 110 * HOUR, False, True),
        (block(0, 9, HOUR), HOUR, True, True),
        (block(0, 9, HOUR, quiet=True), HOUR, True, False),
        (block(0, 9, HOUR, quiet=True), 2 * HOUR, True, True),
    ],
)
def test_a_block_is_read_when_it_is_twice_as_old(
    one: Block, now: int, once: bool, expected: bool
) -> None:
    assert due(one, now, 10 * HOUR, once=once) is expected


def test_neighbours_are_read_together_up_to_a_bound() -> None:
    blocks = [block(0, 4), block(4, 8), block(8, 12), block(20, 21), block(21, 30)]
    found = [[(one.start, one.end) for one in span] for span in spans(blocks, 8)]
    assert found == [[(0, 4), (4, 8)], [(8, 12)], [(20, 21)], [(21, 30)]]
    assert list(spans([], 8)) == []


def test_histories_of_different_blocks_stay_apart() -> None:
    blocks = (block(0, 100), block(100, 200))
    files = [
        File(f"history/date=1/{n}.parquet", "history", 10, 10, n * 10, n * 10 + 9, "A")
        for n in range(20)
    ]
    assert [[file.first for file in group] for group in groups(files, blocks, 8)] == [
        list(range(0, 100, 10)),
        list(range(100, 200, 10)),
    ]


Row = tuple[int, str, int, int, str, str]


def history(spark: SparkSession, rows: list[Row]) -> DataFrame:
    values = [
        (id_, queue, seq, datetime.fromtimestamp(at, UTC), transition, state, None, None)
        for id_, queue, seq, at, transition, state in rows
    ]
    fields = SCHEMAS["history"].fields
    return spark.createDataFrame(values, StructType([f for f in fields if f.name != "date"]))


def listed(frame: DataFrame) -> list[tuple[int, str, int, str]]:
    rows = frame.orderBy("id", "queue", "seq").collect()
    return [(row["id"], row["queue"], row["seq"], row["transition"]) for row in rows]


def test_what_the_store_forgot_stays_and_what_is_new_comes(spark: SparkSession) -> None:
    known = history(
        spark,
        [
            (1, "q", 0, 10, "publish", "available"),
            (1, "q", 1, 20, "claim", "in_flight"),
            (1, "q", 2, 30, "nack", "available"),
            # Twice within a millisecond, and both happened.
            (1, "q", 3, 40, "claim", "in_flight"),
            (1, "q", 4, 40, "release", "available"),
            (1, "q", 5, 40, "claim", "in_flight"),
            (2, "gone", 0, 10, "publish", "available"),
        ],
    )
    # The store has lost the first three, and numbers from the beginning.
    current = history(
        spark,
        [
            (1, "q", 0, 40, "claim", "in_flight"),
            (1, "q", 1, 40, "release", "available"),
            (1, "q", 2, 40, "claim", "in_flight"),
            (1, "q", 3, 50, "ack", "done"),
            (3, "q", 0, 10, "publish", "available"),
        ],
    )
    once = merged(current, known)
    assert listed(once) == [
        (1, "q", 0, "publish"),
        (1, "q", 1, "claim"),
        (1, "q", 2, "nack"),
        (1, "q", 3, "claim"),
        (1, "q", 4, "release"),
        (1, "q", 5, "claim"),
        (1, "q", 6, "ack"),
        (2, "gone", 0, "publish"),
        (3, "q", 0, "publish"),
    ]
    assert once.columns == current.columns
    # Once more, and nothing is new.
    assert listed(merged(current, once)) == listed(once)
