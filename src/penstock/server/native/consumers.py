"""Consumers of ordered queues: join, heartbeat, leave (O1)."""

from __future__ import annotations

from typing import Final

from penstock.errors import BadInput, Conflict, UnknownQueue
from penstock.model.delivery import Ownership
from penstock.server.call import Call
from penstock.server.request_parsing import Body
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import JoinBody
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]


async def join(call: Call, query: Empty, body: JoinBody) -> Ownership:  # noqa: ARG001
    """Join, or heartbeat: renew the lease and take or give partitions."""
    return await call.broker.join(call.name, body.consumer)


async def leave(call: Call, query: Empty, body: Empty) -> None:  # noqa: ARG001
    """Release every partition of the consumer immediately."""
    queue, consumer = call.parameters
    await call.broker.leave(queue, consumer)


_CONSUME: Final = Need("consume", "queue")

ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/queues/{queue}/consumers",
        verb="join",
        summary="Join an ordered queue, or heartbeat; returns the partitions owned",
        need=_CONSUME,
        handler=join,
        query=Empty,
        body=Body(JoinBody),
        replies=((JSON, Ownership),),
        errors=(BadInput, UnknownQueue, Conflict),
        tag="flow",
    ),
    Route(
        method="DELETE",
        path="/v1/queues/{queue}/consumers/{consumer}",
        verb="leave",
        summary="Leave an ordered queue; its partitions are free immediately",
        need=_CONSUME,
        handler=leave,
        query=Empty,
        status=204,
        errors=(BadInput, UnknownQueue, Conflict),
        tag="flow",
    ),
)
