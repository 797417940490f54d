"""Message metadata as Arrow columns, and the typed columns that filters read.

A header value is a struct with one field a type, of which exactly one is set, in a map from
header name to value. Parquet and Spark store that as it is, and any number of header names
fits one schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters.tree import FIELD_NAMES, TEXT_FIELDS, FieldName
from penstock.model.message import HeaderValue, Message

__all__ = ["HEADERS_TYPE", "METADATA_SCHEMA", "Columns", "Typed", "batch_of"]

_VALUE_TYPE: Final = pa.struct(
    [("s", pa.string()), ("i", pa.int64()), ("d", pa.float64()), ("b", pa.bool_())]
)
#: ``map<string, struct<s: string, i: int64, d: double, b: bool>>``.
HEADERS_TYPE: Final = pa.map_(pa.string(), _VALUE_TYPE)

_FIELDS: Final = tuple(FIELD_NAMES.values())
METADATA_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string() if name in TEXT_FIELDS else pa.int64()) for name in _FIELDS),
        ("headers", HEADERS_TYPE),
    ]
)


class Typed(NamedTuple):
    """A value of any type: at most one of the four is set in a row.

    ``None`` in place of an array says that no row has the type. A constant is a scalar.
    """

    text: pa.Array | None = None
    integer: pa.Array | None = None
    real: pa.Array | None = None
    truth: pa.Array | None = None


def batch_of(messages: Iterable[Message]) -> pa.RecordBatch:
    """Return ``messages`` as a batch of :data:`METADATA_SCHEMA`, one row each, in order."""
    rows = list(messages)
    columns = [
        pa.array([getattr(row, name) for row in rows], METADATA_SCHEMA.field(name).type)
        for name in _FIELDS
    ]
    columns.append(_headers([row.headers for row in rows]))
    return pa.RecordBatch.from_arrays(columns, schema=METADATA_SCHEMA)


def _headers(rows: Sequence[dict[str, HeaderValue]]) -> pa.MapArray:
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    values = [value for row in rows for value in row.values()]
    typed = [
        pa.array([value if type(value) is kind else None for value in values], type_)
        for kind, type_ in (
            (str, pa.string()),
            (int, pa.int64()),
            (float, pa.float64()),
            (bool, pa.bool_()),
        )
    ]
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array([name for row in rows for name in row], pa.string()),
        pa.StructArray.from_arrays(typed, fields=list(_VALUE_TYPE)),
    )


class Columns:
    """The columns of one batch as filters read them; a header is taken out once, when asked.

    The batch needs the columns of :data:`METADATA_SCHEMA`; it may have others.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._headers: dict[str, Typed] = {}

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def field(self, name: FieldName) -> Typed:
        """Return the system field ``name``."""
        column = self._batch.column(name)
        return Typed(text=column) if name in TEXT_FIELDS else Typed(integer=column)

    def header(self, name: str) -> Typed:
        """Return the header ``name``, NULL where absent, with NaN as NULL."""
        found = self._headers.get(name)
        if found is None:
            found = self._headers[name] = self._extract(name)
        return found

    def _extract(self, name: str) -> Typed:
        values = pc.map_lookup(self._batch.column("headers"), pa.scalar(name), "first")
        text, integer, real, truth = (pc.struct_field(values, part) for part in "sidb")
        number = pc.if_else(pc.is_nan(real), pa.scalar(None, pa.float64()), real)
        return Typed(*map(_present, (text, integer, number, truth)))


def _present(column: pa.Array) -> pa.Array | None:
    return None if column.null_count == len(column) else column
