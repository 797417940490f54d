"""Claims of callers, for every door: within the memory budget, for callers that are still there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from penstock.broker import Broker
from penstock.errors import BadInput, Busy
from penstock.model.delivery import Delivery, Release
from penstock.server.budget import Hold
from penstock.server.call import Call
from penstock.server.request_parsing import Disconnected
from penstock.wire.bodies import ClaimBody, ClaimQueuesBody

__all__ = ["claim_within_bounds", "limit_of", "or_wait", "release", "within_bounds"]

#: Payload bytes per reply; deliveries beyond it are released, which counts as no attempt.
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024


async def or_wait(
    call: Call, body: ClaimBody | ClaimQueuesBody, deliveries: list[Delivery]
) -> list[Delivery]:
    """The deliveries; if there are none, wait for some as long as the body says."""
    if not deliveries and body.wait_ms:
        deliveries = await call.wait_for(claim_within_bounds(call, body, body.wait_ms)) or []
        if call.has_left and deliveries:
            # The claim succeeded in the same loop iteration in which the caller disconnected.
            await release(call.broker, deliveries)
            raise Disconnected
        call.end()
    if deliveries:
        call.service.metrics.claimed(len(deliveries))
    return deliveries


async def claim_within_bounds(
    call: Call, body: ClaimBody | ClaimQueuesBody, wait_ms: int
) -> list[Delivery]:
    """Claim deliveries that fit one reply, and charge them to the memory budget."""
    call.hold.check()
    several = body if isinstance(body, ClaimQueuesBody) else None
    deliveries = await call.broker.claim(
        call.name if several is None else several.queues,
        order="given" if several is None else several.order,
        limit=await limit_of(call, body),
        consumer=body.consumer,
        lease_ms=body.lease_ms,
        wait_ms=wait_ms,
        where=body.where,
    )
    return await within_bounds(call.broker, call.hold, deliveries)


async def limit_of(call: Call, body: ClaimBody | ClaimQueuesBody) -> int:
    """How many deliveries the caller is granted at most."""
    if isinstance(body, ClaimQueuesBody) or not body.apart:
        return body.limit
    if body.wait_ms:
        raise BadInput(
            "A claim for several callers (apart) does not wait: each has to wait in a claim of its "
            "own.",
            field="wait_ms",
        )
    return await call.broker.most_apart(call.name, body.limit)


async def within_bounds(
    broker: Broker, hold: Hold, deliveries: list[Delivery], most: int = MAX_REPLY_BYTES
) -> list[Delivery]:
    """The deliveries that fit one reply, charged to the memory budget; the rest is released.

    One delivery always fits.
    """
    size = sum([len(delivery.payload) for delivery in deliveries])
    if size > most and len(deliveries) > 1:
        sizes = accumulate(len(delivery.payload) for delivery in deliveries)
        fitting = max(1, sum(total <= most for total in sizes))
        await release(broker, deliveries[fitting:])
        deliveries = deliveries[:fitting]
        size = sum([len(delivery.payload) for delivery in deliveries])
    if deliveries:
        await _hold(broker, hold, deliveries, size)
    return deliveries


async def _hold(broker: Broker, hold: Hold, deliveries: list[Delivery], size: int) -> None:
    try:
        hold.take(size)
    except Busy:
        # The server cannot send them, so other consumers must be able to claim them.
        await release(broker, deliveries)
        raise


async def release(broker: Broker, deliveries: Sequence[Delivery]) -> None:
    """Give deliveries back that will not be sent; it counts as no attempt."""
    by_queue: dict[str, list[Release]] = {}
    for delivery in deliveries:
        by_queue.setdefault(delivery.queue, []).append(Release(delivery.receipt))
    for queue, releases in by_queue.items():
        await broker.settle(queue, releases)
