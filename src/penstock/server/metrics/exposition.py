"""Exposition: the names, units and labels of the metrics in Prometheus.

The terms are those of docs/semantics.md, the naming follows Prometheus: ``penstock_`` first,
the unit last, ``_total`` for counters. docs/metrics.md has a line for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock.model.reports import KeeperReport
from penstock.server.metrics.counting import CallOutcome, Calls, Histogram
from penstock.server.metrics.queue_stats import Gathered

__all__ = [
    "Metric",
    "call_metrics",
    "counter",
    "gauge",
    "histogram",
    "info",
    "keeper_metrics",
    "labelled_counter",
    "process_registry",
    "queue_metrics",
    "to_text",
]

#: 200 queues have about 2,700 samples; writing all of them in one step blocks the loop for 20 ms.
_SAMPLES_A_TURN: Final = 100
_PLACE: Final = ("tenant", "queue")

Metrics: TypeAlias = Iterator[Metric]


class _Given(Collector):
    """A collector of metrics that exist already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the given metrics."""
        return self._metrics


def process_registry() -> CollectorRegistry:
    """A registry with processor, memory, files and garbage collection of this process only."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


async def to_text(metrics: Iterable[Metric]) -> bytes:
    """Write Prometheus' text format, yielding to the event loop between parts."""
    parts: list[bytes] = []
    for metric in metrics:
        for start in range(0, len(metric.samples), _SAMPLES_A_TURN):
            part = Metric(metric.name, metric.documentation, metric.type)
            part.samples = metric.samples[start : start + _SAMPLES_A_TURN]
            text = generate_latest(_Given([part]))
            # The HELP and TYPE lines belong before the first sample only.
            parts.append(text if start == 0 else text.split(b"\n", 2)[2])
            await asyncio.sleep(0)
    return b"".join(parts)


def counter(name: str, help: str, value: float) -> Metric:
    """A value that only grows."""
    return CounterMetricFamily(name, help, value)


def gauge(name: str, help: str, value: float) -> Metric:
    """A value that goes up and down."""
    return GaugeMetricFamily(name, help, value)


def histogram(name: str, help: str, values: Histogram) -> Metric:
    """The distribution of values."""
    return HistogramMetricFamily(name, help, values.buckets(), values.total)


def info(name: str, help: str, labels: dict[str, str]) -> Metric:
    """Constant labels."""
    return InfoMetricFamily(name, help, labels)


def labelled_counter(
    name: str, help: str, label: str, values: Iterable[tuple[str, float]]
) -> Metric:
    """A value that only grows, by one label."""
    family = CounterMetricFamily(name, help, labels=[label])
    for text, value in values:
        family.add_metric([text], value)
    return family


def call_metrics(calls: Calls) -> Metrics:
    """Calls by verb."""
    total = CounterMetricFamily(
        "penstock_calls", "Calls that have ended.", labels=["verb", "outcome"]
    )
    seconds = HistogramMetricFamily(
        "penstock_call_duration_seconds", "How long calls took.", labels=["verb"]
    )
    for verb, of_verb in sorted(calls.verbs.items()):
        for outcome, count in of_verb.outcomes.items():
            # Omit outcomes that never occurred, except ok, which rates are compared with.
            if count or outcome is CallOutcome.OK:
                total.add_metric([verb, outcome.value], count)
        seconds.add_metric([verb], of_verb.seconds.buckets(), of_verb.seconds.total)
    yield total
    yield seconds
    yield gauge("penstock_calls_active", "Calls in progress.", calls.active)


def keeper_metrics(reports: Iterable[KeeperReport]) -> Metrics:
    """Metrics of the background duties."""
    reports = tuple(reports)
    label = ["keeper"]
    running = GaugeMetricFamily("penstock_keeper_running", "1 while it runs.", labels=label)
    runs = CounterMetricFamily("penstock_keeper_runs", "Finished passes.", labels=label)
    failures = CounterMetricFamily("penstock_keeper_failures", "Passes that failed.", labels=label)
    finished = GaugeMetricFamily(
        "penstock_keeper_finished_timestamp_seconds",
        "When the last pass finished, in epoch seconds.",
        labels=label,
    )
    for report in reports:
        running.add_metric([report.name], float(report.running))
        runs.add_metric([report.name], report.runs)
        failures.add_metric([report.name], report.failures)
        if report.finished_at is not None:
            finished.add_metric([report.name], report.finished_at / 1000)
    yield from (running, runs, failures, finished)
    calls = [item for report in reports for item in report.counters.items()]
    yield labelled_counter("penstock_webhook_calls", "Calls of webhooks.", "outcome", calls)


def queue_metrics(gathered: Gathered) -> Metrics:
    """Metrics of the queues."""
    deliveries = GaugeMetricFamily(
        "penstock_queue_deliveries", "Deliveries by state.", labels=[*_PLACE, "state"]
    )
    depth = GaugeMetricFamily(
        "penstock_queue_depth", "Delayed, available and in flight together.", labels=_PLACE
    )
    lag = GaugeMetricFamily(
        "penstock_queue_lag", "Unsettled deliveries and entries not yet routed.", labels=_PLACE
    )
    age = GaugeMetricFamily(
        "penstock_queue_oldest_available_age_seconds",
        "Age of the oldest available delivery; 0 if there is none.",
        labels=_PLACE,
    )
    for line in gathered.lines:
        place = [line.tenant, line.queue]
        for state, count in line.states.items():
            deliveries.add_metric([*place, state], count)
        depth.add_metric(place, line.depth)
        lag.add_metric(place, line.lag)
        age.add_metric(place, (line.oldest_available_ms or 0) / 1000)
    yield from (deliveries, depth, lag, age)
    yield gauge("penstock_queues", "Queues, including those under _other.", gathered.queues)
