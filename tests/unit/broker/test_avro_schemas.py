"""Avro: what fastavro writes matches, nothing else does, and hostile bytes are cheap."""

from __future__ import annotations

import io
import json
from typing import Any, Final

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.avro_schemas import AvroChecker
from penstock.broker.avro_walks import MAX_EMPTY_ITEMS
from penstock.broker.nesting import MAX_DEPTH
from penstock.errors import BadSchema

LIST: Final = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


def checker(schema: object) -> AvroChecker:
    return AvroChecker(json.dumps(schema))


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def written(schema: Any, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


# -- what matches ----------------------------------------------------------------------

PRIMITIVES: Final[dict[str, st.SearchStrategy[object]]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=80),
    "string": st.text(max_size=80),
}

shapes = st.recursive(
    st.sampled_from(sorted(PRIMITIVES))
    | st.integers(0, 4).map(lambda size: {"type": "fixed", "size": size})
    | st.integers(1, 3).map(lambda n: {"type": "enum", "symbols": [f"S{i}" for i in range(n)]}),
    lambda inner: (
        inner.map(lambda items: {"type": "array", "items": items})
        | inner.map(lambda values: {"type": "map", "values": values})
        | st.lists(inner, max_size=3).map(lambda types: {"type": "record", "types": types})
        | inner.filter(lambda kind: kind != "null" and not isinstance(kind, list)).map(
            lambda kind: ["null", kind]
        )
    ),
    max_leaves=8,
)


def to_schema(shape: Any, names: list[str]) -> Any:
    """The shape with names, which have to be different."""
    if isinstance(shape, str):
        return shape
    if isinstance(shape, list):
        return [to_schema(branch, names) for branch in shape]
    named = {**shape}
    if shape["type"] in ("fixed", "enum", "record"):
        names.append(f"N{len(names)}")
        named["name"] = names[-1]
    if shape["type"] == "record":
        types = [to_schema(kind, names) for kind in named.pop("types")]
        named["fields"] = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(types)]
    for part in ("items", "values"):
        if part in shape:
            named[part] = to_schema(shape[part], names)
    return named


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, str):
        return PRIMITIVES[schema]
    if isinstance(schema, list):
        return st.one_of(*map(values, schema))
    match schema["type"]:
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "array":
            return st.lists(values(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=3)
        case _:
            fields = {field["name"]: values(field["type"]) for field in schema["fields"]}
            return st.fixed_dictionaries(fields)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_is_written_matches_and_no_byte_may_be_missing_or_more(data: st.DataObject) -> None:
    schema = to_schema(data.draw(shapes), [])
    payload = written(schema, data.draw(values(schema)))
    check = checker(schema)
    assert check.violation(payload) is None
    assert check.violation(payload + b"\0") is not None
    for end in range(len(payload)):
        assert check.violation(payload[:end]) is not None


@settings(max_examples=300, deadline=None)
@given(st.data(), st.binary(max_size=12))
def test_what_matches_can_be_read(data: st.DataObject, noise: bytes) -> None:
    schema = to_schema(data.draw(shapes), [])
    payload = written(schema, data.draw(values(schema)))
    at = data.draw(st.integers(0, len(payload)))
    spoilt = payload[:at] + noise + payload[at + len(noise) :]
    if checker(schema).violation(spoilt) is None:
        reader = io.BytesIO(spoilt)
        fastavro.schemaless_reader(reader, fastavro.parse_schema(schema), None)
        assert reader.tell() == len(spoilt)


def test_blocks_may_say_how_long_they_are() -> None:
    check = checker({"type": "array", "items": "string"})
    items = b"\x02a\x04bc"
    assert check.violation(zigzag(-2) + zigzag(5) + items + zigzag(1) + b"\x02d" + b"\0") is None
    violation = check.violation(zigzag(-2) + zigzag(4) + items + b"\0")
    assert violation is not None
    assert "not as long as it says" in violation
    keyed = checker({"type": "map", "values": "null"})
    assert keyed.violation(zigzag(-2) + zigzag(5) + items + b"\0") is None


def test_names_namespaces_and_attributes() -> None:
    schema = {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 2}},
            {"name": "twin", "type": "shop.Id"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "name", "type": {"type": "string"}, "default": "nobody"},
        ],
    }
    check = checker(schema)
    assert check.violation(b"aabb" + zigzag(2**62) + b"\0") is None
    assert check.violation(b"aab") is not None


# -- what does not ---------------------------------------------------------------------

ENUM: Final = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
RECORD: Final = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "n", "type": {"type": "array", "items": {"type": "map", "values": "int"}}}],
}


@pytest.mark.parametrize(
    "schema, payload, what",
    [
        ("null", b"\0", "1 bytes are left"),
        ("boolean", b"\x02", "boolean"),
        ("int", zigzag(2**31), "32 bits"),
        ("int", b"\xff" * 5 + b"\0", "32 bits"),
        ("long", b"\xff" * 9 + b"\x02", "64 bits"),
        ("long", b"\xff" * 20, "64 bits"),
        ("long", b"\x80", "ends before"),
        ("double", b"1234567", "ends before"),
        ("string", b"\x02\xff", "UTF-8"),
        ("string", zigzag(-1) + b"abc", "a length of -1"),
        ("bytes", zigzag(2**62) + b"abc", "3 are left"),
        (ENUM, zigzag(2), "symbol 2"),
        (ENUM, zigzag(-1), "symbol -1"),
        (["null", "int"], zigzag(-1) + b"\0", "branch -1"),
        (["null", "int"], zigzag(2), "branch 2"),
        ({"type": "fixed", "name": "F", "size": 2**70}, b"a", "ends before"),
        (RECORD, b"\x02\x02\x02a\xff\xff\xff\xff\xff\x00", "at /n/0/0: "),
        (RECORD, b"\x02\x00", "at /n/1: the payload ends"),
    ],
)
def test_violations(schema: object, payload: bytes, what: str) -> None:
    violation = checker(schema).violation(payload)
    assert violation is not None
    assert what in violation


@pytest.mark.parametrize("items", ["null", "int", "string", LIST, {**LIST, "fields": []}])
@pytest.mark.timeout(20)
def test_an_enormous_array_costs_nothing(items: object) -> None:
    check = checker({"type": "array", "items": items})
    for count in (2**62, -(2**62), 2**31, 1_000_000):
        size = zigzag(0) if count < 0 else b""
        assert check.violation(zigzag(count) + size + b"\0" * 1_000) is not None


def test_items_without_bytes_are_bounded_over_all_blocks() -> None:
    check = checker({"type": "array", "items": "null"})
    assert check.violation(zigzag(MAX_EMPTY_ITEMS) + b"\0") is None
    assert check.violation(zigzag(MAX_EMPTY_ITEMS) + zigzag(1) + b"\0") is not None


@pytest.mark.timeout(20)
def test_a_deep_payload_is_a_violation() -> None:
    check = checker(LIST)
    assert check.violation(b"\x02" * (MAX_DEPTH - 1) + b"\0") is None
    for depth in (MAX_DEPTH, 1_000, 1_000_000):
        violation = check.violation(b"\x02" * depth + b"\0")
        assert violation is not None
        assert "nested deeper" in violation
        assert len(violation) < 500


@pytest.mark.timeout(20)
def test_records_without_bytes_cost_nothing() -> None:
    """Each has the one before it twice: 2^60 empty records in no byte at all."""
    types: list[object] = [{"type": "record", "name": "R0", "fields": []}]
    for n in range(60):
        fields = [{"name": name, "type": f"R{n}"} for name in "ab"]
        types.append({"type": "record", "name": f"R{n + 1}", "fields": fields})
    check = checker(types)
    assert check.violation(zigzag(60)) is None
    assert check.violation(zigzag(60) + b"\0") is not None


@pytest.mark.timeout(20)
def test_a_record_that_never_ends_has_no_datum() -> None:
    endless = {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}
    check = checker(endless)
    for payload in (b"", b"\0" * 100):
        assert check.violation(payload) is not None


# -- schemas that are none -------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        "strin",
        5,
        None,
        True,
        {},
        {"type": "record"},
        {"type": "record", "name": "R", "fields": 5},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "Unknown"}]},
        {"type": "record", "name": "R", "fields": [{"name": "a"}]},
        {"type": "array"},
        {"type": "fixed", "name": "F", "size": -1},
        {"type": "fixed", "name": "F", "size": "2"},
        {"type": "enum", "name": "E", "symbols": ["not a name"]},
        [["int"]],
    ],
)
def test_bad_schemas(schema: object) -> None:
    with pytest.raises(BadSchema) as caught:
        checker(schema)
    assert len(caught.value.detail) < 600


KEYS: Final = (
    "type",
    "name",
    "fields",
    "items",
    "values",
    "symbols",
    "size",
    "namespace",
    "default",
)
WORDS: Final = (*sorted(PRIMITIVES), "record", "array", "map", "enum", "fixed", "error", "R", "a.b")
anything = st.recursive(
    st.sampled_from(WORDS) | st.integers(-2, 9) | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(anything, st.binary(max_size=20))
def test_any_schema_compiles_or_is_bad_and_any_payload_matches_or_does_not(
    schema: object, payload: bytes
) -> None:
    try:
        check = checker(schema)
    except BadSchema:
        return
    violation = check.violation(payload)
    assert violation is None or len(violation) < 500
