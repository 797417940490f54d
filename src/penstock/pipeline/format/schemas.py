"""The schemas of the tables of ``format("penstock")``, and conversion of wire batches to them.

Spark accepts a batch only if its schema matches the table's exactly, so each table has one Arrow
schema, and Spark's is derived from it. Batches are cast column by column: no value passes through
Python, and a column that has the right type already is not copied.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import BadInput
from penstock.filters.to_arrow import HEADERS_TYPE
from penstock.pipeline.format.options import SourceOptions

__all__ = ["HISTORY_SCHEMA", "check_schema", "spark_schema", "table_schema", "to_table"]

_TIME: Final = pa.timestamp("us", tz="UTC")
#: The type of times on the wire.
_WIRE_TIME: Final = pa.timestamp("ms", tz="UTC")

_VALUE: Final = ("value", pa.binary())
_METADATA: Final = (
    ("headers", HEADERS_TYPE),
    ("timestamp", _TIME),
    ("partition_key", pa.string()),
    ("priority", pa.int32()),
    ("content_type", pa.string()),
    ("deliver_at", _TIME),
    ("expires_at", _TIME),
    ("size", pa.int64()),
    ("checksum", pa.int64()),
    ("max_attempts", pa.int32()),
)
_NAMES: Final = (
    ("offset", pa.int64()),
    ("id", pa.int64()),
    ("topic", pa.string()),
    ("key", pa.string()),
)
_STATE: Final = (
    ("state", pa.string()),
    ("attempts", pa.int32()),
    ("released", pa.int32()),
    ("at", _TIME),
    ("claimed_at", _TIME),
    ("lease_deadline", _TIME),
    ("consumer", pa.string()),
    ("error", pa.string()),
)
HISTORY_SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("queue", pa.string()),
        ("seq", pa.int32()),
        ("at", _TIME),
        ("transition", pa.string()),
        ("state", pa.string()),
        ("consumer", pa.string()),
        ("error", pa.string()),
    ]
)
#: Columns whose name on the wire differs.
_WIRE_NAMES: Final = {"timestamp": "published_at", "value": "payload"}
_HISTORY_NAMES: Final = {"id": "message_id"}


def table_schema(table: str, *, payload: bool) -> pa.Schema:
    """The columns of a table."""
    value = (_VALUE,) if payload else ()
    match table:
        case "log":
            return pa.schema([*_NAMES, *value, *_METADATA])
        case "history":
            return HISTORY_SCHEMA
        case _:
            return pa.schema([("queue", pa.string()), *_NAMES, *_METADATA, *_STATE, *value])


def spark_schema(schema: pa.Schema) -> StructType:
    """The same schema for Spark."""
    return from_arrow_schema(schema)


def check_schema(wanted: StructType, options: SourceOptions) -> pa.Schema:
    """The table's schema; raises ``BadInput`` if Spark expects another."""
    schema = table_schema(options.table, payload=options.payload)
    ours = [(field.name, field.dataType) for field in spark_schema(schema).fields]
    if [(field.name, field.dataType) for field in wanted.fields] != ours:
        raise BadInput(
            f"The table {options.table} has a fixed schema; leave schema() out.",
            field="schema",
        )
    return schema


def to_table(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a wire batch to exactly the columns of a table."""
    names = _HISTORY_NAMES if "transition" in schema.names else _WIRE_NAMES
    columns = [_column(batch, names.get(field.name, field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, name: str, type_: pa.DataType) -> pa.Array:
    if name == "max_attempts" and name not in batch.schema.names:
        # A server of an earlier version does not send it.
        return pa.nulls(batch.num_rows, type_)
    return _cast(batch.column(name), type_)


def _cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if column.type.equals(type_):
        return column
    if type_ == _TIME:
        # Integers are milliseconds; casting directly would read them as microseconds.
        return column.cast(_WIRE_TIME).cast(_TIME)
    return column.cast(type_)
