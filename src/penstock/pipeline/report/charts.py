"""The data of the charts, which the script of the page draws with uPlot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from penstock.pipeline.report.figures import Figures, QueueFigures, top
from penstock.pipeline.report.periods import DAY_S

__all__ = ["Chart", "Series", "charts_of", "sparkline"]

#: Lines per chart; the tables have the rest.
_MOST_LINES: Final = 6
_SPARK_WIDTH: Final = 96
_SPARK_HEIGHT: Final = 22


class Series(Struct, frozen=True):
    """One line, or one set of bars."""

    name: str
    values: Sequence[float | None]
    tone: str = ""
    """A colour with a meaning: ``main``, ``soft``, ``good`` or ``bad``; otherwise one per name."""


class Chart(Struct, frozen=True):
    """One chart over time."""

    id: str
    title: str
    about: str
    unit: str
    """``rate`` per second, ``count`` or ``ms``."""
    times: Sequence[int]
    """Epoch seconds."""
    series: Sequence[Series]
    group: str = "period"
    """Charts of a group have the same times and are zoomed together."""
    bars: bool = False


def charts_of(figures: Figures) -> list[Chart]:
    """The charts, without those that would be empty."""
    times = list(figures.period.buckets)
    period = [
        Chart("throughput", "Throughput", "per second, all queues", "rate", times, _flow(figures)),
        Chart(
            "depth",
            "Waiting",
            "unsettled deliveries, the deepest queues",
            "count",
            times,
            [
                Series(queue.name, queue.depth or [0.0] * len(times))
                for queue in top(figures.queues, _MOST_LINES, lambda q: max(q.depth, default=0))
            ],
        ),
        Chart(
            "wait",
            "Time until claimed",
            "95th percentile, the slowest queues",
            "ms",
            times,
            _percentile(figures, "wait_p95", lambda queue: queue.wait.p95 or 0),
        ),
        Chart(
            "work",
            "Time in work",
            "from a claim to its end, 95th percentile",
            "ms",
            times,
            _percentile(figures, "work_p95", lambda queue: queue.work.p95 or 0),
        ),
        Chart(
            "topics",
            "Published by topic",
            "per second, the largest topics",
            "rate",
            times,
            [
                Series(topic.name, _per_second(topic.series, figures))
                for topic in figures.topics[:_MOST_LINES]
                if topic.messages
            ],
        ),
        Chart(
            "failures",
            "Failed by queue",
            "deliveries that ended in the dead letters",
            "count",
            times,
            [
                Series(queue.name, queue.series["failures"])
                for queue in top(figures.queues, _MOST_LINES, lambda q: q.current.failures)
            ],
        ),
    ]
    return [chart for chart in (*period, *_trend(figures)) if chart.series]


def _per_second(values: Sequence[float | None], figures: Figures) -> list[float | None]:
    return [(value or 0) / figures.period.width for value in values]


def _flow(figures: Figures) -> list[Series]:
    def total(name: str) -> list[float | None]:
        columns = [queue.series[name] for queue in figures.queues]
        added = [sum(value or 0 for value in values) for values in zip(*columns, strict=True)]
        return _per_second(added, figures)

    published = [
        sum(value or 0 for value in values)
        for values in zip(*(topic.series for topic in figures.topics), strict=True)
    ]
    named = [
        Series("published", _per_second(published, figures), "main"),
        Series("acked", total("acks"), "good"),
        Series("nacked", total("nacks"), "soft"),
        Series("failed", total("failures"), "bad"),
    ]
    return [series for series in named if any(series.values)]


def _percentile(
    figures: Figures, column: str, key: Callable[[QueueFigures], float]
) -> list[Series]:
    return [
        Series(queue.name, queue.series[column]) for queue in top(figures.queues, _MOST_LINES, key)
    ]


def _trend(figures: Figures) -> list[Chart]:
    """Everything that the store and the lake have, by day."""
    if len(figures.days) < 2:
        return []
    days = range(min(figures.days), max(figures.days) + 1, DAY_S)

    def by_day(name: str) -> list[float | None]:
        return [figures.days.get(day, {}).get(name, 0.0) for day in days]

    published = Series("published", by_day("messages"), "main")
    failed = Series("failed", by_day("failures"), "bad")
    return [
        Chart(
            "trend",
            "Published by day",
            "everything in the store and the lake",
            "count",
            list(days),
            [published],
            "trend",
            bars=True,
        ),
        Chart(
            "trend-failed",
            "Failed by day",
            "deliveries that ended in the dead letters",
            "count",
            list(days),
            [failed] if any(failed.values) else [],
            "trend",
            bars=True,
        ),
    ]


def sparkline(values: Sequence[float | None]) -> str:
    """A small line without axes, as SVG; empty if there is nothing to see."""
    numbers = [value or 0.0 for value in values]
    highest = max(numbers, default=0)
    if not highest or len(numbers) < 2:
        return ""
    step = _SPARK_WIDTH / (len(numbers) - 1)
    points = " ".join(
        f"{place * step:.1f},{_SPARK_HEIGHT - 2 - (_SPARK_HEIGHT - 4) * number / highest:.1f}"
        for place, number in enumerate(numbers)
    )
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" '
        f'preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{points}"/></svg>'
    )
