"""Metrics: what the server counted, in Prometheus' format.

``counting`` is what the hot path touches, ``gathering`` asks the store for its queues when
somebody looks, ``exposition`` gives both their names, ``metrics`` is the door. Every metric is
explained in docs/metrics.md.
"""

from __future__ import annotations

from penstock.server.metrics.metrics import Metrics

__all__ = ["Metrics"]
