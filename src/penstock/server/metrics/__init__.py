"""Metrics: the server's counters, in Prometheus' format.

``counting`` holds the counters of the hot path, ``queue_stats`` reads queue statistics from the
store on each scrape, ``exposition`` names the metrics, ``metrics`` is the public class. Every
metric is explained in docs/metrics.md.
"""

from __future__ import annotations

from penstock.server.metrics.metrics import Metrics

__all__ = ["Metrics"]
