"""Deliveries in bulk: browse, replay, purge, history. Nothing here consumes."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from penstock.errors import BadInput, Busy, Conflict, OtherStore, UnknownQueue
from penstock.model.delivery import Page, PurgeReply, ReplayReply, SweepReply
from penstock.model.limits import MAX_ASSIGN, MAX_PAGE
from penstock.model.reports import HistoryPage
from penstock.model.states import State
from penstock.server.call import Call
from penstock.server.loading import ARROW_READS, load
from penstock.server.replies import Streamed, pieces
from penstock.server.request_parsing import Body, ListBody
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import PurgeBody, ReplayBody, SweepBody
from penstock.wire.codecs import ARROW_STREAM, JSON
from penstock.wire.payloads import JsonPage

__all__ = ["ROUTES"]

#: Deliveries in a page with payloads: a hundred of the largest make a large reply already.
MAX_PAYLOAD_PAGE: Final = 100
#: Payload bytes of one page; one payload alone may be larger.
PAGE_BYTES: Final = 16 * 1024 * 1024


class PeekQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which deliveries to browse."""

    state: State = State.AVAILABLE
    where: str | None = None
    limit: int = 100
    cursor: str | None = None
    payloads: bool = False
    format: str = "json"
    """``json`` or ``arrow``: a page, or as many deliveries as fit one stream."""
    compression: str = "none"
    """For an Arrow stream: ``none``, ``lz4`` or ``zstd``."""


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages' transitions to read."""

    start: int = field(default=0, name="from")
    limit: int = MAX_PAGE
    to: int | None = None
    """For an Arrow stream: the offset to stop before."""
    format: str = "json"
    """``json`` or ``arrow``: a page, or as many transitions as fit one stream."""
    compression: str = "none"
    """For an Arrow stream: ``none``, ``lz4`` or ``zstd``."""


async def peek(call: Call, query: PeekQuery, body: Empty) -> Page | Streamed:  # noqa: ARG001
    """Browse deliveries in one state."""
    if _is_arrow(query.format):
        await load(ARROW_READS)
        from penstock.server.bulk import delivery_stream  # noqa: PLC0415  (an extra)

        return await delivery_stream(
            call,
            call.name,
            query.state,
            query.cursor,
            where=query.where,
            payloads=query.payloads,
            compression=query.compression,
        )
    if query.payloads and query.limit > MAX_PAYLOAD_PAGE:
        raise BadInput(
            f"A page with payloads has at most {MAX_PAYLOAD_PAGE} deliveries.",
            field="limit",
            limit=MAX_PAYLOAD_PAGE,
        )
    looking = _page(call, query)
    return await looking if query.where is None else await call.scan(looking)


async def _page(call: Call, query: PeekQuery) -> Page:
    """Deliveries in bounds; with payloads, as many as fit one page, and the memory budget."""

    async def look(limit: int, *, payloads: bool) -> Page:
        return await call.broker.peek(
            call.name,
            query.state,
            where=query.where,
            limit=limit,
            cursor=query.cursor,
            payloads=payloads,
        )

    await call.turn_for(query.limit)
    page = await look(query.limit, payloads=False)
    if not query.payloads or not page.items:
        return page
    sizes = [item.message.size for item in page.items]
    _, fitting = next(pieces(sizes, PAGE_BYTES))
    call.hold.take(sum(sizes[:fitting]))
    return await look(fitting, payloads=True)


async def replay(call: Call, query: Empty, body: ReplayBody) -> ReplayReply:  # noqa: ARG001
    """Make deliveries available again."""
    replaying = call.broker.replay(
        call.name,
        body.source,
        where=body.where,
        ids=body.ids,
        limit=body.limit,
        rate=body.rate,
        dry_run=body.dry_run,
        replay_id=body.replay_id,
        ttl_ms=body.ttl_ms,
    )
    # A replay that moves deliveries continues after a disconnect; one that only counts stops.
    return await call.scan(replaying) if body.dry_run else await replaying


async def purge(call: Call, query: Empty, body: PurgeBody) -> PurgeReply:  # noqa: ARG001
    """Remove deliveries permanently."""
    return await call.broker.purge(
        call.name, body.state, where=body.where, ids=body.ids, limit=body.limit
    )


async def history(call: Call, query: HistoryQuery, body: Empty) -> HistoryPage | Streamed:  # noqa: ARG001
    """The transitions in the queue, by message."""
    if _is_arrow(query.format):
        await load(ARROW_READS)
        from penstock.server.bulk import history_stream  # noqa: PLC0415  (an extra)

        return await history_stream(
            call, query.start, query.to, queue=call.name, compression=query.compression
        )
    if query.to is not None:
        raise BadInput("to requires format=arrow.", field="to")
    return await call.broker.queue_history(call.name, query.start, limit=query.limit)


async def sweep(call: Call, query: Empty, body: SweepBody) -> SweepReply:  # noqa: ARG001
    """Apply the passage of time now, in every tenant; keepers do so at intervals anyway."""
    call.credential.check_operator()
    return await call.broker.sweep(body.limit)


def _is_arrow(format: str) -> bool:
    if format not in {"json", "arrow"}:
        raise BadInput("format must be json or arrow.", field="format")
    return format == "arrow"


_READ: Final = Need("read", "queue")
_ADMIN: Final = Need("admin", "queue")

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/queues/{queue}/deliveries",
        verb="peek",
        summary="Browse deliveries by state and filter, without consuming them",
        need=_READ,
        handler=peek,
        query=PeekQuery,
        replies=((JSON, JsonPage), (ARROW_STREAM, None)),
        errors=(BadInput, UnknownQueue, OtherStore, Busy),
        tag="deliveries",
    ),
    Route(
        method="POST",
        path="/v1/queues/{queue}/replays",
        verb="replay",
        summary="Make failed, done or logged messages available again, by filter",
        need=_ADMIN,
        handler=replay,
        query=Empty,
        body=ListBody(ReplayBody, "ids", MAX_ASSIGN, required=False),
        replies=((JSON, ReplayReply),),
        errors=(BadInput, UnknownQueue, Conflict, Busy),
        tag="deliveries",
    ),
    Route(
        method="POST",
        path="/v1/queues/{queue}/purges",
        verb="purge",
        summary="Permanently remove deliveries in one state, by filter or ids",
        need=_ADMIN,
        handler=purge,
        query=Empty,
        body=ListBody(PurgeBody, "ids", MAX_ASSIGN, required=True),
        replies=((JSON, PurgeReply),),
        errors=(BadInput, UnknownQueue, Conflict),
        tag="deliveries",
    ),
    Route(
        method="GET",
        path="/v1/queues/{queue}/history",
        verb="queue_history",
        summary="The transitions in a queue, by message",
        need=_READ,
        handler=history,
        query=HistoryQuery,
        replies=((JSON, HistoryPage), (ARROW_STREAM, None)),
        errors=(BadInput, UnknownQueue),
        tag="deliveries",
    ),
    Route(
        method="POST",
        path="/v1/sweeps",
        verb="sweep",
        summary="Apply the passage of time now; keepers do so at intervals anyway",
        need=Need("admin"),
        handler=sweep,
        query=Empty,
        body=Body(SweepBody, required=False),
        replies=((JSON, SweepReply),),
        errors=(BadInput,),
        tag="deliveries",
    ),
)
