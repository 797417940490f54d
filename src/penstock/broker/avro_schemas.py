"""Avro payloads: exactly one datum in Avro's binary encoding.

fastavro parses the schema: names, namespaces, defaults. Penstock walks the payload itself
(``avro_walks``), because fastavro's reader does not survive hostile bytes: a deeply nested
datum ends the process, a block of 2^60 nulls fills the memory, and a negative index into a
union or enum, an int of 64 bits and a boolean of 7 are accepted.

Logical types are annotations and not checked. There is no container file and no registry
header: the topic has the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

from penstock.broker.avro_walks import (
    ENDS_EARLY,
    PRIMITIVES,
    Malformed,
    Walk,
    array,
    enum,
    fixed,
    malformed,
    mapping,
    record,
    union,
)
from penstock.broker.nesting import MAX_DEPTH, check_depth, pointer
from penstock.errors import BadSchema
from penstock.model.limits import shown

__all__ = ["AvroChecker"]


class AvroChecker:
    """One Avro schema, compiled."""

    def __init__(self, schema: str) -> None:
        self._walk = _Compiler().walk(_parsed(schema))

    def violation(self, payload: bytes) -> str | None:
        """Where the payload breaks the schema and how; None if it matches."""
        try:
            end = 0 if self._walk is None else self._walk(payload, 0, 0)
        except (Malformed, IndexError, UnicodeDecodeError) as error:
            found = malformed(error)
            return f"at {pointer(found.path[::-1])}: {found.what}"
        except RecursionError:
            return f"it is nested deeper than {MAX_DEPTH} levels"
        if end > len(payload):
            return ENDS_EARLY
        if end < len(payload):
            return f"{len(payload) - end} bytes are left after the datum"
        return None


def _parsed(schema: str) -> object:
    text = schema.encode()
    if not check_depth(text):
        raise BadSchema(f"The Avro schema is nested deeper than {MAX_DEPTH} levels.")
    try:
        return parse_schema(msgspec.json.decode(text), named_schemas={})
    except msgspec.DecodeError as error:
        raise BadSchema(f"The Avro schema is not JSON: {error}.") from error
    # fastavro raises many kinds of errors for a schema that is JSON but not Avro.
    except (
        SchemaParseException,
        UnknownType,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        what = f"{type(error).__name__}: {error}"
        raise BadSchema(f"The Avro schema does not parse: {shown(what)}.") from error


class _Named:
    """A record, enum or fixed; a record may refer to itself before it is compiled."""

    __slots__ = ("done", "walk")

    def __init__(self) -> None:
        self.done = False
        self.walk: Walk | None = None

    def later(self, data: bytes, at: int, depth: int) -> int:
        # A record that contains itself takes bytes: without any, no datum of it would end.
        assert self.walk is not None
        return self.walk(data, at, depth)


class _Compiler:
    """Compiles each type of one schema to a walk; None is a type that takes no bytes."""

    def __init__(self) -> None:
        self._names: dict[str, _Named] = {}

    def walk(self, schema: object) -> Walk | None:
        if isinstance(schema, str):
            return self._by_name(schema)
        if isinstance(schema, list):
            if any(isinstance(branch, list) for branch in schema):
                raise BadSchema("An Avro union has a union as a branch.")
            return union([self.walk(branch) for branch in schema])
        if not isinstance(schema, dict):
            raise BadSchema(f"{shown(schema)} is not an Avro type.")
        kind = schema["type"]
        if kind == "array":
            return array(self.walk(schema["items"]))
        if kind == "map":
            return mapping(self.walk(schema["values"]))
        if kind == "enum":
            return self._named(schema, enum(len(schema["symbols"])))
        if kind == "fixed":
            size = schema["size"]
            if type(size) is not int or size < 0:
                raise BadSchema(f"The size of fixed {shown(schema['name'])} is {shown(size)}.")
            return self._named(schema, fixed(size) if size else None)
        if kind in ("record", "error"):
            return self._record(schema)
        # A primitive with attributes, such as a logical type, or a type in brackets.
        return self.walk(kind)

    def _by_name(self, name: str) -> Walk | None:
        if name in PRIMITIVES:
            return PRIMITIVES[name]
        named = self._names.get(name)
        if named is None:
            raise BadSchema(f"{shown(name)} is not an Avro type.")
        return named.walk if named.done else named.later

    def _named(self, schema: Mapping[str, Any], walk: Walk | None) -> Walk | None:
        named = self._names.setdefault(str(schema["name"]), _Named())
        named.walk, named.done = walk, True
        return walk

    def _record(self, schema: Mapping[str, Any]) -> Walk | None:
        self._names[str(schema["name"])] = _Named()
        fields: list[tuple[str, Walk]] = []
        for field in schema["fields"]:
            walk = self.walk(field["type"])
            if walk is not None:
                fields.append((field["name"], walk))
        return self._named(schema, record(fields) if fields else None)
