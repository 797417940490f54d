"""Failures of a queue, grouped by error."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.errors import BadInput, Busy, UnknownQueue
from penstock.model.failures import FAILURE_SCAN, Failures
from penstock.server.call import Call
from penstock.server.routing import Empty, Need, Route
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]


class FailuresQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which failures, and the fingerprint whose message ids are wanted."""

    where: str | None = None
    fingerprint: str | None = None
    limit: int = FAILURE_SCAN


async def failures(call: Call, query: FailuresQuery, body: Empty) -> Failures:  # noqa: ARG001
    """The failed deliveries by error."""
    return await call.scan(
        call.broker.failures(
            call.name, where=query.where, fingerprint=query.fingerprint, limit=query.limit
        )
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/queues/{queue}/failures",
        verb="failures",
        summary="The failed deliveries of a queue, grouped by error",
        need=Need("read", "queue"),
        handler=failures,
        query=FailuresQuery,
        replies=((JSON, Failures),),
        errors=(BadInput, UnknownQueue, Busy),
        tag="deliveries",
    ),
)
