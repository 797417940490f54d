"""The column types of payloads, and of what JSON Schema says of them.

A ``Shape`` is the type of one value: for Arrow, for the decoder, and how one becomes the other.
What has no simple type (alternatives of different types, recursion, tuples, anything) becomes its
JSON as text.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import GenericAlias
from typing import Annotated, Any, Final, TypeAlias, TypedDict

import msgspec
import pyarrow as pa
from msgspec import Struct

__all__ = ["MAX_DEPTH", "Shape", "array_of", "as_text", "json_shape", "map_of", "struct_of"]

#: Types nest so deep at most; below, values are text.
MAX_DEPTH: Final = 16
#: A schema has so many types at most, with its references unfolded.
_MAX_SHAPES: Final = 5_000
_TIME: Final = pa.timestamp("us", tz="UTC")
_INT64: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_ALTERNATIVES: Final = ("anyOf", "oneOf")
_COMBINED: Final = (*_ALTERNATIVES, "allOf", "$ref")
#: Called with fields that are known only when a schema is read.
_typed_dict: Any = TypedDict
_Part: TypeAlias = dict[str, Any]
#: Spark refuses these in the name of a column.
_REFUSED: Final = re.compile(r"[ ,;{}()\n\t=.`\"\\]")


class Shape(Struct, frozen=True):
    """The type of one value."""

    arrow: pa.DataType
    python: Any = object
    """The type that msgspec decodes; not used for Avro."""
    convert: Callable[[Any], Any] | None = None
    """What makes a value for Arrow of a decoded one that is not None; None: it is one already."""


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _or_none(shape: Shape) -> Any:
    return shape.python | None


def as_text() -> Shape:
    """Any value, as JSON."""
    return Shape(pa.string(), Any, _text)


def array_of(item: Shape) -> Shape:
    """A list of values."""
    convert = item.convert

    def converted(values: Sequence[Any]) -> list[Any]:
        assert convert is not None, "it is only called then"
        return [None if value is None else convert(value) for value in values]

    python = GenericAlias(list, (_or_none(item),))
    return Shape(pa.list_(item.arrow), python, None if convert is None else converted)


def map_of(item: Shape) -> Shape:
    """Values by name."""
    convert = item.convert or (lambda value: value)

    def converted(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [(name, None if value is None else convert(value)) for name, value in values.items()]

    python = GenericAlias(dict, (str, _or_none(item)))
    return Shape(pa.map_(pa.string(), item.arrow), python, converted)


def struct_of(fields: Mapping[str, Shape], reserved: Iterable[str] = ()) -> Shape:
    """An object with these fields; others are left out. Readers ignore the case of names."""
    names = _column_names(fields, reserved)
    plain = all(name == names[name] and of.convert is None for name, of in fields.items())
    parts = [(name, names[name], of.convert) for name, of in fields.items()]

    def converted(value: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, column, convert in parts:
            item = value.get(name)
            found[column] = item if item is None or convert is None else convert(item)
        return found

    types = {name: _or_none(of) for name, of in fields.items()}
    decoded = _typed_dict("Fields", types, total=False)
    arrow = pa.struct([(names[name], of.arrow) for name, of in fields.items()])
    return Shape(arrow, decoded, None if plain else converted)


def _column_names(fields: Iterable[str], reserved: Iterable[str]) -> dict[str, str]:
    """A column for each field, different from all others in any case."""
    taken = {name.lower() for name in reserved}
    found: dict[str, str] = {}
    for field in fields:
        name = _REFUSED.sub("_", field) or "_"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        found[field] = name
    return found


# -- JSON Schema -----------------------------------------------------------------------


def json_shape(schema: str, reserved: Iterable[str] = ()) -> Shape:
    """The shape of payloads that a JSON Schema describes."""
    return _JsonSchema(msgspec.json.decode(schema), frozenset(reserved)).shape()


class _JsonSchema:
    """One schema. ``within`` are the references that led to a place: one of them is recursion."""

    def __init__(self, root: Any, reserved: frozenset[str]) -> None:
        self._root = root
        self._reserved = reserved
        self._shapes = 0

    def shape(self) -> Shape:
        return self._of([self._root], frozenset(), 0)

    def _of(self, schemas: Sequence[Any], within: frozenset[str], depth: int) -> Shape:
        """The shape of a value for which all of these schemas hold."""
        self._shapes += 1
        parts: list[_Part] = []
        if self._shapes > _MAX_SHAPES or depth > MAX_DEPTH:
            return as_text()
        seen = self._collect(schemas, within, parts)
        if seen is None:
            return as_text()
        alternatives = [part[key] for part in parts for key in _ALTERNATIVES if key in part]
        if not alternatives:
            return self._of_parts(parts, seen, depth)
        return self._of_alternatives(parts, alternatives, seen, depth)

    def _collect(
        self, schemas: Sequence[Any], within: frozenset[str], parts: list[_Part]
    ) -> frozenset[str] | None:
        """Add these schemas, and those that they refer to or combine, to ``parts``.

        Returns all references that lead here; None if one leads in a circle or out of the schema.
        """
        seen: frozenset[str] | None = within
        for schema in schemas:
            if seen is None or not isinstance(schema, dict):
                continue
            parts.append(schema)
            more = list(schema.get("allOf", ()))
            reference = schema.get("$ref")
            if isinstance(reference, str):
                target = None if reference in seen else self._resolve(reference)
                if target is None:
                    return None
                seen |= {reference}
                more.append(target)
            seen = self._collect(more, seen, parts)
        return seen

    def _resolve(self, reference: str) -> Any:
        """What a reference within the schema leads to; None if it leads out of it."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        found = self._root
        for step in reference[2:].split("/") if len(reference) > 1 else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                return None
            found = found[name]
        return found

    def _of_alternatives(
        self, parts: list[_Part], alternatives: list[Any], within: frozenset[str], depth: int
    ) -> Shape:
        """The one type of all alternatives, if there is one."""
        if len(alternatives) > 1 or not isinstance(alternatives[0], list):
            return as_text()
        common = [
            {name: value for name, value in part.items() if name not in _COMBINED} for part in parts
        ]
        chosen = [one for one in alternatives[0] if not _is_null(one)]
        fields = self._fields_of_all(common, chosen, within) if len(chosen) > 1 else None
        if fields is not None:
            return self._of_parts([*common, {"properties": fields}], within, depth)
        shapes = [self._of([*common, one], within, depth) for one in chosen]
        types = {shape.arrow for shape in shapes}
        if types == {pa.int64(), pa.float64()}:
            return next(shape for shape in shapes if shape.arrow == pa.float64())
        return shapes[0] if len(types) == 1 else as_text()

    def _fields_of_all(
        self, common: list[_Part], chosen: list[Any], within: frozenset[str]
    ) -> _Part | None:
        """The fields of all alternatives, if each is an object with fields."""
        merged: dict[str, list[Any]] = {}
        for one in chosen:
            parts: list[_Part] = []
            if self._collect([one], within, parts) is None or not _properties(parts):
                return None
            if _kind([*common, *parts]) != "object":
                return None
            for name, value in _properties(parts).items():
                merged.setdefault(name, []).append(value)
        return {
            name: values[0] if len(values) == 1 else {"anyOf": values}
            for name, values in merged.items()
        }

    def _of_parts(self, parts: list[_Part], within: frozenset[str], depth: int) -> Shape:
        match _kind(parts):
            case "boolean":
                return Shape(pa.bool_(), bool)
            case "integer":
                return Shape(pa.int64(), _INT64)
            case "number":
                return Shape(pa.float64(), float)
            case "string":
                return _of_string(parts)
            case "array":
                items = [part["items"] for part in parts if isinstance(part.get("items"), dict)]
                if not items or any("prefixItems" in part for part in parts):
                    return as_text()
                return array_of(self._of(items, within, depth + 1))
            case "object":
                return self._of_object(parts, within, depth)
            case _:
                return as_text()

    def _of_object(self, parts: list[_Part], within: frozenset[str], depth: int) -> Shape:
        properties = _properties(parts)
        if properties:
            fields = {name: self._of([of], within, depth + 1) for name, of in properties.items()}
            return struct_of(fields, () if depth else self._reserved)
        values = [
            part["additionalProperties"]
            for part in parts
            if isinstance(part.get("additionalProperties"), dict)
        ]
        # Columns have to be known: at the top an object needs properties.
        if not depth or not values or any("patternProperties" in part for part in parts):
            return as_text()
        return map_of(self._of(values, within, depth + 1))


def _properties(parts: list[_Part]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        named = part.get("properties")
        if isinstance(named, dict):
            for name, of in named.items():
                found.setdefault(name, of)
    return found


def _kind(parts: list[_Part]) -> str | None:
    """The one type of JSON that a value may have, besides null."""
    for part in parts:
        given = part.get("type")
        if given is None and isinstance(part.get("enum"), list):
            given = [_type_of(value) for value in part["enum"]]
        if given is None and "const" in part:
            given = _type_of(part["const"])
        if given is None:
            continue
        kinds = {given} if isinstance(given, str) else set(given)
        kinds.discard("null")
        if kinds == {"integer", "number"}:
            return "number"
        return kinds.pop() if len(kinds) == 1 else None
    return "object" if _properties(parts) else None


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if value is None else names.get(type(value), "object")


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and (
        schema.get("type") == "null" or ("const" in schema and schema["const"] is None)
    )


def _of_string(parts: list[_Part]) -> Shape:
    formats = {part["format"] for part in parts if isinstance(part.get("format"), str)}
    if formats == {"date-time"}:
        return Shape(_TIME, dt.datetime)
    if formats == {"date"}:
        return Shape(pa.date32(), dt.date)
    return Shape(pa.string(), str)
