"""The columns of the tables of a lake, and those whose values are in the path."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.pipeline.format.schemas import spark_schema, stored_log_schema, table_schema
from penstock.pipeline.lake.commits import Table

__all__ = ["ARROW_SCHEMAS", "PARTITIONS", "PARTITIONS_BY_TOPIC", "SCHEMAS"]

_DATE: Final = pa.field("date", pa.date32())
#: The partition columns of a new lake. Topics share files, because there may be hundreds.
PARTITIONS: Final[dict[Table, tuple[str, ...]]] = {"messages": ("date",), "history": ("date",)}
#: Those of a lake that an earlier version began.
PARTITIONS_BY_TOPIC: Final[dict[Table, tuple[str, ...]]] = {
    "messages": ("date", "topic"),
    "history": ("date",),
}
_LOG: Final = stored_log_schema()
#: The columns of each table.
ARROW_SCHEMAS: Final[dict[Table, pa.Schema]] = {
    "messages": pa.schema(
        [*(field for field in _LOG if field.name != "topic"), _DATE, _LOG.field("topic")]
    ),
    "history": pa.schema([*table_schema("history", payload=False), _DATE]),
}
SCHEMAS: Final[dict[Table, StructType]] = {
    table: spark_schema(schema) for table, schema in ARROW_SCHEMAS.items()
}
