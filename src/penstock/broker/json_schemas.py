"""JSON payloads: JSON Schema of drafts 7, 2019-09 and 2020-12, without a network.

jsonschema-rs validates. The code around it keeps hostile schemas and payloads cheap:

- nothing is ever fetched: a ``$ref`` that leads out of the schema does not compile;
- patterns run in a regex engine with linear time, and those that it does not support
  (look-around, back references) do not compile. The format ``regex`` is not checked,
  because that would compile patterns from publishers;
- payloads and schemas nest to a bounded depth, and a schema whose references unfold into
  more than ``MAX_WEIGHT`` subschemas does not compile (``json_weight``);
- only ``is_valid`` applies the whole schema to a payload: it memoizes recursive schemas.
  ``validate`` does not, and collects one error per branch of each anyOf: a minute for a
  payload of 110 bytes. So errors are described with a second schema, in which alternatives
  and recursion are only tested.

Formats are checked in draft 7 and are annotations in later drafts, as these specify. If a key
occurs twice in an object, the last one counts.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationErrorKind as Kind

from penstock.broker.json_weight import Weight, described, weigh
from penstock.broker.nesting import MAX_DEPTH, check_depth, pointer, printable
from penstock.errors import BadSchema
from penstock.model.limits import shown

__all__ = ["JsonChecker"]

#: Compiled patterns of one schema; ``^\\p{L}{1,200}$`` takes half, most take a few KiB.
MAX_PATTERNS_BYTES: Final = 16 * 1024 * 1024

_Schema: TypeAlias = dict[str, Any] | bool

_DRAFTS: Final[dict[str, type[jsonschema_rs.Validator]]] = {
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
_NEWEST: Final = "https://json-schema.org/draft/2020-12/schema"
_TOO_DEEP: Final = f"it is nested deeper than {MAX_DEPTH} levels"
_BAD_PATTERN: Final = (
    "the pattern is malformed, too large, or cannot run in linear time, as look-around and "
    "back references cannot"
)
_NO_PLACE: Final = "it does not match"
_MAX_TOLD: Final = 240
#: Replaces values, which can be long and do not belong in logs.
_MASK: Final = "the value"
_decode: Final = msgspec.json.Decoder().decode


class JsonChecker:
    """One JSON Schema, compiled."""

    def __init__(self, schema: str) -> None:
        self._schema = _parsed(schema)
        self._draft = _draft(self._schema)
        self._weight = weigh(self._schema)
        self._validator = _compiled(self._draft, self._schema, self._weight)
        self._describer: jsonschema_rs.Validator | None = None

    def violation(self, payload: bytes) -> str | None:
        """Where the payload breaks the schema and how; None if it matches."""
        if not check_depth(payload):
            return f"{_TOO_DEEP}, or not JSON"
        try:
            value = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"it is not JSON: {error}"
        except RecursionError:
            return _TOO_DEEP
        return None if self._validator.is_valid(value) else self._told(value)

    def _told(self, value: object) -> str:
        """Describe why a value does not match."""
        if self._describer is None:
            self._describer = _describer(self._draft, self._schema, self._weight)
        try:
            self._describer.validate(value)
        except jsonschema_rs.ValidationError as error:
            return f"at {pointer(error.instance_path)}: {_what(error)}"
        return _NO_PLACE


def _parsed(schema: str) -> _Schema:
    text = schema.encode()
    if not check_depth(text):
        raise BadSchema(f"The JSON Schema is nested deeper than {MAX_DEPTH} levels, or not JSON.")
    try:
        parsed = _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSchema(f"The JSON Schema is not JSON: {error}.") from error
    # The library would take a text as a schema that is not parsed yet.
    if not isinstance(parsed, dict | bool):
        raise BadSchema("A JSON Schema is an object, or true or false.")
    return parsed


def _draft(schema: _Schema) -> type[jsonschema_rs.Validator]:
    named = schema.get("$schema", _NEWEST) if isinstance(schema, dict) else _NEWEST
    draft = _DRAFTS.get(named.removesuffix("#")) if isinstance(named, str) else None
    if draft is None:
        raise BadSchema(f"$schema is {shown(named)}; it must be one of {', '.join(_DRAFTS)}.")
    return draft


def _compiled(
    draft: type[jsonschema_rs.Validator], schema: _Schema, weight: Weight
) -> jsonschema_rs.Validator:
    share = MAX_PATTERNS_BYTES // max(weight.patterns, 1)
    try:
        return draft(
            schema,
            formats={"regex": _any_text},
            mask=_MASK,
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=share),
        )
    except jsonschema_rs.ValidationError as error:
        place = pointer(error.instance_path)
        is_pattern = isinstance(error.kind, Kind.Format) and error.kind.format == "regex"
        what = _BAD_PATTERN if is_pattern else printable(error.message, _MAX_TOLD)
        raise BadSchema(f"The JSON Schema does not compile: at {place}: {what}.") from error
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        what = printable(str(error), _MAX_TOLD)
        raise BadSchema(f"The JSON Schema does not compile: {what}.") from error


def _describer(
    draft: type[jsonschema_rs.Validator], schema: _Schema, weight: Weight
) -> jsonschema_rs.Validator:
    try:
        return _compiled(draft, described(schema, weight), weight)
    except BadSchema:
        # A reference points into an alternative, which has moved: report no position.
        return _compiled(draft, True, weight)


def _any_text(_: str) -> bool:
    return True


def _what(error: jsonschema_rs.ValidationError) -> str:
    """The library's message, except for a ``not not`` of the describing schema."""
    match error.kind:
        case Kind.PropertyNames(error=inner):
            return f"a property's name: {_what(inner)}"
        case Kind.Not(schema={"not": {"anyOf": _}}):
            return "the value matches none of the alternatives of anyOf"
        case Kind.Not(schema={"not": {"oneOf": _}}):
            return "the value does not match exactly one of the alternatives of oneOf"
        case Kind.Not(schema={"not": {"$ref": str(target)}}):
            return f"the value does not match {printable(target, _MAX_TOLD)}"
        case _:
            return printable(error.message, _MAX_TOLD)
