"""Health, readiness, metrics, the OpenAPI document, and the front page."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.errors import ServiceError
from penstock.server.call import Call
from penstock.server.replies import Plain
from penstock.server.routing import ANYONE, Empty, Need, Route
from penstock.version import VERSION
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]

_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


class Health(Struct, frozen=True):
    """The process responds."""

    status: str
    version: str
    role: str = "writer"
    """``writer``, ``standby`` while another server writes to the store, or ``reader``."""
    writer: str | None = None
    """The URL of the server that writes, if several servers share the store."""


class Front(Struct, frozen=True):
    """The server's name, version and main paths."""

    name: str
    version: str
    paths: tuple[str, ...]


async def healthz(call: Call, query: Empty, body: Empty) -> Health:  # noqa: ARG001
    """The process is alive, whether or not the store is."""
    role = call.broker.engine.role
    return Health("ok", VERSION, role.name, role.writer)


async def readyz(call: Call, query: Empty, body: Empty) -> Health:  # noqa: ARG001
    """The store has just made a real commit."""
    await call.service.check_ready()
    return Health("ready", VERSION)


async def metrics(call: Call, query: Empty, body: Empty) -> Plain:  # noqa: ARG001
    """Metrics in Prometheus' format: all for an operator, else those of the tenant (T1)."""
    credential = call.credential
    text = await call.service.metrics.render(None if credential.is_operator else credential.tenant)
    return Plain(200, text, _METRICS)


async def describe(call: Call, query: Empty, body: Empty) -> Plain:  # noqa: ARG001
    """The OpenAPI document."""
    return Plain(200, call.service.describe(), JSON)


async def front(call: Call, query: Empty, body: Empty) -> Front:  # noqa: ARG001
    """The main paths of the server."""
    return Front("penstock", VERSION, ("/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/"))


ROUTES: Final = (
    Route(
        method="GET",
        path="/",
        verb="front",
        summary="The main paths of the server",
        need=ANYONE,
        handler=front,
        query=Empty,
        replies=((JSON, Front),),
        tag="service",
    ),
    Route(
        method="GET",
        path="/healthz",
        verb="healthz",
        summary="The process is alive",
        need=ANYONE,
        handler=healthz,
        query=Empty,
        replies=((JSON, Health),),
        tag="service",
    ),
    Route(
        method="GET",
        path="/readyz",
        verb="readyz",
        summary="The store can commit: it just did",
        need=ANYONE,
        handler=readyz,
        query=Empty,
        replies=((JSON, Health),),
        errors=(ServiceError,),
        tag="service",
    ),
    Route(
        method="GET",
        path="/metrics",
        verb="metrics",
        summary="Metrics in Prometheus' format",
        need=Need("admin"),
        handler=metrics,
        query=Empty,
        replies=(("text/plain", None),),
        tag="service",
    ),
    Route(
        method="GET",
        path="/openapi.json",
        verb="openapi",
        summary="This document",
        need=ANYONE,
        handler=describe,
        query=Empty,
        replies=((JSON, None),),
        tag="service",
    ),
)
