"""Bulk transfer in Arrow record batches: publishing, and reading the log, histories, deliveries.

Columns have the names and types of ``penstock.filters.to_arrow``; the others are those of the
log. pyarrow comes with the extra ``arrow``, so this package is imported only when a caller sends
or requests Arrow.
"""

from __future__ import annotations

from penstock.wire.arrow.messages import declared_size, open_messages, read_messages
from penstock.wire.arrow.stream import COMPRESSIONS, StreamWriter
from penstock.wire.arrow.tables import (
    DELIVERY_SCHEMA,
    HISTORY_SCHEMA,
    LOG_SCHEMA,
    delivery_batch,
    history_batch,
    joined,
    log_batch,
    with_payloads,
)

__all__ = [
    "COMPRESSIONS",
    "DELIVERY_SCHEMA",
    "HISTORY_SCHEMA",
    "LOG_SCHEMA",
    "StreamWriter",
    "declared_size",
    "delivery_batch",
    "history_batch",
    "joined",
    "log_batch",
    "open_messages",
    "read_messages",
    "with_payloads",
]
