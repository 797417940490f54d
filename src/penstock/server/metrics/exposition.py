"""Exposition: the names, units and labels that numbers have in Prometheus.

The words are those of docs/semantics.md, the forms those of Prometheus: ``penstock_`` first,
the unit last, ``_total`` for what only grows. docs/metrics.md has a line for each.
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
from penstock.server.metrics.gathering import Gathered

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

#: Two hundred queues make some 2,700 samples, and all at once they keep the loop for 20 ms.
_SAMPLES_A_TURN: Final = 100
_PLACE: Final = ("tenant", "queue")

Metrics: TypeAlias = Iterator[Metric]


class _Given(Collector):
    """Metrics that are there already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """As they were given."""
        return self._metrics


def process_registry() -> CollectorRegistry:
    """Processor, memory, files and garbage collection of this process; nobody else's numbers."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


async def to_text(metrics: Iterable[Metric]) -> bytes:
    """In Prometheus' text format, written in parts between which others get their turn."""
    parts: list[bytes] = []
    for metric in metrics:
        for start in range(0, len(metric.samples), _SAMPLES_A_TURN):
            part = Metric(metric.name, metric.documentation, metric.type)
            part.samples = metric.samples[start : start + _SAMPLES_A_TURN]
            text = generate_latest(_Given([part]))
            # What a metric is called and means stands before its first sample only.
            parts.append(text if start == 0 else text.split(b"\n", 2)[2])
            await asyncio.sleep(0)
    return b"".join(parts)


def counter(name: str, help: str, value: float) -> Metric:
    """What only grows."""
    return CounterMetricFamily(name, help, value)


def gauge(name: str, help: str, value: float) -> Metric:
    """What goes up and down."""
    return GaugeMetricFamily(name, help, value)


def histogram(name: str, help: str, values: Histogram) -> Metric:
    """How values are spread."""
    return HistogramMetricFamily(name, help, values.buckets(), values.total)


def info(name: str, help: str, labels: dict[str, str]) -> Metric:
    """What does not change, as labels."""
    return InfoMetricFamily(name, help, labels)


def labelled_counter(
    name: str, help: str, label: str, values: Iterable[tuple[str, float]]
) -> Metric:
    """What only grows, by one label."""
    family = CounterMetricFamily(name, help, labels=[label])
    for text, value in values:
        family.add_metric([text], value)
    return family


def call_metrics(calls: Calls) -> Metrics:
    """Calls by verb."""
    total = CounterMetricFamily(
        "penstock_calls", "Calls that are over.", labels=["verb", "outcome"]
    )
    seconds = HistogramMetricFamily(
        "penstock_call_duration_seconds", "How long calls took.", labels=["verb"]
    )
    for verb, of_verb in sorted(calls.verbs.items()):
        for outcome, count in of_verb.outcomes.items():
            # What never happened is left out, but for the success that rates are compared with.
            if count or outcome is CallOutcome.OK:
                total.add_metric([verb, outcome.value], count)
        seconds.add_metric([verb], of_verb.seconds.buckets(), of_verb.seconds.total)
    yield total
    yield seconds
    yield gauge("penstock_calls_active", "Calls that are under way.", calls.active)


def keeper_metrics(reports: Iterable[KeeperReport]) -> Metrics:
    """The background duties."""
    label = ["keeper"]
    running = GaugeMetricFamily("penstock_keeper_running", "1 while it goes on.", labels=label)
    runs = CounterMetricFamily("penstock_keeper_runs", "Passes that are over.", labels=label)
    failures = CounterMetricFamily("penstock_keeper_failures", "Passes that failed.", labels=label)
    finished = GaugeMetricFamily(
        "penstock_keeper_finished_timestamp_seconds",
        "When the last pass was over, in epoch seconds.",
        labels=label,
    )
    for report in reports:
        running.add_metric([report.name], float(report.running))
        runs.add_metric([report.name], report.runs)
        failures.add_metric([report.name], report.failures)
        if report.finished_at is not None:
            finished.add_metric([report.name], report.finished_at / 1000)
    yield from (running, runs, failures, finished)


def queue_metrics(gathered: Gathered) -> Metrics:
    """The queues."""
    deliveries = GaugeMetricFamily(
        "penstock_queue_deliveries", "Deliveries by state.", labels=[*_PLACE, "state"]
    )
    depth = GaugeMetricFamily(
        "penstock_queue_depth", "Delayed, available and in flight together.", labels=_PLACE
    )
    lag = GaugeMetricFamily(
        "penstock_queue_lag", "Unsettled deliveries and what is still to be routed.", labels=_PLACE
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
    yield gauge("penstock_queues", "Queues, with or without a line of their own.", gathered.queues)
