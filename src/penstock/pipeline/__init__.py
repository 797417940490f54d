"""The data pipeline: bulk operations on messages, on Spark.

``format`` exposes Penstock as Spark tables, ``lake`` is the permanent copy, ``report`` renders
reports, ``jobs`` are what users run. A laptop and a cluster differ only in the session's settings.
Its packages come with the extra ``spark``. A Spark program uses ``register``, ``create_tables``,
``exactly_once``, ``Flow`` and ``Table`` of this package, ``lag_of`` for a query's progress, and
``trace_queries`` for spans of its micro-batches.
"""

from __future__ import annotations

from penstock.extras import require

require("spark", "pyspark", "pyarrow")

# After the check that the packages are there.
from penstock.pipeline.exactly_once import Table, exactly_once  # noqa: E402
from penstock.pipeline.flow import Flow  # noqa: E402
from penstock.pipeline.format.lag import Lag, lag_of  # noqa: E402
from penstock.pipeline.session import spark_session  # noqa: E402
from penstock.pipeline.spans import trace_queries  # noqa: E402
from penstock.pipeline.tables_in_sql import create_tables, register  # noqa: E402

__all__ = [
    "Flow",
    "Lag",
    "Table",
    "create_tables",
    "exactly_once",
    "lag_of",
    "register",
    "spark_session",
    "trace_queries",
]
