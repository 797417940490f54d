"""Checks of the job ``verify``: the lake matches the log and its own manifest.

A check is that of ``penstock.verify``: how much was examined, how many violations there are, and
a description of the first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.model.message import MessageId
from penstock.pipeline.lake.checks import damaged, row_hash
from penstock.pipeline.lake.commits import Lake
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import MESSAGES
from penstock.verify.report import MAX_KEPT, Check, Violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_copies", "check_files", "check_histories", "check_offsets", "found_by"]


def found_by(
    law: str, name: str, what: str, examined: int, wrong: DataFrame, says: Callable[[Any], str]
) -> Check:
    """A check whose violations are rows with an ``id``; ``says`` describes one."""
    kept = wrong.limit(MAX_KEPT + 1).collect()
    count = len(kept) if len(kept) <= MAX_KEPT else wrong.count()
    return Check(
        law=law,
        name=name,
        what=what,
        examined=examined,
        violations=tuple(
            Violation(law=law, message_id=MessageId(row["id"]), detail=says(row))
            for row in kept[:MAX_KEPT]
        ),
        violation_count=count,
        unresolved=0,
    )


def check_files(spark: SparkSession, files: Files, lake: Lake) -> Check:
    """Read every file of the lake completely (X1, P3)."""
    bad = damaged(spark, files, list(lake.files.values()))
    return Check(
        law="X1",
        name="files",
        what="Every file is there and has the rows, the digest and the payloads of the manifest.",
        examined=len(lake.files),
        violations=tuple(
            Violation(law="X1", detail=f"{file.path} is not what was archived")
            for file in bad[:MAX_KEPT]
        ),
        violation_count=len(bad),
        unresolved=0,
    )


def check_copies(log: DataFrame, messages: DataFrame, lake: Lake) -> Check:
    """Log entries in archived ranges are in the lake, unchanged (A1)."""
    ranges = _joined((block.start, block.end) for block in lake.blocks)
    offset = F.col("offset")
    inside = reduce(
        or_, (((offset >= start) & (offset < end)) for start, end in ranges), F.lit(False)
    )
    entries = log.where(inside).select("offset", "id", row_hash(MESSAGES).alias("wanted"))
    wrong = entries.join(messages.select("offset", "hash"), "offset", "left").where(
        F.col("hash").isNull() | (F.col("hash") != F.col("wanted"))
    )
    return found_by(
        "A1",
        "copies",
        "Every entry of the log that was archived is in the lake, as it is in the log.",
        entries.count(),
        wrong,
        lambda row: (
            f"the entry at {row['offset']} is "
            + ("not in the lake" if row["hash"] is None else "different in the lake")
        ),
    )


def check_offsets(messages: DataFrame, lake: Lake) -> Check:
    """The lake has every offset once, and as many as were archived (L1)."""
    twice = messages.groupBy("offset").agg(
        F.count(F.lit(1)).alias("times"), F.min("id").alias("id")
    )
    check = found_by(
        "L1",
        "offsets",
        "No offset is in the lake twice, and there are as many as the manifest says.",
        messages.count(),
        twice.where("times > 1"),
        lambda row: f"the lake has the offset {row['offset']} {row['times']} times",
    )
    wanted = sum(block.entries for block in lake.blocks)
    if check.examined == wanted:
        return check
    counted = Violation(
        law="L1", detail=f"{wanted} entries were archived, and the lake has {check.examined} rows"
    )
    return Check(
        law=check.law,
        name=check.name,
        what=check.what,
        examined=check.examined,
        violations=(counted, *check.violations)[:MAX_KEPT],
        violation_count=check.violation_count + 1,
        unresolved=0,
    )


def check_histories(histories: DataFrame, log: DataFrame, messages: DataFrame) -> Check:
    """Every history in the lake belongs to a known message (A1)."""
    known = messages.select("id").union(log.select("id"))
    wrong = histories.groupBy("id").count().join(known, "id", "left_anti")
    return found_by(
        "A1",
        "histories",
        "Every history in the lake is of a message that the lake or the log has.",
        histories.count(),
        wrong,
        lambda row: f"the lake has {row['count']} transitions of it, but the message is nowhere",
    )


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent ranges."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
