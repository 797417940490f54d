"""Keys and headers in the shapes of Spark's Kafka source: binary keys, lists of binary headers.

Penstock's keys are text, and so are header values that come from Kafka. Bytes that are UTF-8
become that text. Other bytes become a data URI, ``data:;base64,…``, which is decoded when binary
keys or headers are read: bytes that the sink takes are the bytes that the source gives back.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadInput
from penstock.filters.to_arrow.batch import PARTS
from penstock.model.message import NO_HEADERS, HeaderValue

__all__ = [
    "KAFKA_HEADERS",
    "header_rows",
    "is_kafka_shaped",
    "to_bytes",
    "to_header_lists",
    "to_texts",
]

#: ``headers`` of Spark's Kafka source.
KAFKA_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_URI: Final = "data:;base64,"
_URI_BYTES: Final = _URI.encode()


def to_texts(column: pa.Array) -> pa.Array:
    """Keys as text, from text or binary."""
    if pa.types.is_string(column.type):
        return column
    data = column.cast(pa.binary())
    if not _any(pc.starts_with(data, _URI_BYTES)):
        try:
            return data.cast(pa.string())
        except pa.ArrowInvalid:
            pass  # Some are not UTF-8.
    return pa.array(_each(data.to_pylist(), _text), pa.string())


def to_bytes(column: pa.Array) -> pa.Array:
    """Keys as binary: the reverse of ``to_texts``."""
    if not _any(pc.starts_with(column, _URI)):
        return column.cast(pa.binary())
    return pa.array(_each(column.to_pylist(), _bytes), pa.binary())


def is_kafka_shaped(type_: pa.DataType) -> bool:
    """Whether headers of this type are a list of names and binary values."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def header_rows(column: pa.Array) -> list[dict[str, HeaderValue]]:
    """Headers from lists of names and values; a null value is left out, as in a map."""
    items = column.values
    names, values = items.field("key").to_pylist(), to_texts(items.field("value")).to_pylist()
    bounds = pairwise(column.offsets.to_pylist())
    there = column.is_valid().to_pylist()
    return [
        _row(names[start:end], values[start:end]) if is_there else NO_HEADERS
        for (start, end), is_there in zip(bounds, there, strict=True)
    ]


def _row(names: Sequence[str], values: Sequence[str | None]) -> dict[str, HeaderValue]:
    found: dict[str, HeaderValue] = {
        name: value for name, value in zip(names, values, strict=True) if value is not None
    }
    if len(found) < len(names) and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(
            f"The header {twice!r} occurs twice in a row, and a message has it once. Keep one, for "
            "example with map_from_entries and spark.sql.mapKeyDedupPolicy=LAST_WIN.",
            field="headers",
        )
    return found


def to_header_lists(headers: pa.MapArray) -> pa.Array:
    """Headers as lists of names and values; numbers and booleans as text."""
    texts: list[pa.Array] = [_as_text(headers.items.field(PARTS.index(part))) for part in PARTS]
    values = to_bytes(pc.coalesce(*texts))
    entries = pa.StructArray.from_arrays(
        [headers.keys, values], fields=list(KAFKA_HEADERS.value_type)
    )
    mask = headers.is_null() if headers.null_count else None
    return pa.ListArray.from_arrays(headers.offsets, entries, type=KAFKA_HEADERS, mask=mask)


def _as_text(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags).as_py())


def _each(values: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else change(value) for value in values]


def _text(data: bytes) -> str:
    if not data.startswith(_URI_BYTES):
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return _URI + b64encode(data).decode()


def _bytes(text: str) -> bytes:
    if text.startswith(_URI):
        try:
            return b64decode(text[len(_URI) :], validate=True)
        except binascii.Error:
            pass  # It was a text before, and no URI.
    return text.encode()
