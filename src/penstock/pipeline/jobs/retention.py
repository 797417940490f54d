"""``retention``: removes entries from the store that the lake has and nothing refers to (A1, G1).

Spark finds the entries that may be removed: older than the log retention, routed by every queue,
referenced by no delivery, and in files of the lake that were read again and compared with the
manifest and with the log. The job reports to the broker up to which offset the lake is verified,
and sweeps. The broker checks every reference again in its own commit: a list made outside would
be stale on arrival, so none is passed (docs/decisions/0034).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.model.limits import MAX_OFFSET
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.lake.checks import HASHED, corrupt, damaged, row_hash
from penstock.pipeline.lake.commits import File, Lake
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import MESSAGES
from penstock.pipeline.lake.ownership import check_owner, require_lake, store_of
from penstock.pipeline.lake.reader import read_files
from penstock.pipeline.tables import read_table
from penstock.pipeline.twins import only_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["retention"]

#: Why an entry stays, in order of precedence; and ``candidate`` for one that may be removed.
_REASONS: Final = ("unverified", "young", "unrouted", "referred", "candidate")
#: Stop after this many consecutive sweeps that removed nothing although there is more.
_FRUITLESS: Final = 100
_SWEEP: Final = 10_000


class _Verified(Struct, frozen=True):
    """How far the lake matches the log."""

    through: int
    """Every log entry below it is in the lake, in an undamaged file."""
    checked: int
    bad: list[File]


def retention(context: JobContext, *, dry_run: bool = False) -> Summary:
    """Verify, report to the broker and sweep; or only count what would be removed."""
    with only_run(context, "retention", context.lake):
        return _retention(context, dry_run=dry_run)


def _retention(context: JobContext, *, dry_run: bool) -> Summary:
    files = context.lake_files()
    store = store_of(context)
    lake = require_lake(context, files)
    check_owner(context, files, lake, store)
    kept_ms = context.remote.ask(lambda q: q.server_settings()).log_retention_ms
    first = int(context.remote.ask(lambda q: q.log_start()))
    end = int(context.remote.ask(lambda q: q.log_end()))
    log = read_table(
        context.spark,
        context.server,
        "log",
        startingOffsets=first,
        endingOffsets=end,
        payload=False,
        failOnDataLoss=False,
    ).cache()
    try:
        verified = _verify(context, files, lake, log, first)
        context.reach("files verified", verified.checked)
        counts = _count(context, log, verified.through, kept_ms)
    finally:
        log.unpersist()
    removed = 0
    if not dry_run:
        if verified.through > 0:
            context.remote.ask(lambda q: q.archived(verified.through - 1, store))
        removed = _sweep(context)
    if verified.bad:
        raise corrupt(
            [file.path for file in verified.bad],
            f"Entries at and above offset {verified.through} stay in the store, and {removed} "
            "entries below it were removed. Files of the lake are not what was archived",
        )
    return {
        "entries": sum(counts.values()),
        "candidates": counts["candidate"],
        "removed": removed,
        **{f"kept_{reason}": counts[reason] for reason in _REASONS if reason != "candidate"},
        "kept_beside_others": 0 if dry_run else max(0, counts["candidate"] - removed),
        "verified_through": verified.through,
        "files_verified": verified.checked,
        "dry_run": str(dry_run).lower(),
    }


def _verify(context: JobContext, files: Files, lake: Lake, log: DataFrame, first: int) -> _Verified:
    """Read the files for entries that are still in the store, and compare the two."""
    hot = [file for file in lake.of(MESSAGES) if file.last >= first]
    bad = damaged(context.spark, files, hot)
    whole = [file for file in hot if file not in bad]
    through = min([lake.through, *(file.first for file in bad)])
    copies = read_files(context.spark, files, whole, MESSAGES, HASHED[MESSAGES], lenient=True)
    known = copies.select("offset", row_hash(MESSAGES).alias("known"))
    entries = log.where(F.col("offset") < through).select(
        "offset", row_hash(MESSAGES).alias("hash")
    )
    unlike = entries.join(known, "offset", "left").where(
        F.col("known").isNull() | (F.col("known") != F.col("hash"))
    )
    lowest = unlike.agg(F.min("offset").alias("offset")).collect()[0]["offset"]
    return _Verified(through if lowest is None else int(lowest), len(hot), bad)


def _count(context: JobContext, log: DataFrame, through: int, kept_ms: int) -> dict[str, int]:
    """Count the entries that may be removed, and those that stay, by reason."""
    spark, now = context.spark, context.clock.now()
    queues = context.remote.ask(lambda q: q.queues())
    routed = min((int(one.cursor) for one in queues if one.cursor is not None), default=MAX_OFFSET)
    deliveries = read_table(spark, context.server, "deliveries", payload=False)
    referred = deliveries.select("id").distinct().withColumn("referred", F.lit(True))
    offset, reason = F.col("offset"), F.lit("candidate")
    for name, holds in (
        ("referred", F.col("referred").isNotNull()),
        ("unrouted", offset >= routed),
        ("young", F.unix_millis("timestamp") + kept_ms > now),
        ("unverified", offset >= through),
    ):
        reason = F.when(holds, name).otherwise(reason)
    entries = log.select("offset", "id", "timestamp").join(referred, "id", "left")
    counted = entries.groupBy(reason.alias("reason")).count().collect()
    found = {row["reason"]: int(row["count"]) for row in counted}
    return {name: found.get(name, 0) for name in _REASONS}


def _sweep(context: JobContext) -> int:
    """Sweep until nothing is left to remove; returns the number of removed entries."""
    removed = fruitless = 0
    while not context.stopping.is_set() and fruitless < _FRUITLESS:
        reply = context.remote.ask(lambda q: q.sweep(_SWEEP))
        removed += reply.entries_removed
        context.reach("entries removed", removed)
        fruitless = 0 if reply.entries_removed or reply.removed else fruitless + 1
        if not reply.more:
            break
    return removed
