"""Log entries of one queue or one batch, which a job reads to resume or repeat its work."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from penstock.errors import BadInput, UnknownQueue
from penstock.model.delivery import LogPage
from penstock.model.limits import MAX_PAGE
from penstock.server.call import Call
from penstock.server.routing import Empty, Need, Route
from penstock.wire.codecs import JSON
from penstock.wire.payloads import JsonLogPage

__all__ = ["ROUTES"]


class QueueLogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to start, and how many entries of the log to examine."""

    start: int = field(default=0, name="from")
    limit: int = MAX_PAGE


class BatchLogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The batch, where to start, and how many entries of the log to examine."""

    id: str
    start: int = field(default=0, name="from")
    limit: int = MAX_PAGE


async def queue_log(call: Call, query: QueueLogQuery, body: Empty) -> LogPage:  # noqa: ARG001
    """Entries whose messages have deliveries in the queue."""
    return await call.broker.queue_log(call.name, query.start, limit=query.limit)


async def batch_log(call: Call, query: BatchLogQuery, body: Empty) -> LogPage:  # noqa: ARG001
    """Entries of one batch."""
    return await call.broker.batch_log(call.name, query.id, query.start, limit=query.limit)


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/queues/{queue}/log",
        verb="queue_log",
        summary="Log entries whose messages have deliveries in a queue, with payloads",
        need=Need("read", "queue"),
        handler=queue_log,
        query=QueueLogQuery,
        replies=((JSON, JsonLogPage),),
        errors=(BadInput, UnknownQueue),
        tag="queues",
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/batch",
        verb="batch_log",
        summary="Log entries that were published under a batch id, with payloads",
        need=Need("publish", "topic"),
        handler=batch_log,
        query=BatchLogQuery,
        replies=((JSON, JsonLogPage),),
        errors=(BadInput,),
        tag="topics",
    ),
)
