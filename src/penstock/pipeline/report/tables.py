"""The tables behind a report: aggregates over the log and over every recorded transition.

The log is read once and the history once. Every table has a row per group, not per message, so
that neither Spark's driver nor the page depends on the number of messages. ``latency`` has a
quantile sketch next to the percentiles, so that reports of several days can be merged.

Every table says to which period a row belongs: ``current``, ``previous`` or ``earlier``. Earlier
rows are by day, for trends over everything that the store and the lake have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.pipeline.report.fingerprints import fingerprint, pattern
from penstock.pipeline.report.periods import DAY_S, Period

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Tables", "make_tables", "with_claims"]

#: The accuracy of approximate percentiles: one in this many.
_ACCURACY: Final = 1_000
_LIVE: Final = ("delayed", "available", "in_flight")
#: The transitions that end a claim.
_ENDS: Final = ("ack", "nack", "reject", "release", "lapse")
#: Groups of failures, and consumers, that are kept: those with the most, and the slowest.
_MOST_GROUPS: Final = 1_000


class Tables(Struct, frozen=True):
    """The tables of a report, one data frame each."""

    topics: DataFrame
    """By period, bucket and topic: messages and bytes."""
    activity: DataFrame
    """By period, bucket and queue: what happened, the change of its depth, latencies in ms."""
    latency: DataFrame
    """By period, queue and kind (wait: publish to first claim; work: claim to its end), in ms."""
    failures: DataFrame
    """By period, fingerprint of the error and queue: count, first and last time, examples."""
    consumers: DataFrame
    """By queue and consumer, now: how many claims ended, and how long they took, in ms."""

    def named(self) -> dict[str, DataFrame]:
        """The tables by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


def make_tables(log: DataFrame, claims: DataFrame, period: Period) -> Tables:
    """Build the tables; ``claims`` is ``with_claims(history)``, read several times."""
    return Tables(
        topics=_topics(log, period),
        activity=_activity(claims, period),
        latency=_latency(claims, period),
        failures=_failures(claims, period),
        consumers=_consumers(claims, period),
    )


def with_claims(history: DataFrame) -> DataFrame:
    """The history with, per transition, what it changed and what it ended.

    ``change`` is that of the number of unsettled deliveries; ``wait`` is on the first claim of a
    delivery, ``work`` and ``ended_by`` on every claim that has ended, at the claim.
    """
    order = Window.partitionBy("id", "queue").orderBy("seq")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    live = F.col("state").isin(*_LIVE)
    before = F.coalesce(F.lag(live).over(order), F.lit(False))
    is_claim = F.col("transition") == "claim"
    at = F.unix_millis("at")
    published = F.first(F.when(F.col("transition") == "publish", at), ignorenulls=True)
    claims_so_far = F.count(F.when(is_claim, 1)).over(so_far)
    ended_by = F.lead("transition").over(order)
    return history.select(
        "id",
        "queue",
        "at",
        "transition",
        "state",
        "consumer",
        "error",
        (live.cast("int") - before.cast("int")).alias("change"),
        F.when(is_claim & (claims_so_far == 1), at - published.over(so_far)).alias("wait"),
        F.when(is_claim & ended_by.isin(*_ENDS), ended_by).alias("ended_by"),
        F.when(
            is_claim & ended_by.isin(*_ENDS), F.unix_millis(F.lead("at").over(order)) - at
        ).alias("work"),
    )


def _period(column: str, period: Period) -> Column:
    second = F.unix_timestamp(column)
    return (
        F.when(second >= period.start, "current")
        .when(second >= period.before, "previous")
        .otherwise("earlier")
        .alias("period")
    )


def _bucket(column: str, period: Period) -> Column:
    """The start of the row's bucket: of the period's width, or of a day for earlier rows."""
    second = F.unix_timestamp(column)
    width = F.when(second >= period.before, F.lit(period.width)).otherwise(F.lit(DAY_S))
    return F.timestamp_seconds(second - F.pmod(second, width)).alias("time")


def _until(rows: DataFrame, column: str, period: Period) -> DataFrame:
    return rows.where(F.unix_timestamp(column) < period.end)


def _count(condition: Column) -> Column:
    return F.sum(condition.cast("long"))


def _topics(log: DataFrame, period: Period) -> DataFrame:
    return (
        _until(log, "timestamp", period)
        .groupBy(_period("timestamp", period), _bucket("timestamp", period), "topic")
        .agg(F.count(F.lit(1)).alias("messages"), F.sum("size").alias("bytes"))
    )


def _activity(claims: DataFrame, period: Period) -> DataFrame:
    what, state = F.col("transition"), F.col("state")
    wait = F.percentile_approx("wait", [0.5, 0.95], _ACCURACY)
    work = F.percentile_approx("work", [0.5, 0.95], _ACCURACY)
    return (
        _until(claims, "at", period)
        .groupBy(_period("at", period), _bucket("at", period), "queue")
        .agg(
            _count(what == "publish").alias("arrivals"),
            _count(what == "claim").alias("claims"),
            _count(what == "ack").alias("acks"),
            _count(what == "nack").alias("nacks"),
            _count(what == "lapse").alias("lapses"),
            _count((state == "failed") & (what != "retention")).alias("failures"),
            _count((state == "expired") & (what != "retention")).alias("expired"),
            F.sum(F.col("change").cast("long")).alias("change"),
            wait[0].alias("wait_p50"),
            wait[1].alias("wait_p95"),
            work[0].alias("work_p50"),
            work[1].alias("work_p95"),
        )
    )


def _percentiles(column: str) -> list[Column]:
    shares = (0.5, 0.9, 0.95, 0.99)
    found = F.percentile_approx(column, list(shares), _ACCURACY)
    return [
        F.count(column).alias("count"),
        *[found[i].alias(f"p{share * 100:g}") for i, share in enumerate(shares)],
        F.max(column).alias("max"),
    ]


def _latency(claims: DataFrame, period: Period) -> DataFrame:
    recent = _until(claims, "at", period).where(F.unix_timestamp("at") >= period.before)
    kinds = F.array(
        F.struct(F.lit("wait").alias("kind"), F.col("wait").alias("ms")),
        F.struct(
            F.lit("work").alias("kind"),
            F.when(F.col("ended_by").isin("ack", "nack", "reject"), F.col("work")).alias("ms"),
        ),
    )
    each = recent.select(_period("at", period), "queue", F.inline(kinds)).where("ms IS NOT NULL")
    sketch = F.kll_sketch_agg_bigint("ms").alias("sketch")
    return each.groupBy("period", "queue", "kind").agg(*_percentiles("ms"), sketch)


def _failures(claims: DataFrame, period: Period) -> DataFrame:
    recent = _until(claims, "at", period).where(F.unix_timestamp("at") >= period.before)
    wrong = recent.where(F.col("error").isNotNull() | (F.col("state") == "failed"))
    named = wrong.select(
        "*",
        _period("at", period),
        fingerprint(F.col("error")).alias("fingerprint"),
        pattern(F.col("error")).alias("pattern"),
    )
    # Of the ids only three are kept: a set of them could be as large as the history.
    ids = F.array_sort(F.array_distinct(F.array(F.min("id"), F.max_by("id", "at"), F.max("id"))))
    grouped = named.groupBy("period", "fingerprint", "queue").agg(
        F.any_value("pattern").alias("pattern"),
        F.count(F.lit(1)).alias("count"),
        _count((F.col("state") == "failed") & (F.col("transition") != "retention")).alias("failed"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
        F.max_by("error", "at").alias("example"),
        ids.alias("messages"),
    )
    return grouped.orderBy(F.desc("count"), "fingerprint", "queue").limit(_MOST_GROUPS)


def _consumers(claims: DataFrame, period: Period) -> DataFrame:
    ended = _until(claims, "at", period).where(
        (F.unix_timestamp("at") >= period.start) & F.col("ended_by").isNotNull()
    )
    grouped = ended.groupBy("queue", "consumer").agg(
        _count(F.col("ended_by") != "ack").alias("not_acked"), *_percentiles("work")
    )
    return grouped.orderBy(F.desc("p95"), "queue", "consumer").limit(_MOST_GROUPS)
