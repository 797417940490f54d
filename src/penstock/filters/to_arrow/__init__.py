"""Evaluates filters over record batches: many messages, many filters, no Python loop (R1).

``batch_of`` converts messages to columns, ``Columns`` extracts each header that filters name
once, and ``to_arrow`` returns the three-valued verdict of every row. The result is the same as
the Python predicate's for each message; only TRUE routes. pyarrow comes with the extra
``arrow``; of the filters, only this package imports it.
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
