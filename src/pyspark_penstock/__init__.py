"""``format("penstock")`` in any Spark session: Spark finds a ``DefaultSource`` in ``pyspark_…``.

It is all that is here; the format is ``penstock.pipeline.format``.
"""

from __future__ import annotations

from penstock.pipeline.format.source import PenstockSource

__all__ = ["DefaultSource"]

#: The name that Spark looks for.
DefaultSource = PenstockSource
