"""Avro payloads: one datum in Avro's binary encoding, and not a byte more.

fastavro reads the schema: names, namespaces, defaults. The payload is walked by the
functions that are made here for it, for what fastavro's reader does with hostile bytes: a
datum that nests deep ends the process, a block of 2^60 nulls fills the memory, and a
negative index into a union or enum, an int of 64 bits and a boolean of 7 are taken as
good. A walk builds no values. What takes no bytes is left out of it when the schema is
compiled, so that every step advances and a walk costs no more than the payload is long.

Logical types are annotations and not checked. There is no container file and no registry
header: the schema is the topic's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

from penstock.broker.nesting import MAX_DEPTH, check_depth, pointer
from penstock.errors import BadSchema
from penstock.model.limits import shown

__all__ = ["AvroChecker"]

#: Items without bytes, such as nulls, that one array may claim: its readers have to make them.
MAX_EMPTY_ITEMS: Final = 10_000
_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10

#: Walks one datum that begins at a position, at a depth; returns where it ends.
_Walk: TypeAlias = Callable[[bytes, int, int], int]
_ENDS_EARLY: Final = "the payload ends before the datum does"


class AvroChecker:
    """One Avro schema, compiled."""

    def __init__(self, schema: str) -> None:
        self._walk = _Compiler().walk(_parsed(schema))

    def violation(self, payload: bytes) -> str | None:
        """Where the payload breaks the schema and how; None if it matches."""
        try:
            end = 0 if self._walk is None else self._walk(payload, 0, 0)
        except (_Malformed, IndexError, UnicodeDecodeError) as error:
            malformed = _malformed(error)
            return f"at {pointer(malformed.path[::-1])}: {malformed.what}"
        except RecursionError:
            return f"it is nested deeper than {MAX_DEPTH} levels"
        if end > len(payload):
            return _ENDS_EARLY
        if end < len(payload):
            return f"{len(payload) - end} bytes are left after the datum"
        return None


class _Malformed(Exception):
    """The payload is not a datum of the schema; the path grows on the way up."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str | int] = []


def _malformed(error: _Malformed | IndexError | UnicodeDecodeError) -> _Malformed:
    if isinstance(error, _Malformed):
        return error
    ends_early = isinstance(error, IndexError)
    return _Malformed(_ENDS_EARLY if ends_early else "the text is not valid UTF-8")


def _inside(error: _Malformed | IndexError | UnicodeDecodeError, place: str | int) -> _Malformed:
    malformed = _malformed(error)
    malformed.path.append(place)
    return malformed


# -- the schema ------------------------------------------------------------------------


def _parsed(schema: str) -> object:
    text = schema.encode()
    if not check_depth(text):
        raise BadSchema(f"The Avro schema is nested deeper than {MAX_DEPTH} levels.")
    try:
        return parse_schema(msgspec.json.decode(text), named_schemas={})
    except msgspec.DecodeError as error:
        raise BadSchema(f"The Avro schema is not JSON: {error}.") from error
    # What fastavro raises for a schema that is JSON but not Avro is of many kinds.
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
        self.walk: _Walk | None = None

    def later(self, data: bytes, at: int, depth: int) -> int:
        # A record that is part of itself takes bytes: without any, no datum of it would end.
        assert self.walk is not None
        return self.walk(data, at, depth)


class _Compiler:
    """Makes the walk of each type of one schema; None is a type that takes no bytes."""

    def __init__(self) -> None:
        self._names: dict[str, _Named] = {}

    def walk(self, schema: object) -> _Walk | None:
        if isinstance(schema, str):
            return self._by_name(schema)
        if isinstance(schema, list):
            if any(isinstance(branch, list) for branch in schema):
                raise BadSchema("An Avro union has a union as a branch.")
            return _union([self.walk(branch) for branch in schema])
        if not isinstance(schema, dict):
            raise BadSchema(f"{shown(schema)} is not an Avro type.")
        kind = schema["type"]
        if kind == "array":
            return _array(self.walk(schema["items"]))
        if kind == "map":
            return _map(self.walk(schema["values"]))
        if kind == "enum":
            return self._named(schema, _enum(len(schema["symbols"])))
        if kind == "fixed":
            size = schema["size"]
            if type(size) is not int or size < 0:
                raise BadSchema(f"The size of fixed {shown(schema['name'])} is {shown(size)}.")
            return self._named(schema, _fixed(size) if size else None)
        if kind in ("record", "error"):
            return self._record(schema)
        # A primitive with attributes, such as a logical type, or a type in brackets.
        return self.walk(kind)

    def _by_name(self, name: str) -> _Walk | None:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        named = self._names.get(name)
        if named is None:
            raise BadSchema(f"{shown(name)} is not an Avro type.")
        return named.walk if named.done else named.later

    def _named(self, schema: Mapping[str, Any], walk: _Walk | None) -> _Walk | None:
        named = self._names.setdefault(str(schema["name"]), _Named())
        named.walk, named.done = walk, True
        return walk

    def _record(self, schema: Mapping[str, Any]) -> _Walk | None:
        self._names[str(schema["name"])] = _Named()
        fields: list[tuple[str, _Walk]] = []
        for field in schema["fields"]:
            walk = self.walk(field["type"])
            if walk is not None:
                fields.append((field["name"], walk))
        return self._named(schema, _record(fields) if fields else None)


# -- the walks -------------------------------------------------------------------------


def _number(data: bytes, at: int, most_bytes: int = _LONG_BYTES) -> tuple[int, int]:
    """A zig-zag number of at most 32 or 64 bits, and where it ends."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number = byte & 0x7F
    for shift in range(7, 7 * most_bytes, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    bits = 32 if most_bytes == _INT_BYTES else 64
    if byte >= 0x80 or number >> bits:
        raise _Malformed(f"a number does not fit {bits} bits")
    return (number >> 1) ^ -(number & 1), at


def _walk_boolean(data: bytes, at: int, _: int) -> int:
    if data[at] > 1:
        raise _Malformed(f"a boolean is the byte {data[at]}; it is 0 or 1")
    return at + 1


def _walk_int(data: bytes, at: int, _: int) -> int:
    return at + 1 if data[at] < 0x80 else _number(data, at, _INT_BYTES)[1]


def _walk_long(data: bytes, at: int, _: int) -> int:
    return at + 1 if data[at] < 0x80 else _number(data, at)[1]


def _walk_bytes(data: bytes, at: int, _: int) -> int:
    length, at = _number(data, at)
    if not 0 <= length <= len(data) - at:
        raise _Malformed(f"a length of {length} bytes is claimed; {len(data) - at} are left")
    return at + length


def _walk_string(data: bytes, at: int, _: int) -> int:
    length, at = _number(data, at)
    if not 0 <= length <= len(data) - at:
        raise _Malformed(f"a length of {length} bytes is claimed; {len(data) - at} are left")
    end = at + length
    data[at:end].decode()
    return end


def _fixed(size: int) -> _Walk:
    def walk(_: bytes, at: int, __: int) -> int:
        # Past the end is found by whoever reads next, or at last.
        return at + size

    return walk


_PRIMITIVES: Final[dict[str, _Walk | None]] = {
    "null": None,
    "boolean": _walk_boolean,
    "int": _walk_int,
    "long": _walk_long,
    "float": _fixed(4),
    "double": _fixed(8),
    "bytes": _walk_bytes,
    "string": _walk_string,
}


def _enum(symbols: int) -> _Walk:
    def walk(data: bytes, at: int, _: int) -> int:
        index, at = _number(data, at, _INT_BYTES)
        if not 0 <= index < symbols:
            raise _Malformed(f"an enum has symbol {index}; there are {symbols}")
        return at

    return walk


def _union(branches: Sequence[_Walk | None]) -> _Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        index, at = _number(data, at, _INT_BYTES)
        if not 0 <= index < len(branches):
            raise _Malformed(f"a union has branch {index}; there are {len(branches)}")
        branch = branches[index]
        return at if branch is None else branch(data, at, depth)

    return walk


def _record(fields: Sequence[tuple[str, _Walk]]) -> _Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        _check_depth(depth)
        name = ""
        try:
            for name, field in fields:  # noqa: B007  (the name is for the error)
                at = field(data, at, depth + 1)
        except (_Malformed, IndexError, UnicodeDecodeError) as error:
            raise _inside(error, name) from None
        return at

    return walk


def _array(item: _Walk | None) -> _Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        _check_depth(depth)
        items = 0
        try:
            while True:
                count, at, end = _block(data, at)
                if not count:
                    return at
                if item is None:
                    items += count
                    if items > MAX_EMPTY_ITEMS:
                        raise _Malformed(f"more than {MAX_EMPTY_ITEMS} items without bytes")
                else:
                    _check_count(count, data, at)
                    for _ in range(count):
                        at = item(data, at, depth + 1)
                        items += 1
                _check_end(at, end)
        except (_Malformed, IndexError, UnicodeDecodeError) as error:
            raise _inside(error, items) from None

    return walk


def _map(value: _Walk | None) -> _Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        _check_depth(depth)
        items = 0
        try:
            while True:
                count, at, end = _block(data, at)
                if not count:
                    return at
                _check_count(count, data, at)
                for _ in range(count):
                    at = _walk_string(data, at, 0)
                    if value is not None:
                        at = value(data, at, depth + 1)
                    items += 1
                _check_end(at, end)
        except (_Malformed, IndexError, UnicodeDecodeError) as error:
            raise _inside(error, items) from None

    return walk


def _block(data: bytes, at: int) -> tuple[int, int, int | None]:
    """How many items the next block has, where they begin and, where it says so, end."""
    count, at = _number(data, at)
    if count >= 0:
        return count, at, None
    size, at = _number(data, at)
    return -count, at, at + size


def _check_count(count: int, data: bytes, at: int) -> None:
    # Each item takes a byte at least, so a claim beyond the end is refused before the work.
    if count > len(data) - at:
        raise _Malformed(f"{count} items are claimed; {max(0, len(data) - at)} bytes are left")


def _check_end(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise _Malformed("a block is not as long as it says")


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _Malformed(f"it is nested deeper than {MAX_DEPTH} levels")
