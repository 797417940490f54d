"""Claims: lease deliveries, optionally waiting for the first one."""

from __future__ import annotations

from typing import Final

from penstock.broker.waiting import check_wait
from penstock.errors import BadInput, Busy, UnknownQueue
from penstock.model.claim_queues import check_claim_queues
from penstock.server.call import Call
from penstock.server.claiming import claim_within_bounds, or_wait
from penstock.server.request_parsing import Body
from penstock.server.routing import ANY_NAME, Empty, Need, Route
from penstock.wire.bodies import ClaimBody, ClaimQueuesBody, ClaimReply
from penstock.wire.codecs import JSON
from penstock.wire.payloads import JsonClaimReply

__all__ = ["ROUTES"]


async def claim(call: Call, query: Empty, body: ClaimBody) -> ClaimReply:  # noqa: ARG001
    """Lease deliveries of one queue."""
    return await _claim(call, body)


async def claim_queues(call: Call, query: Empty, body: ClaimQueuesBody) -> ClaimReply:  # noqa: ARG001
    """Lease deliveries of several queues."""
    for name in check_claim_queues(body.queues):
        call.check("consume", name)
    return await _claim(call, body)


async def _claim(call: Call, body: ClaimBody | ClaimQueuesBody) -> ClaimReply:
    check_wait(body.wait_ms)
    deliveries = await claim_within_bounds(call, body, 0)
    return ClaimReply(await or_wait(call, body, deliveries))


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/queues/{queue}/claims",
        verb="claim",
        summary="Lease deliveries, waiting up to wait_ms for the first",
        need=Need("consume", "queue"),
        handler=claim,
        query=Empty,
        body=Body(ClaimBody, required=False),
        replies=((JSON, JsonClaimReply),),
        errors=(BadInput, UnknownQueue, Busy),
        tag="flow",
    ),
    Route(
        method="POST",
        path="/v1/claims",
        verb="claim_queues",
        summary="Lease deliveries of several queues, in the given order or fairly",
        need=Need("consume", ANY_NAME),
        handler=claim_queues,
        query=Empty,
        body=Body(ClaimQueuesBody),
        replies=((JSON, JsonClaimReply),),
        errors=(BadInput, UnknownQueue, Busy),
        tag="flow",
    ),
)
