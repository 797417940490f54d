"""``retention``: out of the store goes what nothing refers to and the lake verifiably has (A1, G1).

Spark finds the entries that may go: older than the log is kept, routed by every queue, referred
to by no delivery, and in files of the lake that were read through again and compared with the
manifest and with the log. The broker is told how far that is right, and sweeps. It looks at every
reference again in its own commit: a list that was made outside is old when it arrives, so none is
handed over (docs/decisions/0034).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.model.limits import MAX_OFFSET, Limits
from penstock.pipeline.context import Context, Summary
from penstock.pipeline.lake.checks import LENIENT, corrupt, damaged, row_hash
from penstock.pipeline.lake.commits import File, Lake
from penstock.pipeline.lake.files import Files, open_files
from penstock.pipeline.lake.layout import MESSAGES
from penstock.pipeline.lake.ownership import check_owner, require_lake, store_of
from penstock.pipeline.lake.reading import read_files
from penstock.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["retention"]

#: Why an entry stays, the first that holds; and what may go.
_REASONS: Final = ("unverified", "young", "unrouted", "referred", "candidate")
#: Sweeps in a row that find nothing although there is more; then it is not for us to find.
_FRUITLESS: Final = 100
_SWEEP: Final = 10_000


class _Verified(Struct, frozen=True):
    """How far the lake has what the log has."""

    through: int
    """Every entry of the log below it is in the lake, and its file is what was written."""
    checked: int
    bad: list[File]


def retention(
    context: Context, *, dry_run: bool = False, log_retention_ms: int | None = None
) -> Summary:
    """Verify, tell, sweep; or only say what would go.

    ``log_retention_ms`` is the server's, where that is not the usual; it only changes what
    is expected to go.
    """
    files = open_files(context.lake, lambda: context.spark)
    store = store_of(context)
    lake = require_lake(context, files)
    check_owner(context, files, lake, store)
    usual = Limits().log_retention_ms
    kept_ms = usual if log_retention_ms is None else log_retention_ms
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
            f"What is at and above offset {verified.through} stays in the store, and {removed} "
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


def _verify(context: Context, files: Files, lake: Lake, log: DataFrame, first: int) -> _Verified:
    """Read the files of what is in the store, and compare what they hold with it."""
    hot = [file for file in lake.of(MESSAGES) if file.last >= first]
    bad = damaged(context.spark, files, hot)
    whole = [file for file in hot if file not in bad]
    through = min([lake.through, *(file.first for file in bad)])
    known = read_files(context.spark, files, whole, MESSAGES, **LENIENT).select(
        "offset", row_hash(MESSAGES).alias("known")
    )
    entries = log.where(F.col("offset") < through).select(
        "offset", row_hash(MESSAGES).alias("hash")
    )
    unlike = entries.join(known, "offset", "left").where(
        F.col("known").isNull() | (F.col("known") != F.col("hash"))
    )
    lowest = unlike.agg(F.min("offset").alias("offset")).collect()[0]["offset"]
    return _Verified(through if lowest is None else int(lowest), len(hot), bad)


def _count(context: Context, log: DataFrame, through: int, kept_ms: int) -> dict[str, int]:
    """How many entries may go, and how many stay for which reason."""
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


def _sweep(context: Context) -> int:
    """Let the broker remove what may go; how many entries did."""
    removed = fruitless = 0
    while not context.stopping.is_set() and fruitless < _FRUITLESS:
        reply = context.remote.ask(lambda q: q.sweep(_SWEEP))
        removed += reply.entries_removed
        context.reach("entries removed", removed)
        fruitless = 0 if reply.entries_removed or reply.removed else fruitless + 1
        if not reply.more:
            break
    return removed
