"""The tables of bulk reads: the log, the transitions of messages, deliveries.

Batches are built from columns, never from rows: at a million entries per second there is no
time for one object per entry. Payloads become a column from their concatenated bytes and their
sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters import Filter
from penstock.filters.to_arrow import METADATA_SCHEMA, Columns, headers_of, no_headers, to_arrow
from penstock.model.columns import LogColumns
from penstock.model.delivery import Snapshot
from penstock.model.message import MessageId, Offset
from penstock.model.reports import HistoryEntry

__all__ = [
    "DELIVERY_SCHEMA",
    "HISTORY_SCHEMA",
    "LOG_SCHEMA",
    "delivery_batch",
    "history_batch",
    "joined",
    "log_batch",
    "with_payloads",
]

_PAYLOAD: Final = pa.field("payload", pa.binary())
_ZERO: Final = pa.array([0], pa.int32())
_METADATA: Final = (
    pa.field("offset", pa.int64()),
    pa.field("id", pa.int64()),
    pa.field("deliver_at", pa.int64()),
    pa.field("expires_at", pa.int64()),
    pa.field("checksum", pa.int64()),
    *METADATA_SCHEMA,
    pa.field("max_attempts", pa.int32()),
)
#: The log as a table; ``payload`` is null if it was not requested.
LOG_SCHEMA: Final = pa.schema([*_METADATA, _PAYLOAD])
#: One row per transition; ``seq`` numbers those of one message in one queue.
HISTORY_SCHEMA: Final = pa.schema(
    [
        ("message_id", pa.int64()),
        ("queue", pa.string()),
        ("seq", pa.int32()),
        ("at", pa.int64()),
        ("transition", pa.string()),
        ("state", pa.string()),
        ("consumer", pa.string()),
        ("error", pa.string()),
    ]
)
_DELIVERY: Final = (
    pa.field("state", pa.string()),
    pa.field("attempts", pa.int32()),
    pa.field("released", pa.int32()),
    pa.field("at", pa.int64()),
    pa.field("claimed_at", pa.int64()),
    pa.field("lease_deadline", pa.int64()),
    pa.field("consumer", pa.string()),
    pa.field("error", pa.string()),
)
#: Deliveries of a queue as a table: the metadata of the message, then its state.
DELIVERY_SCHEMA: Final = pa.schema([*_METADATA, *_DELIVERY, _PAYLOAD])


def log_batch(columns: LogColumns, where: Filter | None = None) -> pa.RecordBatch:
    """The entries that match ``where``, as :data:`LOG_SCHEMA` without payloads."""
    arrays = [*_metadata(columns), pa.nulls(len(columns), pa.binary())]
    batch = pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA)
    return batch if where is None else batch.filter(to_arrow(where.tree, Columns(batch)))


def with_payloads(batch: pa.RecordBatch, data: bytes) -> pa.RecordBatch:
    """The batch with its payloads, which are concatenated in ``data``."""
    ends = pc.cumulative_sum(batch.column("size")).cast(pa.int32())
    places = pa.concat_arrays([_ZERO, ends])
    buffers = [None, places.buffers()[1], pa.py_buffer(data)]
    payloads = pa.Array.from_buffers(pa.binary(), len(ends), buffers)
    return batch.set_column(batch.num_columns - 1, _PAYLOAD, payloads)


def history_batch(entries: Sequence[HistoryEntry]) -> pa.RecordBatch:
    """Transitions as :data:`HISTORY_SCHEMA`."""
    events = [entry.event for entry in entries]
    seen: defaultdict[tuple[MessageId, str], int] = defaultdict(int)
    numbers = []
    for entry in entries:
        place = (entry.message_id, entry.event.queue)
        numbers.append(seen[place])
        seen[place] += 1
    values = {
        "message_id": [entry.message_id for entry in entries],
        "seq": numbers,
        **{
            name: [getattr(event, name) for event in events]
            for name in ("queue", "at", "transition", "state", "consumer", "error")
        },
    }
    return pa.RecordBatch.from_pydict(values, schema=HISTORY_SCHEMA)


def delivery_batch(items: Sequence[Snapshot]) -> pa.RecordBatch:
    """Deliveries as :data:`DELIVERY_SCHEMA`, with payloads if they have them."""
    columns = LogColumns.of((item.message for item in items), Offset(0))
    arrays = _metadata(columns)
    arrays += [
        pa.array([getattr(item, field.name) for item in items], field.type)
        for field in (*_DELIVERY, _PAYLOAD)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=DELIVERY_SCHEMA)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows of batches of one schema, in order; there must be a batch."""
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def _metadata(columns: LogColumns) -> list[pa.Array]:
    count = len(columns)
    arrays = []
    for field in _METADATA:
        values: Sequence[Any] | None = getattr(columns, field.name)
        if field.name == "headers":
            arrays.append(no_headers(count) if values is None else headers_of(values))
        elif values is None:
            arrays.append(pa.nulls(count, field.type))
        else:
            arrays.append(_column(values, field.type))
    return arrays


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as an array; a buffer is not copied, and equal values are a repeated scalar."""
    if isinstance(values, memoryview):
        assert values.format == "q"
        return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
    if values and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)
