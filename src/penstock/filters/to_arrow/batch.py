"""Message metadata as Arrow columns, and the typed columns that filters read.

Headers are a map from name to value. A value is a struct with one field per type, and only the
field of its own type is set. Parquet and Spark store that unchanged, and one schema fits any
number of header names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters.tree import FIELD_NAMES, TEXT_FIELDS, Field, FieldName, Header
from penstock.model.message import HeaderValue, Message

__all__ = [
    "HEADERS_TYPE",
    "METADATA_SCHEMA",
    "PARTS",
    "Columns",
    "Typed",
    "batch_of",
    "flat_name",
    "headers_of",
    "no_headers",
]

_VALUE_TYPE: Final = pa.struct(
    [("s", pa.string()), ("i", pa.int64()), ("d", pa.float64()), ("b", pa.bool_())]
)
#: The fields of a header's value, one per type.
PARTS: Final = "sidb"
#: ``map<string, struct<s: string, i: int64, d: double, b: bool>>``.
HEADERS_TYPE: Final = pa.map_(pa.string(), _VALUE_TYPE)

_FIELDS: Final = tuple(FIELD_NAMES.values())
METADATA_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string() if name in TEXT_FIELDS else pa.int64()) for name in _FIELDS),
        ("headers", HEADERS_TYPE),
    ]
)
_NOTHING: Final = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in METADATA_SCHEMA], schema=METADATA_SCHEMA
)


class Typed(NamedTuple):
    """A value of any type: at most one of the four is set in a row.

    ``None`` instead of an array means that no row has the type. A constant is a scalar.
    """

    text: pa.Array | None = None
    integer: pa.Array | None = None
    real: pa.Array | None = None
    truth: pa.Array | None = None

    def map(self, change: Callable[[pa.Array], pa.Array]) -> Typed:
        """Apply ``change`` to every part that is not None."""
        return Typed(*(None if part is None else change(part) for part in self))


def batch_of(messages: Iterable[Message]) -> pa.RecordBatch:
    """Return ``messages`` as a batch of :data:`METADATA_SCHEMA`, one row each, in order."""
    rows = list(messages)
    columns = [
        pa.array([getattr(row, name) for row in rows], METADATA_SCHEMA.field(name).type)
        for name in _FIELDS
    ]
    columns.append(headers_of([row.headers for row in rows]))
    return pa.RecordBatch.from_arrays(columns, schema=METADATA_SCHEMA)


def headers_of(rows: Sequence[dict[str, HeaderValue]]) -> pa.MapArray:
    """Headers as a column of :data:`HEADERS_TYPE`."""
    if not any(rows):
        return no_headers(len(rows))
    values = [value for row in rows for value in row.values()]
    kinds = set(map(type, values))
    typed = [
        pa.array([value if type(value) is kind else None for value in values], type_)
        if kind in kinds
        else pa.nulls(len(values), type_)
        for kind, type_ in (
            (str, pa.string()),
            (int, pa.int64()),
            (float, pa.float64()),
            (bool, pa.bool_()),
        )
    ]
    return pa.MapArray.from_arrays(
        pa.array([0, *accumulate(map(len, rows))], pa.int32()),
        pa.array([name for row in rows for name in row], pa.string()),
        pa.StructArray.from_arrays(typed, fields=list(_VALUE_TYPE)),
    )


def no_headers(count: int) -> pa.MapArray:
    """A column of :data:`HEADERS_TYPE` in which no row has a header."""
    zeros = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), count + 1, [None, zeros]),
        pa.nulls(0, pa.string()),
        pa.nulls(0, _VALUE_TYPE),
    )


class Columns:
    """The columns of one batch as filters read them; a header is extracted once, on demand.

    The batch needs the columns of :data:`METADATA_SCHEMA`; it may have others. In a batch of
    the pipeline's ``log`` table the column ``timestamp`` is ``published_at``.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._known: dict[Field | Header, Typed] = {}
        self._length = int(batch.num_rows)

    @classmethod
    def holding(cls, values: dict[Field | Header, Typed], length: int) -> Columns:
        """Existing columns, for filters that read no others."""
        columns = cls(_NOTHING)
        columns._known = values
        columns._length = length
        return columns

    def __len__(self) -> int:
        return self._length

    def field(self, name: FieldName) -> Typed:
        """Return the system field ``name``."""
        source = Field(name)
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = self._read(name)
        return found

    def header(self, name: str) -> Typed:
        """Return the header ``name``, NULL where absent, with NaN as NULL."""
        source = Header(name)
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = self._extract(name)
        return found

    def _read(self, name: FieldName) -> Typed:
        if name in TEXT_FIELDS:
            return Typed(text=self._batch.column(name))
        if name == "published_at" and name not in self._batch.schema.names:
            return Typed(integer=_milliseconds(self._batch.column("timestamp")))
        return Typed(integer=pc.cast(self._batch.column(name), pa.int64()))

    def _extract(self, name: str) -> Typed:
        values = pc.map_lookup(self._batch.column("headers"), pa.scalar(name), "first")
        return typed(Typed(*(pc.struct_field(values, part) for part in PARTS)))


def flat_name(number: int, part: str) -> str:
    """The column of one type of a header, by the header's number.

    Not by its name: Spark's columns may not differ only in case.
    """
    return f"h{number}{part}"


def typed(value: Typed) -> Typed:
    """The parts of header values, with NaN as NULL, without parts that no row has."""
    if value.real is not None:
        real = pc.if_else(pc.is_nan(value.real), pa.scalar(None, pa.float64()), value.real)
        value = value._replace(real=real)
    return Typed(*map(_present, value))


def _milliseconds(column: pa.Array) -> pa.Array:
    """Epoch milliseconds, rounded down, as Spark's ``unix_millis`` does before 1970 too."""
    micros = pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz)), pa.int64())
    millis = pc.divide(micros, 1000)
    return pc.subtract(millis, pc.cast(pc.greater(pc.multiply(millis, 1000), micros), pa.int64()))


def _present(column: pa.Array | None) -> pa.Array | None:
    return None if column is None or column.null_count == len(column) else column
