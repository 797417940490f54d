"""Writes of many batches under one id, which publish each row once."""

from __future__ import annotations

from typing import Final

from penstock.errors import BadInput, Conflict
from penstock.model.writes import Write
from penstock.server.call import Call
from penstock.server.request_parsing import Body
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import BeginWriteBody, FinishWriteBody
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]


async def begin_write(call: Call, query: Empty, body: BeginWriteBody) -> Write:  # noqa: ARG001
    """Begin a write, unless it has begun already."""
    return await call.broker.begin_write(
        call.name, body.id, body.run, number=body.number, all_topics=body.all_topics
    )


async def finish_write(call: Call, query: Empty, body: FinishWriteBody) -> Write:  # noqa: ARG001
    """Record that a write is finished."""
    return await call.broker.finish_write(
        call.name, body.id, body.run, body.rows, number=body.number
    )


_PUBLISH: Final = Need("publish", "topic")

ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/topics/{topic}/writes",
        verb="begin_write",
        summary="Begin a write of many batches, or return the run that has begun it",
        need=_PUBLISH,
        handler=begin_write,
        query=Empty,
        body=Body(BeginWriteBody),
        replies=((JSON, Write),),
        errors=(BadInput, Conflict),
        tag="topics",
    ),
    Route(
        method="POST",
        path="/v1/topics/{topic}/writes/finish",
        verb="finish_write",
        summary="Record that a write of many batches is finished",
        need=_PUBLISH,
        handler=finish_write,
        query=Empty,
        body=Body(FinishWriteBody),
        replies=((JSON, Write),),
        errors=(BadInput, Conflict),
        tag="topics",
    ),
)
