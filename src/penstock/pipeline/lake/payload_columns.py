"""Payloads as typed columns, by the schema of their topic.

A payload that does not fit (it is from before the schema, or the schema allows what the type of a
column does not) has null in all columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadSchema
from penstock.pipeline.lake.payload_types import Shape, json_shape

__all__ = ["PAYLOAD", "PayloadColumns", "payload_columns"]

#: The column of payloads that are no objects.
PAYLOAD: Final = "payload"
_FIRST_US: Final = int(dt.datetime.min.replace(tzinfo=dt.UTC).timestamp()) * 1_000_000
_LAST_US: Final = int(dt.datetime.max.replace(tzinfo=dt.UTC, microsecond=0).timestamp()) * 1_000_000
#: What a decoder raises for a payload that does not fit. fastavro has no errors of its own here.
_UNFIT: Final = (
    ValueError,  # also those of msgspec, Arrow and Unicode
    TypeError,
    ArithmeticError,
    LookupError,
    EOFError,
    RecursionError,
    msgspec.MsgspecError,
    pa.ArrowException,
)


class PayloadColumns:
    """The columns of one schema. Those of different schemas may be compared by ``fields``."""

    def __init__(self, shape: Shape, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._convert = shape.convert
        self._is_object = pa.types.is_struct(shape.arrow)
        self._type = shape.arrow if self._is_object else pa.struct([(PAYLOAD, shape.arrow)])
        self.fields: tuple[pa.Field, ...] = tuple(self._type)

    def arrays(self, payloads: Sequence[bytes | None]) -> tuple[list[pa.Array], list[bool]]:
        """The columns, and which payloads fit."""
        rows = [self._row(payload) for payload in payloads]
        whole = self._array(rows)
        if whole is None:
            # A value that the schema allows is too large for its type, for example.
            rows = [None if self._array([row]) is None else row for row in rows]
            whole = pa.array(rows, self._type)
        return whole.flatten(), [row is not None for row in rows]

    def _array(self, rows: Sequence[dict[str, Any] | None]) -> pa.Array | None:
        """The rows, or None if one of them does not fit."""
        try:
            found = pa.array(rows, self._type)
        except _UNFIT:
            return None
        return found if _has_readable_times(found) else None

    def _row(self, payload: bytes | None) -> dict[str, Any] | None:
        if payload is None:
            return None
        try:
            value = self._decode(payload)
            if value is not None and self._convert is not None:
                value = self._convert(value)
        except _UNFIT:
            return None
        if self._is_object:
            return value if isinstance(value, dict) else None
        return {PAYLOAD: value}


def _has_readable_times(array: pa.Array) -> bool:
    """Whether all times are in the years 1 to 9999; Python reads no others."""
    if pa.types.is_timestamp(array.type):
        bounds = pc.min_max(array.cast(pa.int64())).as_py()
        low, high = bounds["min"], bounds["max"]
        return low is None or (low >= _FIRST_US and high <= _LAST_US)
    if pa.types.is_struct(array.type):
        return all(_has_readable_times(part) for part in array.flatten())
    if pa.types.is_map(array.type):
        return _has_readable_times(array.items)
    return not pa.types.is_list(array.type) or _has_readable_times(array.flatten())


def _json_decoder(python: Any) -> Callable[[bytes], Any]:
    decode = msgspec.json.Decoder(python).decode

    def decoded(payload: bytes) -> Any:
        try:
            return decode(payload)
        except msgspec.ValidationError:
            # To JSON Schema 1.0 is an integer.
            return msgspec.convert(_with_integers(msgspec.json.decode(payload)), python)

    return decoded


def _with_integers(value: Any) -> Any:
    """The value with integers in place of floats without a fraction."""
    match value:
        case float():
            return int(value) if value.is_integer() else value
        case list():
            return [_with_integers(item) for item in value]
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case _:
            return value


@lru_cache(maxsize=64)
def payload_columns(schema_type: str, schema: str, reserved: tuple[str, ...]) -> PayloadColumns:
    """The columns of a schema, none of them called as one in ``reserved``; raises ``BadSchema``."""
    try:
        if schema_type == "avro":
            from penstock.pipeline.lake.avro_payloads import (  # noqa: PLC0415  (an extra)
                avro_decoder,
                avro_shape,
            )

            return PayloadColumns(avro_shape(schema, reserved), avro_decoder(schema))
        shape = json_shape(schema, reserved)
        return PayloadColumns(shape, _json_decoder(shape.python | None))
    except ImportError as error:
        raise BadSchema(
            "Typed columns of Avro payloads need a library that is not installed: "
            "pip install 'penstock[schemas]'."
        ) from error
    except RecursionError as error:
        raise BadSchema("The schema is nested too deeply for typed columns.") from error
