"""The schemas of the tables of ``format("penstock")``, and conversion of wire batches to them.

Spark accepts a batch only if its schema matches the table's exactly, so each table has one Arrow
schema, and Spark's is derived from it. Batches are cast column by column: no value passes through
Python, and a column that has the right type already is not copied.

The columns have the names of Spark's Kafka source. Its ``key`` decides about partitions and order
and replaces nothing, so it is the partition key here, and the key that replaces a waiting message
is ``replace_key``. Everywhere else (filters, the lake, HTTP) the replacing key is ``key``.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import BadInput
from penstock.filters.to_arrow import HEADERS_TYPE
from penstock.pipeline.format.kafka_shapes import KAFKA_HEADERS, to_bytes, to_header_lists
from penstock.pipeline.format.read_options import SourceOptions

__all__ = [
    "HISTORY_SCHEMA",
    "MESSAGE_FIELDS",
    "check_schema",
    "read_schema",
    "spark_schema",
    "stored_log_schema",
    "table_schema",
    "to_table",
]

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
_REPLACE_KEY: Final = ("replace_key", pa.string())
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
#: Columns whose name differs from that of the message's field, on the wire and in filters.
MESSAGE_FIELDS: Final = {
    "timestamp": "published_at",
    "value": "payload",
    "key": "partition_key",
    "replace_key": "key",
}
_HISTORY_NAMES: Final = {"id": "message_id"}


def table_schema(table: str, *, payload: bool) -> pa.Schema:
    """The columns of a table."""
    value = (_VALUE,) if payload else ()
    match table:
        case "log":
            return pa.schema([*_NAMES, *value, *_METADATA, _REPLACE_KEY])
        case "history":
            return HISTORY_SCHEMA
        case _:
            return pa.schema(
                [("queue", pa.string()), *_NAMES, *_METADATA, *_STATE, *value, _REPLACE_KEY]
            )


def stored_log_schema() -> pa.Schema:
    """The columns of an entry in the lake, where ``key`` is the key that replaces."""
    return pa.schema([*_NAMES, _VALUE, *_METADATA])


def spark_schema(schema: pa.Schema) -> StructType:
    """The same schema for Spark."""
    return from_arrow_schema(schema)


def read_schema(options: SourceOptions) -> pa.Schema:
    """The columns of a read: those of the table, in the shapes that the options ask for."""
    schema = table_schema(options.table, payload=options.payload)
    if options.binary_keys:
        schema = _with_type(schema, "key", pa.binary())
    if options.kafka_headers is False:
        return schema.remove(schema.get_field_index("headers"))
    return _with_type(schema, "headers", KAFKA_HEADERS) if options.kafka_headers else schema


def _with_type(schema: pa.Schema, name: str, type_: pa.DataType) -> pa.Schema:
    return schema.set(schema.get_field_index(name), pa.field(name, type_))


def check_schema(wanted: StructType, options: SourceOptions) -> pa.Schema:
    """The columns of a read; raises ``BadInput`` if Spark expects others."""
    schema = read_schema(options)
    ours = [(field.name, field.dataType) for field in spark_schema(schema).fields]
    if [(field.name, field.dataType) for field in wanted.fields] != ours:
        raise BadInput(
            f"The table {options.table} has a fixed schema; leave schema() out.",
            field="schema",
        )
    return schema


def to_table(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a wire batch to exactly the columns of a table."""
    names = _HISTORY_NAMES if "transition" in schema.names else MESSAGE_FIELDS
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
    if type_.equals(KAFKA_HEADERS):
        return to_header_lists(column)
    if pa.types.is_binary(type_) and pa.types.is_string(column.type):
        return to_bytes(column)
    if type_ == _TIME:
        # Integers are milliseconds; casting directly would read them as microseconds.
        return column.cast(_WIRE_TIME).cast(_TIME)
    return column.cast(type_)
