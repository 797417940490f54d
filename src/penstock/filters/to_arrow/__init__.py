"""Evaluates filters over record batches: many messages, many filters, no Python loop (R1).

``batch_of`` lays messages out as columns, ``Columns`` takes the headers that filters name out
of the map once, and ``to_arrow`` gives the three-valued verdict of every row. The result is
the same as the Python predicate's for each message; TRUE alone routes. pyarrow comes with
the extra ``arrow`` and is imported nowhere else.
"""

from __future__ import annotations

from penstock.filters.to_arrow.batch import (
    HEADERS_TYPE,
    METADATA_SCHEMA,
    Columns,
    batch_of,
    headers_of,
    no_headers,
)
from penstock.filters.to_arrow.verdict import to_arrow

__all__ = [
    "HEADERS_TYPE",
    "METADATA_SCHEMA",
    "Columns",
    "batch_of",
    "headers_of",
    "no_headers",
    "to_arrow",
]
