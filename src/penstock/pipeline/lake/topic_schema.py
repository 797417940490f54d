"""The columns of a topic table: those of its message, and those of its payload.

The table has the columns of all schemas that its topic had, as long as they agree. A schema
that gives a column another type does not: the table is made anew then.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["MESSAGE_FIELDS", "RESERVED", "merged_fields"]

#: The columns that every topic table begins with. ``_unfit`` is the payload, if it does not fit.
MESSAGE_FIELDS: Final = (
    pa.field("_offset", pa.int64()),
    pa.field("_id", pa.int64()),
    pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("_key", pa.string()),
    pa.field("_partition_key", pa.string()),
    pa.field("_unfit", pa.binary()),
)
RESERVED: Final = tuple(field.name for field in MESSAGE_FIELDS)


def merged_fields(
    known: tuple[pa.Field, ...], wanted: tuple[pa.Field, ...]
) -> tuple[pa.Field, ...] | None:
    """The known fields and new ones after them; None if a field has another type."""
    by_name = {field.name.lower(): field for field in known}
    found = {field.name: field for field in known}
    for field in wanted:
        before = by_name.get(field.name.lower())
        if before is None:
            found[field.name] = field
            continue
        type_ = _merged_type(before.type, field.type)
        if type_ is None or before.name != field.name:
            return None
        found[field.name] = pa.field(field.name, type_)
    return tuple(found.values())


def _merged_type(known: pa.DataType, wanted: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(known) and pa.types.is_struct(wanted):
        fields = merged_fields(tuple(known), tuple(wanted))
        return None if fields is None else pa.struct(list(fields))
    if pa.types.is_list(known) and pa.types.is_list(wanted):
        item = _merged_type(known.value_type, wanted.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if pa.types.is_map(known) and pa.types.is_map(wanted):
        item = _merged_type(known.item_type, wanted.item_type)
        return None if item is None else pa.map_(pa.string(), item)
    return known if known.equals(wanted) else None
