"""JSON Schema: the drafts, where an error is said to be, and what hostile input costs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.json_schemas import JsonChecker
from penstock.broker.nesting import MAX_DEPTH
from penstock.errors import BadSchema

ROOT: Final = {"$ref": "#"}
SEVEN: Final = "http://json-schema.org/draft-07/schema#"
NINETEEN: Final = "https://json-schema.org/draft/2019-09/schema"
TWENTY: Final = "https://json-schema.org/draft/2020-12/schema"

#: Nothing here takes a tenth of a second. Without its bounds, much of it takes hours.
hostile = pytest.mark.timeout(20)


def checker(schema: object) -> JsonChecker:
    return JsonChecker(json.dumps(schema))


def notified(schema: object, value: object) -> str | None:
    return checker(schema).violation(json.dumps(value).encode())


def nested(depth: int, inner: object) -> object:
    for _ in range(depth):
        inner = {"n": inner}
    return inner


# -- what matches ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        (True, None, ...),
        ({}, [1, {}], ...),
        (False, ..., None),
        ({"type": "integer"}, 2**70, 1.5),
        ({"type": "integer"}, 1.0, "1"),
        ({"$schema": SEVEN, "items": [{"type": "null"}]}, [None, 1], [1]),
        ({"$schema": SEVEN, "dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"$schema": SEVEN, "format": "date-time"}, "2025-01-01T00:00:00Z", "yesterday"),
        ({"$schema": SEVEN, "format": "regex"}, "(", ...),
        ({"$schema": NINETEEN, "dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ({"$schema": NINETEEN, "items": [{"type": "null"}]}, [None, 1], [1]),
        ({"$schema": TWENTY, "prefixItems": [{"type": "null"}]}, [None, 1], [1]),
        ({"$schema": TWENTY + "#", "minProperties": 1}, {"a": 1}, {}),
        ({"prefixItems": [{"type": "null"}]}, [None], [1]),
        ({"format": "date-time"}, "yesterday", ...),
        ({"pattern": "^[a-z]+$"}, "abc", "ab1"),
        ({"$defs": {"a": {"$anchor": "x", "type": "null"}}, "$ref": "#x"}, None, 1),
        ({"$defs": {"a": {"$id": "urn:a", "type": "null"}}, "$ref": "urn:a"}, None, 1),
        ({"items": ROOT, "type": "array"}, [[], [[]]], [[1]]),
    ],
)
def test_values(schema: object, good: object, bad: object) -> None:
    check = checker(schema)
    if good is not ...:
        assert check.violation(json.dumps(good).encode()) is None
    if bad is not ...:
        assert check.violation(json.dumps(bad).encode()) is not None


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"{", b"{} {}", b"[1,]", b"'a'", b"NaN", b"1e400", b"\x00", b"9" * 5_000),
        *(b'"\xff"', b"\xff", b"\xef\xbb\xbf{}", b'"\\ud800"'),
    ],
)
def test_what_is_not_json_matches_nothing(payload: bytes) -> None:
    violation = checker(True).violation(payload)
    assert violation is not None
    assert "not JSON" in violation


# -- where it is wrong -----------------------------------------------------------------

TREE: Final = {
    "$defs": {"node": {"properties": {"kids": {"items": {"$ref": "#/$defs/node"}}}}},
    "$ref": "#/$defs/node",
    "required": ["kids"],
}
EITHER: Final = [{"type": "string"}, {"type": "boolean"}]


@pytest.mark.parametrize(
    "schema, value, place, what",
    [
        ({"type": "object"}, 1, "the top", '"object"'),
        ({"required": ["id"]}, {}, "the top", '"id" is a required property'),
        ({"items": {"maximum": 5}}, [1, 9], "/1", "maximum of 5"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, "the top", "'b'"),
        ({"properties": {"a/b": {"enum": [1]}}}, {"a/b": 2}, "/a~1b", "not one of"),
        ({"items": {"anyOf": EITHER}}, ["", 1], "/1", "none of the alternatives of anyOf"),
        ({"oneOf": EITHER}, 1, "the top", "exactly one of the alternatives of oneOf"),
        ({"allOf": [{"properties": {"a": {"type": "null"}}}]}, {"a": 1}, "/a", '"null"'),
        ({"if": True, "then": {"required": ["b"]}}, {}, "the top", '"b"'),
        ({"propertyNames": {"anyOf": [{"const": "a"}]}}, {"b": 1}, "the top", "name"),
        ({"properties": {"anyOf": {"type": "null"}}}, {"anyOf": 1}, "/anyOf", '"null"'),
        (TREE, {}, "the top", '"kids"'),
        ({"type": "array", "items": ROOT}, [[], [[1]]], "/1", "does not match #"),
        ({"not": {"type": "null"}}, None, "the top", "not allowed"),
    ],
)
def test_the_place_and_what_is_wrong(schema: object, value: object, place: str, what: str) -> None:
    violation = notified(schema, value)
    assert violation is not None
    assert violation.startswith(f"at {place}: ")
    assert what in violation


def test_where_nothing_can_be_told_it_is_still_refused() -> None:
    into_an_alternative = {"anyOf": [{"type": "null"}], "items": {"$ref": "#/anyOf/0"}}
    assert notified(into_an_alternative, [1]) == "it does not match"
    unevaluated = {"anyOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}
    assert notified(unevaluated, {"a": 1}) is None
    assert notified(unevaluated, {"b": 1}) == "it does not match"


# -- schemas that are refused ----------------------------------------------------------


class Counting(BaseHTTPRequestHandler):
    requests = 0

    def do_GET(self) -> None:
        Counting.requests += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_nothing_is_fetched(keyword: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text("{}")
    with HTTPServer(("127.0.0.1", 0), Counting) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            base = f"http://127.0.0.1:{server.server_port}/"
            for schema in (
                {keyword: base + "schema.json"},
                {"$id": base + "root.json", "properties": {"a": {keyword: "schema.json"}}},
                {"$schema": base + "meta.json"},
                {keyword: f"file://{tmp_path}/schema.json"},
                {keyword: "schema.json"},
            ):
                with pytest.raises(BadSchema):
                    checker(schema)
            checker({"properties": {"a": {"$schema": base + "meta.json", "$id": base}}})
        finally:
            server.shutdown()
            thread.join()
    assert Counting.requests == 0


def doubling(steps: int, last: object) -> dict[str, Any]:
    definitions: dict[str, object] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(steps)
    }
    return {"$defs": {**definitions, f"d{steps}": last}, "$ref": "#/$defs/d0"}


def chain(steps: int, **last: object) -> dict[str, Any]:
    definitions: dict[str, object] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(steps)}
    return {"$defs": {**definitions, f"d{steps}": last}, "$ref": "#/$defs/d0"}


def anchored(steps: int) -> dict[str, Any]:
    definitions = {f"d{n}": {"$anchor": f"a{n}", "$ref": f"#a{n + 1}"} for n in range(steps)}
    return {"$defs": {**definitions, "last": {"$anchor": f"a{steps}"}}, "$ref": "#a0"}


def identified(steps: int) -> dict[str, Any]:
    definitions = {f"d{n}": {"$id": f"urn:{n}", "$ref": f"urn:{n + 1}"} for n in range(steps)}
    return {"$defs": {**definitions, "last": {"$id": f"urn:{steps}"}}, "$ref": "urn:0"}


@hostile
@pytest.mark.parametrize(
    "schema, what",
    [
        ([], "object"),
        ("{}", "object"),
        (json.dumps(doubling(40, {})), "object"),
        ({"type": "objet"}, "/type"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "draft-07"),
        ({"$schema": 5}, "$schema"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"pattern": "("}, "/pattern"),
        ({"pattern": "(?=a)b"}, "linear time"),
        ({"pattern": r"(a)\1"}, "linear time"),
        ({"pattern": "((a{1000}){1000}){1000}"}, "/pattern"),
        ({"allOf": [{"pattern": r"\p{L}{9}" + str(n)} for n in range(2_000)]}, "too large"),
        (doubling(40, {"type": "null"}), "unfolds"),
        (doubling(12, {"properties": {"n": ROOT}}), "unfolds"),
        ({"properties": {"a": {"items": doubling(40, {})["$defs"]["d0"]}}}, "d1"),
        (chain(500), "inside each other"),
        (anchored(500), "inside each other"),
        (identified(500), "inside each other"),
        (nested(MAX_DEPTH + 1, {}), "nested deeper"),
    ],
)
def test_bad_schemas(schema: object, what: str) -> None:
    with pytest.raises(BadSchema) as caught:
        checker(schema)
    assert what in caught.value.detail
    assert len(caught.value.detail) < 600


def test_a_long_schema_that_unfolds_into_little() -> None:
    types = {
        f"t{n}": {"properties": {f"k{m}": {"$ref": f"#/$defs/t{m}"} for m in range(20)}}
        for n in range(20)
    }
    check = checker({"$defs": types, "$ref": "#/$defs/t0", "type": "object"})
    assert check.violation(b'{"k1": {"k19": {"k0": 1}}}') is None
    assert check.violation(b"[]") is not None


# -- payloads that would cost too much -------------------------------------------------


@pytest.mark.parametrize("schema", [True, {}, {"items": ROOT, "type": "array"}])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 5_000, 500_000])
def test_a_deep_payload_is_a_violation(schema: object, depth: int) -> None:
    check = checker(schema)
    for payload in (b"[" * depth + b"]" * depth, b"[" * depth, b'{"a":' * depth + b"1"):
        violation = check.violation(payload)
        assert violation is not None
        assert "nested deeper" in violation
    assert check.violation(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is None


def branching(keyword: str) -> dict[str, object]:
    branch = {"type": "object", "required": ["n"], "properties": {"n": ROOT}}
    return {keyword: [branch, {**branch, "title": "again"}, {"type": "integer"}]}


@hostile
@pytest.mark.parametrize(
    "schema, value",
    [
        (branching("anyOf"), nested(60, "no integer")),
        (branching("oneOf"), nested(60, 1)),
        ({"allOf": [{"properties": {"n": ROOT}}] * 2, "type": "object"}, nested(60, 1)),
        ({"allOf": [*[{"properties": {"n": ROOT}}] * 2, {"required": ["m"]}]}, nested(60, 1)),
        (
            {"allOf": [{"properties": {"n": ROOT}}] * 2, "maxProperties": 1},
            {"m": 1, "n": nested(60, 1)},
        ),
        (
            {"patternProperties": {"n": ROOT, "^n": ROOT, "^m": {"type": "null"}}},
            {"n": nested(60, 1), "m": 1},
        ),
        (chain(90, properties={"n": ROOT}, type="object"), nested(63, 1)),
        ({"anyOf": [{"items": kind} for kind in EITHER]}, [1] * 300_000),
        ({"pattern": "^(a+)+$"}, "a" * 500_000 + "!"),
        ({"pattern": "^(a|a|b)*c"}, "ab" * 250_000),
        ({"uniqueItems": True}, [*range(150_000), 0]),
        ({"$schema": SEVEN, "items": {"format": "regex"}, "maxItems": 1}, ["(a{99}){99}"] * 50_000),
    ],
)
def test_a_hostile_payload_is_refused_in_time(schema: object, value: object) -> None:
    """Without a bound, checking it would not end before the time limit of the test."""
    check, payload = checker(schema), json.dumps(value).encode()
    violation = check.violation(payload)
    assert violation is not None
    assert violation.startswith("at ")


# fmt: off
KEYWORDS: Final = (
    "$id", "$ref", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$schema",
    "$defs", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "items",
    "prefixItems", "properties", "patternProperties", "additionalProperties",
    "unevaluatedProperties", "dependentSchemas", "dependencies", "contains",
    "propertyNames", "type", "enum", "const", "pattern", "format", "multipleOf", "a",
)
LEAVES: Final = (
    "#", "#a", "#/$defs/a", "#/allOf/0", "a", "http://[", "urn:x", "object", "^a", SEVEN, NINETEEN,
    0, 1, -1.5, True, None,
)
# fmt: on
anything = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), anything, max_size=4), anything)
def test_any_schema_compiles_or_is_bad_and_any_payload_matches_or_does_not(
    schema: object, value: object
) -> None:
    try:
        check = checker(schema)
    except BadSchema:
        return
    violation = check.violation(json.dumps(value).encode())
    assert violation is None or len(violation) < 500
