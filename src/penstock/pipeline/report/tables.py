"""The tables behind a report: aggregates over the log and over every recorded transition.

All of them are native Spark aggregates. ``latency`` has a quantile sketch next to the percentiles,
so that reports of several days can be merged without reading everything again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.pipeline.report.fingerprints import fingerprint, pattern

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Span", "Tables", "make_tables", "span_of"]

#: Bucket widths in seconds; the first that gives at most ``_BUCKETS`` buckets is used.
_WIDTHS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400, 7 * 86_400)
_BUCKETS: Final = 96
_PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99)
#: The accuracy of approximate percentiles: one in this many.
_ACCURACY: Final = 1_000
_LIVE: Final = ("delayed", "available", "in_flight")
#: The transitions that end a claim.
_ENDS: Final = ("ack", "nack", "reject", "release", "lapse")
_EXAMPLES: Final = 3


class Span(Struct, frozen=True):
    """The period of a report in epoch seconds, divided into buckets."""

    start: int
    end: int
    width: int

    @property
    def buckets(self) -> range:
        """The start of each bucket."""
        return range(self.start, self.end + 1, self.width)


class Tables(Struct, frozen=True):
    """The tables of a report, one data frame each."""

    published: DataFrame
    """By bucket and topic: messages and bytes."""
    events: DataFrame
    """By bucket, queue and transition: the count."""
    depth: DataFrame
    """By bucket and queue: unsettled deliveries at its end."""
    latency: DataFrame
    """By queue and kind (wait: publish to first claim; work: claim to its end), in ms."""
    rates: DataFrame
    """By queue: claims, acks, retries, failures."""
    failures: DataFrame
    """By fingerprint of the error: count, queues, first and last time, and examples."""
    consumers: DataFrame
    """By queue and consumer: how many claims ended, and how long they took."""
    forecast: DataFrame
    """By queue: depth, and when it would be empty at the rate of the last buckets."""

    def named(self) -> dict[str, DataFrame]:
        """The tables by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


def span_of(log: DataFrame, history: DataFrame) -> Span | None:
    """From the first message to the last transition; None if there is neither."""
    (published,) = log.agg(
        F.min("timestamp").alias("low"), F.max("timestamp").alias("high")
    ).collect()
    (happened,) = history.agg(F.min("at").alias("low"), F.max("at").alias("high")).collect()
    lows = [row["low"] for row in (published, happened) if row["low"] is not None]
    highs = [row["high"] for row in (published, happened) if row["high"] is not None]
    if not lows:
        return None
    low, high = int(min(lows).timestamp()), int(max(highs).timestamp())
    width = next((w for w in _WIDTHS if (high - low) // w < _BUCKETS), _WIDTHS[-1])
    return Span(low - low % width, high, width)


def make_tables(log: DataFrame, history: DataFrame, span: Span) -> Tables:
    """Build the tables; ``history`` is read more than once, so it should be cached."""
    claims = _claims(history)
    depth = _depth(history, span)
    return Tables(
        published=log.groupBy(_bucket("timestamp", span), "topic").agg(
            F.count(F.lit(1)).alias("messages"), F.sum("size").alias("bytes")
        ),
        events=history.groupBy(_bucket("at", span), "queue", "transition").agg(
            F.count(F.lit(1)).alias("count")
        ),
        depth=depth,
        latency=_latency(history, claims),
        rates=_rates(history),
        failures=_failures(history),
        consumers=_consumers(claims),
        forecast=_forecast(depth, history, span),
    )


def _bucket(column: str, span: Span) -> Column:
    seconds = F.unix_timestamp(column)
    start = seconds - F.pmod(seconds - F.lit(span.start), F.lit(span.width))
    return F.timestamp_seconds(start).alias("time")


def _claims(history: DataFrame) -> DataFrame:
    """One row per ended claim: its consumer, duration and end."""
    order = Window.partitionBy("id", "queue").orderBy("seq")
    following = history.select(
        "id",
        "queue",
        "seq",
        "at",
        "transition",
        F.lead("transition").over(order).alias("ended_by"),
        F.lead("at").over(order).alias("ended_at"),
        F.lead("state").over(order).alias("ended_in"),
        "consumer",
    )
    over = following.where((F.col("transition") == "claim") & F.col("ended_by").isin(*_ENDS))
    return over.withColumn("ms", F.unix_millis("ended_at") - F.unix_millis("at"))


def _percentiles(column: str) -> list[Column]:
    found = F.percentile_approx(column, list(_PERCENTILES), _ACCURACY)
    return [
        F.count(F.lit(1)).alias("count"),
        *[found[i].alias(f"p{p * 100:g}") for i, p in enumerate(_PERCENTILES)],
        F.max(column).alias("max"),
        F.kll_sketch_agg_bigint(column).alias("sketch"),
    ]


def _latency(history: DataFrame, claims: DataFrame) -> DataFrame:
    by_delivery = history.groupBy("id", "queue").agg(
        F.min(F.when(F.col("transition") == "publish", F.unix_millis("at"))).alias("published"),
        F.min(F.when(F.col("transition") == "claim", F.unix_millis("at"))).alias("claimed"),
    )
    waited = by_delivery.where("claimed IS NOT NULL AND published IS NOT NULL").select(
        "queue", (F.col("claimed") - F.col("published")).alias("ms"), F.lit("wait").alias("kind")
    )
    worked = claims.where(F.col("ended_by").isin("ack", "nack", "reject")).select(
        "queue", "ms", F.lit("work").alias("kind")
    )
    return waited.unionByName(worked).groupBy("queue", "kind").agg(*_percentiles("ms"))


def _depth(history: DataFrame, span: Span) -> DataFrame:
    """The depth at the end of each bucket in which it changed."""
    order = Window.partitionBy("id", "queue").orderBy("seq")
    live = F.col("state").isin(*_LIVE)
    before = F.coalesce(F.lag(live).over(order), F.lit(False))
    change = live.cast("int") - before.cast("int")
    changes = history.select("queue", "at", change.alias("change")).where("change <> 0")
    by_bucket = changes.groupBy(_bucket("at", span), "queue").agg(F.sum("change").alias("change"))
    running = Window.partitionBy("queue").orderBy("time")
    return by_bucket.select("time", "queue", F.sum("change").over(running).alias("depth"))


def _rates(history: DataFrame) -> DataFrame:
    def count(condition: Column) -> Column:
        return F.sum(condition.cast("long"))

    what, state = F.col("transition"), F.col("state")
    return history.groupBy("queue").agg(
        F.count_distinct("id").alias("messages"),
        count(what == "claim").alias("claims"),
        count(what == "ack").alias("acks"),
        count(what == "nack").alias("nacks"),
        count(what == "lapse").alias("lapses"),
        count(what == "release").alias("releases"),
        count((state == "failed") & (what != "retention")).alias("failures"),
        count(state == "expired").alias("expired"),
    )


def _failures(history: DataFrame) -> DataFrame:
    wrong = history.where(F.col("error").isNotNull() | (F.col("state") == "failed"))
    named = wrong.withColumn("fingerprint", fingerprint(F.col("error"))).withColumn(
        "pattern", pattern(F.col("error"))
    )
    return (
        named.groupBy("fingerprint")
        .agg(
            F.any_value("pattern").alias("pattern"),
            F.count(F.lit(1)).alias("count"),
            F.sum((F.col("state") == "failed").cast("long")).alias("failed"),
            F.sort_array(F.collect_set("queue")).alias("queues"),
            F.min("at").alias("first"),
            F.max("at").alias("last"),
            F.max_by("error", "at").alias("example"),
            F.slice(F.sort_array(F.collect_set("id")), 1, _EXAMPLES).alias("messages"),
        )
        .orderBy(F.desc("count"), "fingerprint")
    )


def _consumers(claims: DataFrame) -> DataFrame:
    failed = F.sum((F.col("ended_by") != "ack").cast("long")).alias("not_acked")
    return (
        claims.groupBy("queue", "consumer")
        .agg(failed, *_percentiles("ms"))
        .orderBy(F.desc("p95"), "queue", "consumer")
    )


def _forecast(depth: DataFrame, history: DataFrame, span: Span) -> DataFrame:
    """Uses the rates of the last tenth of the period, or of one bucket if that is longer."""
    window = max(span.width, (span.end - span.start) // 10)
    recent = history.where(F.unix_timestamp("at") > span.end - window)
    pace = recent.groupBy("queue").agg(
        (F.sum((F.col("transition") == "publish").cast("long")) / window).alias(
            "arrivals_a_second"
        ),
        (F.sum(F.col("state").isin("done", "failed", "expired").cast("long")) / window).alias(
            "settled_a_second"
        ),
    )
    last = depth.groupBy("queue").agg(F.max_by("depth", "time").alias("depth"))
    gain = F.col("settled_a_second") - F.col("arrivals_a_second")
    joined = last.join(pace, "queue", "left").fillna(0.0)
    return joined.withColumn(
        "empty_in_s",
        F.when(F.col("depth") <= 0, F.lit(0.0)).when(gain > 0, F.col("depth") / gain),
    )
