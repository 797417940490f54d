"""Claims: lease deliveries, optionally waiting for the first one."""

from __future__ import annotations

from typing import Final

from penstock.broker.waiting import check_wait
from penstock.errors import BadInput, Busy, UnknownQueue
from penstock.model.delivery import Delivery, Release
from penstock.server.call import Call
from penstock.server.request_parsing import Body, Disconnected
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import ClaimBody, ClaimReply
from penstock.wire.codecs import JSON
from penstock.wire.payloads import JsonClaimReply

__all__ = ["ROUTES", "claim_within_bounds"]

#: Payload bytes per reply; deliveries beyond it are released, which counts as no attempt.
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024


async def claim(call: Call, query: Empty, body: ClaimBody) -> ClaimReply:  # noqa: ARG001
    """Lease deliveries."""
    check_wait(body.wait_ms)
    deliveries = await claim_within_bounds(call, body, 0)
    if not deliveries and body.wait_ms:
        deliveries = await call.wait_for(claim_within_bounds(call, body, body.wait_ms)) or []
        if call.has_left and deliveries:
            # The claim succeeded in the same loop iteration in which the caller disconnected.
            await call.broker.settle(call.name, [Release(one.receipt) for one in deliveries])
            raise Disconnected
        call.end()
    if deliveries:
        call.service.metrics.claimed(len(deliveries))
    return ClaimReply(deliveries)


async def claim_within_bounds(call: Call, body: ClaimBody, wait_ms: int) -> list[Delivery]:
    """Claim deliveries that fit one reply, and charge them to the memory budget."""
    call.hold.check()
    deliveries = await call.broker.claim(
        call.name,
        limit=body.limit,
        consumer=body.consumer,
        lease_ms=body.lease_ms,
        wait_ms=wait_ms,
    )
    if len(deliveries) > 1:
        remaining = MAX_REPLY_BYTES
        for index, delivery in enumerate(deliveries):
            remaining -= len(delivery.payload)
            if remaining < 0 and index:
                excess = [Release(item.receipt) for item in deliveries[index:]]
                await call.broker.settle(call.name, excess)
                deliveries = deliveries[:index]
                break
    if deliveries:
        await _hold(call, deliveries)
    return deliveries


async def _hold(call: Call, deliveries: list[Delivery]) -> None:
    try:
        call.hold.take(sum(len(delivery.payload) for delivery in deliveries))
    except Busy:
        # The server cannot send them, so other consumers must be able to claim them.
        await call.broker.settle(call.name, [Release(one.receipt) for one in deliveries])
        raise


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
)
