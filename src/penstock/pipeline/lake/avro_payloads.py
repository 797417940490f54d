"""The column types of an Avro schema, and its payloads as values for Arrow.

Payloads are checked as at their publish before fastavro reads them, because it does not survive
hostile bytes, and entries from before the schema were never checked.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from fastavro import parse_schema, schemaless_reader

from penstock.broker.avro_schemas import AvroChecker
from penstock.pipeline.lake.payload_types import (
    MAX_DEPTH,
    Shape,
    array_of,
    as_text,
    map_of,
    struct_of,
)

__all__ = ["avro_decoder", "avro_shape"]

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_TIME: Final = pa.timestamp("us", tz="UTC")
#: Unions of these have the last one's type.
_WIDER: Final = ("int", "long", "float", "double")
_MAX_DECIMAL: Final = 38


def avro_decoder(schema: str) -> Callable[[bytes], Any]:
    """What makes a value of a payload; raises ``ValueError`` if it does not match."""
    checker, parsed = AvroChecker(schema), _parsed(schema)

    def decode(payload: bytes) -> Any:
        violation = checker.violation(payload)
        if violation is not None:
            raise ValueError(violation)
        return schemaless_reader(io.BytesIO(payload), parsed, None)

    return decode


def avro_shape(schema: str, reserved: Iterable[str] = ()) -> Shape:
    """The shape of payloads that an Avro schema describes."""
    named: dict[str, Any] = {}
    return _shape(_parsed(schema), named, 0, tuple(reserved))


def _parsed(schema: str) -> Any:
    return parse_schema(msgspec.json.decode(schema), named_schemas={})


def _shape(schema: Any, named: dict[str, Any], depth: int, reserved: Iterable[str] = ()) -> Shape:
    if depth > MAX_DEPTH:
        return as_text()
    if isinstance(schema, list):
        return _of_union(schema, named, depth, reserved)
    if isinstance(schema, str):
        return _of_name(schema, named, depth)
    kind = schema["type"]
    if isinstance(kind, (list, dict)):
        return _shape(kind, named, depth, reserved)
    if kind in ("record", "error"):
        named[schema["name"]] = None  # A record within itself becomes text.
        fields = {
            field["name"]: _shape(field["type"], named, depth + 1) for field in schema["fields"]
        }
        named[schema["name"]] = schema
        return struct_of(fields, reserved) if fields else as_text()
    if kind in ("enum", "fixed"):
        named[schema["name"]] = schema
    if "logicalType" in schema:
        logical = _of_logical(schema)
        if logical is not None:
            return logical
    if kind == "array":
        return array_of(_shape(schema["items"], named, depth + 1))
    if kind == "map":
        return map_of(_shape(schema["values"], named, depth + 1))
    return _of_name(kind, named, depth)


def _of_name(name: str, named: Mapping[str, Any], depth: int) -> Shape:
    if name in _PRIMITIVES:
        return Shape(_PRIMITIVES[name])
    schema = named.get(name)
    return as_text() if schema is None else _shape(schema, dict(named), depth)


def _of_union(
    schemas: list[Any], named: dict[str, Any], depth: int, reserved: Iterable[str]
) -> Shape:
    chosen = [one for one in schemas if one != "null"]
    if len(chosen) == 1:
        return _shape(chosen[0], named, depth, reserved)
    shapes = [_shape(one, named, depth) for one in chosen]
    if chosen and all(one in _WIDER for one in chosen):
        widest = max(chosen, key=_WIDER.index)
        return Shape(_PRIMITIVES["double" if widest == "float" else widest])
    types = {shape.arrow for shape in shapes}
    alike = len(types) == 1 and all(shape.convert is None for shape in shapes)
    return shapes[0] if alike else as_text()


def _of_logical(schema: Mapping[str, Any]) -> Shape | None:
    """The shape of a logical type that fastavro decodes; None: it is like its plain type."""
    match schema["type"], schema["logicalType"]:
        case "int", "date":
            return Shape(pa.date32())
        case "long", (
            "timestamp-millis"
            | "timestamp-micros"
            | "local-timestamp-millis"
            | "local-timestamp-micros"
        ):
            return Shape(_TIME)
        case ("int", "time-millis") | ("long", "time-micros"):
            return Shape(pa.string(), convert=lambda value: str(value.isoformat()))
        case "string", "uuid":
            return Shape(pa.string(), convert=str)
        case (("bytes" | "fixed"), "decimal"):
            precision, scale = schema.get("precision", 0), schema.get("scale", 0)
            if 0 < precision <= _MAX_DECIMAL:
                return Shape(pa.decimal128(precision, scale))
            return Shape(pa.string(), convert=str)
        case _:
            return None
