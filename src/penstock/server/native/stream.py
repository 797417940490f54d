"""The stream: deliveries pushed as server-sent events, with credit.

At most ``credit`` deliveries of a stream are unsettled at a time; settling one, by the ordinary
settlements path, or letting its lease lapse gives the credit back. A stream that is disconnected
leaves its deliveries claimed: their receipts still settle them, or the leases lapse. A stream
without credit whose leases all lapsed ends: its reader hangs and would only use up attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from msgspec import Struct

from penstock.api import ANONYMOUS
from penstock.broker.claim import check_lease
from penstock.broker.scope import to_where
from penstock.errors import BadInput, Busy, PenstockError, UnknownQueue
from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_CLAIM, check_name, check_queue_name
from penstock.server.call import Call
from penstock.server.claiming import claim_within_bounds
from penstock.server.replies import Streamed, pieces
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import ClaimBody
from penstock.wire.codecs import EVENT_STREAM, encode_json
from penstock.wire.payloads import shown_delivery
from penstock.wire.problems import to_problem

__all__ = ["ROUTES"]

#: Interval of keep-alive comments; proxies close idle connections after a minute.
_HEARTBEAT_MS: Final = 15_000
#: Deliveries per claim of a stream: the most, and the number for the first claim, when their
#: size is not known yet.
_BATCH: Final = 100
_FIRST_BATCH: Final = 16
#: Target payload bytes per claim, estimated from the previous one.
_BATCH_BYTES: Final = 4 * 1024 * 1024
#: Payload bytes that are encoded and sent in one step.
_EVENTS_BYTES: Final = 256 * 1024


class StreamQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The consumer, its credit, the lease of each delivery, and the selector."""

    consumer: str = ANONYMOUS
    credit: int = 32
    lease_ms: int | None = None
    where: str | None = None


async def stream(call: Call, query: StreamQuery, body: Empty) -> Streamed:  # noqa: ARG001
    """Push deliveries for as long as the caller stays connected."""
    check_queue_name(call.name)
    # Refuse everything that a claim would refuse before the reply begins (E1).
    check_name(query.consumer, "consumer")
    if query.lease_ms is not None:
        check_lease(query.lease_ms)
    if not 1 <= query.credit <= MAX_CLAIM:
        raise BadInput(
            f"credit is {query.credit}; it is from 1 to {MAX_CLAIM}.",
            field="credit",
            limit=MAX_CLAIM,
        )
    to_where(query.where)
    await call.broker.queue(call.name)
    call.service.check_waits(call.credential.tenant)
    return Streamed(EVENT_STREAM, _events(call, query))


async def _events(call: Call, query: StreamQuery) -> AsyncGenerator[bytes, None]:
    yield b": penstock\n\n"
    try:
        async for event in _deliveries(call, query):
            yield event
    except PenstockError as error:
        # The queue was deleted, the credential revoked or the store closed: send a last event.
        problem = encode_json(to_problem(error, call.request_id))
        yield b"event: problem\ndata: %s\n\n" % problem
    finally:
        call.end()


async def _deliveries(call: Call, query: StreamQuery) -> AsyncGenerator[bytes, None]:
    with call.service.streams.open(call.broker.tenant, call.name, query.credit) as opened:
        batch = _FIRST_BATCH
        while not call.service.stopping.is_set():
            await call.check_again()
            remaining = opened.remaining(call.service.now())
            if not remaining:
                await call.wait_for(opened.credit_given(_HEARTBEAT_MS))
                yield b": credit\n\n" if opened.remaining(call.service.now()) else b": waiting\n\n"
                continue
            wanted = ClaimBody(
                min(remaining, batch), query.lease_ms, 0, query.consumer, query.where
            )
            deliveries = await claim_within_bounds(call, wanted, 0) or await call.wait_for(
                claim_within_bounds(call, wanted, _HEARTBEAT_MS)
            )
            if not deliveries:
                yield b": idle\n\n"
                continue
            call.service.metrics.claimed(len(deliveries))
            sizes = [len(delivery.payload) for delivery in deliveries]
            for delivery in deliveries:
                opened.hand_out(delivery.receipt, delivery.lease_deadline, len(delivery.payload))
            for begin, end in pieces(sizes, _EVENTS_BYTES):
                yield b"".join(map(_event, deliveries[begin:end]))
                await asyncio.sleep(0)
            # They are sent: from here on they only count against the stream's credit.
            call.hold.set(0)
            batch = _next_batch(sizes)


def _next_batch(sizes: Sequence[int]) -> int:
    """How many deliveries to claim next, assuming payloads of the same average size."""
    return max(1, min(_BATCH, len(sizes) * _BATCH_BYTES // max(1, sum(sizes))))


def _event(delivery: Delivery) -> bytes:
    data = encode_json(shown_delivery(delivery))
    # JSON is sent as published and may span lines; each line of an event needs its own prefix.
    lines = b"\ndata: ".join(data.splitlines())
    return b"event: delivery\nid: %s\ndata: %s\n\n" % (delivery.receipt.encode(), lines)


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/queues/{queue}/stream",
        verb="stream",
        summary="Deliveries as server-sent events, with at most credit of them unsettled",
        need=Need("consume", "queue"),
        handler=stream,
        query=StreamQuery,
        replies=((EVENT_STREAM, None),),
        errors=(BadInput, UnknownQueue, Busy),
        tag="flow",
        claims=True,
    ),
)
