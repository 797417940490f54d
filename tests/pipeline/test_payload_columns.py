"""Payloads as typed columns: what becomes of each schema, and of payloads that do not fit."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from penstock.errors import BadSchema
from penstock.pipeline.lake.payload_columns import PayloadColumns, payload_columns
from penstock.pipeline.lake.topic_schema import merged_fields

RESERVED = ("_offset", "_id")


def columns(schema: object, kind: str = "json-schema") -> PayloadColumns:
    return payload_columns(kind, json.dumps(schema), RESERVED)


def types(schema: object, kind: str = "json-schema") -> dict[str, str]:
    return {field.name: str(field.type) for field in columns(schema, kind).fields}


def values(schema: object, *payloads: bytes | None, kind: str = "json-schema") -> list[Any]:
    """Of each payload its columns, or None if it does not fit."""
    of = columns(schema, kind)
    arrays, fits = of.arrays(payloads)
    names = [field.name for field in of.fields]
    rows = zip(*(array.to_pylist() for array in arrays), strict=True)
    found = [dict(zip(names, row, strict=True)) for row in rows]
    for row, fit in zip(found, fits, strict=True):
        assert fit or set(row.values()) == {None}
    return [row if fit else None for row, fit in zip(found, fits, strict=True)]


def of(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    "schema, type_, json_, value",
    [
        ({"type": "integer"}, "int64", "1.0", 1),
        ({"type": ["number", "null"]}, "double", "1", 1.0),
        ({"type": ["integer", "number"]}, "double", "1.5", 1.5),
        ({"type": "boolean"}, "bool", "true", True),
        ({"enum": ["a", "b"]}, "string", '"a"', "a"),
        ({"const": 7}, "int64", "7", 7),
        (
            {"type": "string", "format": "date"},
            "date32[day]",
            '"2026-11-15"',
            dt.date(2026, 11, 15),
        ),
        (
            {"type": "string", "format": "date-time"},
            "timestamp[us, tz=UTC]",
            '"2026-11-15T10:00:00+01:00"',
            dt.datetime(2026, 11, 15, 9, tzinfo=dt.UTC),
        ),
        (
            {"type": "array", "items": {"type": "string"}},
            "list<item: string>",
            '["a",null]',
            ["a", None],
        ),
        ({"type": "array"}, "string", "[1]", "[1]"),
        (of(b={"type": "integer"}), "struct<b: int64>", '{"b":1,"c":2}', {"b": 1}),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            "map<string, int64>",
            '{"x":1}',
            [("x", 1)],
        ),
        ({"type": "object"}, "string", '{"x":1}', '{"x":1}'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string", '"a"', "a"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "double", "1", 1.0),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "string", "1", "1"),
        (
            {"oneOf": [of(k={"type": "string"}), of(n={"type": "integer"})]},
            "struct<k: string, n: int64>",
            '{"n":1}',
            {"k": None, "n": 1},
        ),
        (
            {"allOf": [of(x={"type": "integer"}), of(y={})]},
            "struct<x: int64, y: string>",
            '{"y":[1]}',
            {"x": None, "y": "[1]"},
        ),
        ({}, "string", "1", "1"),
        (True, "string", "1", "1"),
    ],
)
def test_a_field_has_the_type_of_its_schema(
    schema: object, type_: str, json_: str, value: object
) -> None:
    assert types(of(a=schema)) == {"a": type_}
    payload = f'{{"a":{json_}}}'.encode()
    assert values(of(a=schema), payload, b"{}", b'{"a":null,"z":1}') == [
        {"a": value},
        {"a": None},
        {"a": None},
    ]


def test_references_are_followed_and_recursion_is_text() -> None:
    node = of(v={"type": "integer"}, next={"$ref": "#/$defs/node"})
    schema = {**of(list={"$ref": "#/$defs/node"}), "$defs": {"node": node}}
    assert types(schema) == {"list": "struct<v: int64, next: string>"}
    assert values(schema, b'{"list":{"v":1,"next":{"v":2}}}') == [
        {"list": {"v": 1, "next": '{"v":2}'}}
    ]
    assert types({"$ref": "#"}) == {"payload": "string"}
    assert types(of(a={"$ref": "https://example.com"})) == {"a": "string"}
    # Thirty definitions that each name the next one twice: 2^30 types, if nobody counted them.
    definitions: dict[str, object] = {
        f"d{n}": of(x={"$ref": f"#/$defs/d{n + 1}"}, y={"$ref": f"#/$defs/d{n + 1}"})
        for n in range(30)
    }
    unfolds = {**of(a={"$ref": "#/$defs/d0"}), "$defs": {**definitions, "d30": {}}}
    assert list(types(unfolds)) == ["a"]


def test_columns_have_names_that_every_reader_takes() -> None:
    schema = of(**{"_ID": {"type": "integer"}, "a b": {}, "A B": {}, "x.y": {}, "": {}})
    assert list(types(schema)) == ["_ID_", "a_b", "A_B_", "x_y", "_"]
    assert values(schema, b'{"_ID":1,"a b":2,"A B":3,"x.y":4,"":5}') == [
        {"_ID_": 1, "a_b": "2", "A_B_": "3", "x_y": "4", "_": "5"}
    ]


@pytest.mark.parametrize(
    "payload",
    [
        None,
        b"",
        b"null",
        b"[]",
        b'{"a":1.5}',
        b'{"a":"1"}',
        b'{"a":9223372036854775808}',
        b"\xff",
        b"[" * 100_000,
        b'{"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"s":"\\ud800"}',
        b'{"t":"yesterday"}',
        b'{"t":"9999-12-31T23:59:59-14:00"}',
    ],
)
def test_what_does_not_fit_has_no_values_and_spoils_no_other(payload: bytes | None) -> None:
    schema = of(
        a={"type": "integer"},
        b={},
        s={"type": "string"},
        t={"type": "string", "format": "date-time"},
    )
    good = {"a": 1, "b": None, "s": None, "t": None}
    assert values(schema, b'{"a":1}', payload, b'{"a":1}') == [good, None, good]


def test_a_payload_that_is_no_object_has_one_column() -> None:
    assert types({"type": "array", "items": {"type": "integer"}}) == {
        "payload": "list<item: int64>"
    }
    assert values({"type": "integer"}, b"7", b"{}") == [{"payload": 7}, None]


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "sum",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "either", "type": ["string", "long"]},
        {"name": "wide", "type": ["int", "float"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "map", "type": {"type": "map", "values": "double"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}}
                    ],
                },
            },
        },
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
        {"name": "next", "type": ["null", "Order"]},
    ],
}


def test_avro() -> None:
    value: dict[str, Any] = {
        "id": 2**40,
        "day": dt.date(2026, 11, 15),
        "at": dt.datetime(2026, 11, 15, 9, tzinfo=dt.UTC),
        "sum": Decimal("1.25"),
        "key": UUID(int=1),
        "note": None,
        "either": 5,
        "wide": 1,
        "kind": "A",
        "again": "B",
        "map": {"x": 0.5},
        "lines": [{"time": dt.time(1, 2)}],
        "raw": b"ab",
        "next": None,
    }
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(AVRO), value)
    payload = encoded.getvalue()
    # Half of a datum, one with more behind it, and a block of 2^60 items.
    found = values(AVRO, payload, payload[:-1], payload + b"x", b"\x80" * 9 + b"\x01", kind="avro")
    expected = {**value, "key": str(UUID(int=1)), "either": "5", "wide": 1.0, "map": [("x", 0.5)]}
    expected["lines"] = [{"time": "01:02:00"}]
    assert found == [expected, None, None, None]
    assert types(AVRO, "avro")["next"] == "string"
    assert types(AVRO, "avro")["sum"] == "decimal128(9, 2)"


def test_a_schema_that_no_type_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "penstock.pipeline.lake.avro_payloads", None)
    with pytest.raises(BadSchema, match=r"penstock\[schemas\]"):
        payload_columns("avro", '"long"', RESERVED)


def test_fields_of_two_schemas_are_merged_if_they_agree() -> None:
    def fields(**types_: pa.DataType) -> tuple[pa.Field, ...]:
        return tuple(pa.field(name, type_) for name, type_ in types_.items())

    one = fields(a=pa.int64(), s=pa.struct([("x", pa.int64())]))
    two = fields(s=pa.struct([("y", pa.string())]), b=pa.string())
    assert merged_fields(one, two) == fields(
        a=pa.int64(), s=pa.struct([("x", pa.int64()), ("y", pa.string())]), b=pa.string()
    )
    assert merged_fields(one, fields(a=pa.string())) is None
    assert merged_fields(one, fields(A=pa.int64())) is None
    assert merged_fields(one, fields(s=pa.struct([("x", pa.string())]))) is None
