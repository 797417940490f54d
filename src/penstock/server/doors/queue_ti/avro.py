"""Avro schemas of queue-ti as JSON Schemas.

queue-ti checks payloads that are JSON against an Avro schema; Avro topics of Penstock have binary
payloads. So the schema is translated, and the topic gets the translation: every producer is
checked, through whichever door it comes. The text that the client sent, its version and its time
are stored in the same document, under names that JSON Schema ignores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.broker.schemas import compile_schema
from penstock.errors import BadSchema
from penstock.model.queue import TopicPolicy
from penstock.server.doors.json_bodies import rfc3339
from penstock.server.doors.queue_ti.refusals import invalid

__all__ = ["SchemaBody", "json_schema", "schema_of", "stored_schema"]

_TEXT: Final = "x-avro-schema"
_VERSION: Final = "x-avro-version"
_UPDATED: Final = "x-avro-updated-at"
_PRIMITIVES: Final[Mapping[str, dict[str, Any]]] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "int": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "long": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "float": {"type": "number"},
    "double": {"type": "number"},
    "bytes": {"type": "string"},
    "string": {"type": "string"},
}


class SchemaBody(Struct, frozen=True):
    """A schema as the HTTP interface shows it."""

    topic: str
    schema_json: str
    version: int
    updated_at: str


def stored_schema(text: str, version: int, now: int) -> str:
    """The document of a topic with this Avro schema; raises if it is not one."""
    try:
        compile_schema(TopicPolicy(schema_type="avro", schema=text))
    except BadSchema as error:
        raise invalid(f"invalid Avro schema: {error.detail}", "schema_json") from error
    document = {
        **json_schema(msgspec.json.decode(text)),
        _TEXT: text,
        _VERSION: version,
        _UPDATED: now,
    }
    return msgspec.json.encode(document).decode()


def schema_of(topic: str, policy: TopicPolicy | None) -> SchemaBody | None:
    """The Avro schema that this door gave a topic; None if it has none."""
    if policy is None or policy.schema is None:
        return None
    try:
        document = msgspec.json.decode(policy.schema, type=dict[str, Any])
        return SchemaBody(
            topic, document[_TEXT], document[_VERSION], rfc3339(int(document[_UPDATED]))
        )
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return None


def json_schema(schema: Any) -> dict[str, Any]:
    """The JSON Schema of payloads for a valid Avro schema."""
    definitions: dict[str, Any] = {}
    root = _Translation(definitions).of(schema, "")
    return {**root, "$defs": definitions} if definitions else root


class _Translation:
    """Translates schemas; named types become definitions, because they may refer to themselves."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions

    def of(self, schema: Any, namespace: str) -> dict[str, Any]:
        if isinstance(schema, str):
            return dict(_PRIMITIVES.get(schema) or _reference(_full(schema, namespace)))
        if isinstance(schema, list):
            return {"anyOf": [self.of(branch, namespace) for branch in schema]}
        kind = schema["type"]
        if kind == "array":
            return {"type": "array", "items": self.of(schema["items"], namespace)}
        if kind == "map":
            return {"type": "object", "additionalProperties": self.of(schema["values"], namespace)}
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(schema, kind, namespace)
        return self.of(kind, namespace)

    def _named(self, schema: Mapping[str, Any], kind: str, namespace: str) -> dict[str, Any]:
        name = _full(schema["name"], schema.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        self._definitions[name] = {}
        if kind == "enum":
            definition: dict[str, Any] = {"enum": list(schema["symbols"])}
        elif kind == "fixed":
            size = schema["size"]
            definition = {"type": "string", "minLength": size, "maxLength": size}
        else:
            fields = schema["fields"]
            definition = {
                "type": "object",
                "properties": {field["name"]: self.of(field["type"], inner) for field in fields},
                "required": [field["name"] for field in fields if "default" not in field],
            }
        self._definitions[name] = definition
        return _reference(name)


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}
