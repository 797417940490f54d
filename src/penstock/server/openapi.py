"""The OpenAPI document, generated from the route table and the structs that routes use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Final, TypeAlias, get_args

import msgspec

from penstock import errors
from penstock.errors import PenstockError
from penstock.model import limits
from penstock.server.request_parsing import RawBody
from penstock.server.routing import ANYONE, AnyRoute
from penstock.server.service import ServiceLimits
from penstock.version import VERSION
from penstock.wire.bodies import PublishBody
from penstock.wire.codecs import (
    ARROW_STREAM,
    BATCH_JSON,
    BATCH_MSGPACK,
    JSON,
    MSGPACK,
    PROBLEM_JSON,
)
from penstock.wire.payloads import JsonPublishBody
from penstock.wire.problems import Problem, problem_type

__all__ = ["openapi"]

#: Any part of the document.
Json: TypeAlias = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"{(\w+)}")
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
#: Errors that any call may be refused with.
_ALWAYS: Final = (
    errors.BadInput,
    errors.UnknownRoute,
    errors.NotAcceptable,
    errors.UnsupportedMedia,
    errors.ForeignOrigin,
    errors.ServiceError,
)
_GUARDED: Final = (errors.Unauthenticated, errors.Forbidden, errors.TooManyRequests)
_WITH_BODY: Final = (errors.SlowRequest, errors.TooLarge)
_PUBLISH_HEADERS: Final = (
    ("Penstock-Id", "string", "Idempotency id: publishing the same one again stores nothing (P4)"),
    ("Penstock-Key", "string", "Replaces the waiting message of the same key"),
    ("Penstock-Partition-Key", "string", "Messages of one partition keep their order"),
    ("Penstock-Priority", "integer", "0 to 9; 9 first"),
    ("Penstock-Delay-Ms", "integer", "Deliver after this many milliseconds"),
    ("Penstock-Deliver-At", "integer", "Deliver at this time, in epoch milliseconds"),
    ("Penstock-Ttl-Ms", "integer", "Expire after this many milliseconds"),
    ("Penstock-Expires-At", "integer", "Expire at this time, in epoch milliseconds"),
    ("Penstock-Auto-Create", "boolean", "false: the message creates no queue"),
    ("Penstock-Max-Attempts", "integer", "Attempts, instead of each queue's own limit"),
    ("Penstock-Durability", "string", "fsync or os"),
    ("Penstock-Headers", "string", "The message's headers as a JSON object"),
)


def openapi(routes: Iterable[AnyRoute], service_limits: ServiceLimits, payload_bytes: int) -> Json:
    """Build the whole document."""
    routes = tuple(route for route in routes if not route.is_page)
    schemas = _Schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": VERSION,
            "description": "A durable message queue: publish, claim, settle.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "x-limits": _limits(service_limits, payload_bytes),
    }


def _operation(route: AnyRoute, schemas: _Schemas) -> Json:
    operation: Json = {
        "operationId": route.verb,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*_path_parameters(route.path), *schemas.query(route)],
        "responses": _responses(route, schemas),
    }
    if route.need != ANYONE:
        operation["security"] = [{"bearer": []}]
        operation["x-grant"] = f"{route.need.action}:{route.need.parameter or '*'}"
    if isinstance(route.body, RawBody):
        operation["requestBody"] = _publish_body(schemas)
        operation["parameters"] += [
            {"name": name, "in": "header", "schema": {"type": kind}, "description": text}
            for name, kind, text in _PUBLISH_HEADERS
        ]
    elif route.body is not None:
        schema = schemas.of(route.body.json_kind)
        content = {JSON: {"schema": schema}, MSGPACK: {"schema": schemas.of(route.body.kind)}}
        operation["requestBody"] = {"required": route.body.required, "content": content}
    return operation


def _publish_body(schemas: _Schemas) -> Json:
    return {
        "required": False,
        "description": "A body of any type but the batch types is one message, stored unchanged.",
        "content": {
            "application/octet-stream": {},
            JSON: {"schema": {}},
            BATCH_JSON: {"schema": schemas.of(JsonPublishBody)},
            BATCH_MSGPACK: {"schema": schemas.of(PublishBody)},
            ARROW_STREAM: {},
        },
    }


def _path_parameters(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0, "maximum": limits.MAX_OFFSET}
            if name == "id" and "messages" in path
            else {"type": "string", "pattern": _NAME},
        }
        for name in _PARAMETER.findall(path)
    ]


def _responses(route: AnyRoute, schemas: _Schemas) -> Json:
    success: Json = {"description": route.summary}
    content: Json = {}
    for content_type, kind in route.replies:
        content[content_type] = {} if kind is None else {"schema": schemas.of(kind)}
        if content_type == JSON:
            content[MSGPACK] = dict(content[JSON])
    if content:
        success["content"] = content
    responses: Json = {str(route.status): success}
    kinds: list[type[PenstockError]] = [*_ALWAYS, *route.errors]
    if route.need != ANYONE:
        kinds += _GUARDED
    if route.body is not None:
        kinds += _WITH_BODY
    if isinstance(route.body, RawBody) or ARROW_STREAM in content:
        kinds.append(errors.MissingExtra)
    for kind in kinds:
        entry = responses.setdefault(
            str(kind.status),
            {
                "description": "",
                "content": {PROBLEM_JSON: {"schema": schemas.of(Problem)}},
                "x-problems": [],
            },
        )
        if "x-problems" in entry and problem_type(kind) not in entry["x-problems"]:
            entry["x-problems"].append(problem_type(kind))
            entry["description"] = "; ".join(
                filter(None, (entry["description"], f"{kind.title}: {kind.advice}"))
            )
    return responses


def _limits(service_limits: ServiceLimits, payload_bytes: int) -> Mapping[str, int | float]:
    return {
        "payload_bytes": payload_bytes,
        "body_bytes": service_limits.body_bytes,
        "body_timeout_s": service_limits.body_timeout_s,
        "waits": service_limits.waits,
        "messages_a_batch": limits.MAX_BATCH,
        "batch_ms": limits.MAX_BATCH_MS,
        "deliveries_a_claim": limits.MAX_CLAIM,
        "items_a_page": limits.MAX_PAGE,
        "headers_a_message": limits.MAX_HEADERS,
        "headers_bytes": limits.MAX_HEADERS_BYTES,
        "key_bytes": limits.MAX_KEY_BYTES,
        "error_bytes": limits.MAX_ERROR_BYTES,
        "filter_bytes": limits.MAX_FILTER_BYTES,
        "lease_ms": limits.MAX_LEASE_MS,
        "wait_ms": limits.MAX_WAIT_MS,
    }


class _Schemas:
    """The schemas of all structs, each once, and references to them."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        kinds: list[Any] = [Problem, PublishBody, JsonPublishBody]
        for route in routes:
            kinds += [part for _, kind in route.replies for part in _parts(kind)]
            kinds.append(route.query)
            if route.body is not None and not isinstance(route.body, RawBody):
                kinds += [route.body.kind, route.body.json_kind]
        self._kinds = list({id(kind): kind for kind in kinds}.values())
        found, self.components = msgspec.json.schema_components(
            self._kinds, ref_template=_REFERENCE
        )
        self._references: dict[int, Json] = {
            id(kind): reference for kind, reference in zip(self._kinds, found, strict=True)
        }

    def of(self, kind: Any) -> Json:
        """A reference to the schema of a type."""
        parts = _parts(kind)
        if len(parts) > 1:
            return {"anyOf": [self._references[id(part)] for part in parts]}
        return self._references[id(parts[0])]

    def query(self, route: AnyRoute) -> list[Json]:
        """The query parameters of a route."""
        reference = self._references[id(route.query)]
        schema = self.components[reference["$ref"].rpartition("/")[2]]
        required = set(schema.get("required", ()))
        return [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "schema": _without_null(shape),
            }
            for name, shape in schema["properties"].items()
        ]


def _parts(kind: Any) -> tuple[Any, ...]:
    if kind is None:
        return ()
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _without_null(shape: Json) -> Json:
    """Remove null from a query parameter's schema: a URL omits the parameter instead."""
    if "anyOf" not in shape:
        return shape
    others = [part for part in shape["anyOf"] if part.get("type") != "null"]
    rest = {name: value for name, value in shape.items() if name not in {"anyOf", "default"}}
    return {**rest, **others[0]} if len(others) == 1 else {**rest, "anyOf": others}
