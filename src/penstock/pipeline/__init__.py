"""The data pipeline: bulk operations on messages, on Spark.

``format`` exposes Penstock as Spark tables, ``lake`` is the permanent copy, ``report`` renders
reports, ``jobs`` are what users run. A laptop and a cluster differ only in the session's settings.
Its packages come with the extra ``spark``. Programs import ``exactly_once``, ``Flow`` and
``Table`` from here.
"""

from __future__ import annotations

from penstock.extras import require

require("spark", "pyspark", "pyarrow")

from penstock.pipeline.exactly_once import Table, exactly_once  # noqa: E402
from penstock.pipeline.flow import Flow  # noqa: E402

__all__ = ["Flow", "Table", "exactly_once"]
