"""One message: its metadata, payload, deliveries, result, history, why it waits; and its cancel.

A message may be in queues that the caller has no grant for, so these need a consume grant on
everything; a result belongs to one queue and needs a grant on that queue. To cancel needs the
admin grant: on the queue, or on everything if no queue is named. A narrower credential is refused
rather than having its call carried out in part.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.broker.waiting import check_wait
from penstock.errors import BadInput, Busy, UnknownDelivery, UnknownMessage, UnknownQueue
from penstock.model.delivery import CancelReply, FoundMessages, MessageDeliveries
from penstock.model.reports import Why
from penstock.server.call import Call
from penstock.server.replies import Plain
from penstock.server.routing import ANY_NAME, EVERYTHING, Empty, Need, Route
from penstock.wire.bodies import EventList, ResultReply
from penstock.wire.codecs import JSON
from penstock.wire.payloads import JsonMessageDeliveries

__all__ = ["ROUTES"]

_MAX_DIGITS: Final = 18
_BYTES: Final = "application/octet-stream"


class MessageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to include the payload."""

    payload: bool = True


class ResultQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The queue of the delivery, and how long to wait for its end."""

    queue: str
    wait_ms: int = 0


class CancelQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The queue to cancel the message in; without it, in every queue."""

    queue: str | None = None


class FindQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The idempotency id and its partition key, or the key and the offset to search from."""

    id: str | None = None
    key: str | None = None
    partition_key: str | None = None
    start: int = field(default=0, name="from")


class ExplainQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The queue to explain."""

    queue: str


async def get_message(call: Call, query: MessageQuery, body: Empty) -> MessageDeliveries:  # noqa: ARG001
    """The message and its state in every queue."""
    found = await call.broker.message(_id(call.name))
    deliveries = tuple(
        # A receipt settles the delivery: only a consumer of its queue may see it.
        item if call.credential.allows("consume", item.queue) else replace(item, receipt=None)
        for item in found.deliveries
    )
    payload = found.payload if query.payload else b""
    return replace(found, payload=payload, deliveries=deliveries)


async def get_payload(call: Call, query: Empty, body: Empty) -> Plain:  # noqa: ARG001
    """The payload, byte for byte as published (P3)."""
    found = await call.broker.message(_id(call.name))
    content_type = found.message.content_type or _BYTES
    if not content_type.isascii() or not content_type.isprintable():
        content_type = _BYTES
    # Payloads are untrusted: a browser must not run one as a page of this origin.
    headers = (
        (b"content-security-policy", b"sandbox; default-src 'none'"),
        (b"x-content-type-options", b"nosniff"),
    )
    return Plain(200, found.payload, content_type, headers)


async def get_result(call: Call, query: ResultQuery, body: Empty) -> ResultReply:  # noqa: ARG001
    """How the delivery ended."""
    call.check("read", query.queue)
    check_wait(query.wait_ms)
    message_id = _id(call.name)
    result = await call.broker.result(query.queue, message_id)
    if result is None and query.wait_ms:
        result = await call.wait_for(
            call.broker.result(query.queue, message_id, wait_ms=query.wait_ms)
        )
        call.end()
    return ResultReply(result)


async def cancel(call: Call, query: CancelQuery, body: Empty) -> CancelReply:  # noqa: ARG001
    """Remove the message's deliveries; all of them need a grant on every queue."""
    call.check("admin", EVERYTHING if query.queue is None else query.queue)
    return await call.broker.cancel(_id(call.name), queue=query.queue)


async def find(call: Call, query: FindQuery, body: Empty) -> FoundMessages:  # noqa: ARG001
    """The messages of a topic with this idempotency id or key."""
    finding = call.broker.find(
        call.name,
        id=query.id,
        key=query.key,
        partition_key=query.partition_key,
        start=query.start,
    )
    return await finding if query.key is None else await call.scan(finding)


async def explain(call: Call, query: ExplainQuery, body: Empty) -> Why:  # noqa: ARG001
    """Why the queue does, or does not, hand out the message."""
    call.check("read", query.queue)

    def may_read(queues: Collection[str]) -> bool:
        # The caller may read the log, or a queue that has the message.
        allows = call.credential.allows
        return allows("read", EVERYTHING) or any(allows("read", name) for name in queues)

    return await call.broker.explain_to(query.queue, _id(call.name), may_read)


async def history(call: Call, query: Empty, body: Empty) -> EventList:  # noqa: ARG001
    """Every recorded transition of the message."""
    return EventList(await call.broker.history(_id(call.name)))


def _id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        raise BadInput(f"{text[:100]!r} is not a message id.", field="id")
    return int(text)


_EVERYTHING: Final = Need("read")
#: The handler checks the grant on the queue that the query names.
_BY_QUEUE: Final = Need("read", ANY_NAME)
_ADMIN_BY_QUEUE: Final = Need("admin", ANY_NAME)
_PATH: Final = "/v1/messages/{id}"
_ERRORS: Final = (BadInput, UnknownMessage)

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/messages",
        verb="find",
        summary="Find messages of a topic by idempotency id or by key",
        need=_EVERYTHING,
        handler=find,
        query=FindQuery,
        replies=((JSON, FoundMessages),),
        errors=(BadInput, Busy),
        tag="messages",
    ),
    Route(
        method="GET",
        path=_PATH,
        verb="message",
        summary="A message and its state in every queue",
        need=_EVERYTHING,
        handler=get_message,
        query=MessageQuery,
        replies=((JSON, JsonMessageDeliveries),),
        errors=_ERRORS,
        tag="messages",
    ),
    Route(
        method="DELETE",
        path=_PATH,
        verb="cancel",
        summary="Remove a message from one queue or from every queue, waiting or in flight",
        need=_ADMIN_BY_QUEUE,
        handler=cancel,
        query=CancelQuery,
        replies=((JSON, CancelReply),),
        errors=(*_ERRORS, UnknownQueue),
        tag="messages",
    ),
    Route(
        method="GET",
        path=_PATH + "/payload",
        verb="payload",
        summary="A message's payload as published",
        need=_EVERYTHING,
        handler=get_payload,
        query=Empty,
        replies=(("*/*", None),),
        errors=_ERRORS,
        tag="messages",
    ),
    Route(
        method="GET",
        path=_PATH + "/result",
        verb="result",
        summary="How a delivery ended, with the result of its ack, waiting up to wait_ms for it",
        need=_BY_QUEUE,
        handler=get_result,
        query=ResultQuery,
        replies=((JSON, ResultReply),),
        errors=(*_ERRORS, UnknownQueue, UnknownDelivery, Busy),
        tag="messages",
    ),
    Route(
        method="GET",
        path=_PATH + "/explain",
        verb="explain",
        summary="Why a queue does, or does not, hand out a message",
        need=_BY_QUEUE,
        handler=explain,
        query=ExplainQuery,
        replies=((JSON, Why),),
        errors=(*_ERRORS, UnknownQueue),
        tag="messages",
    ),
    Route(
        method="GET",
        path=_PATH + "/history",
        verb="history",
        summary="Every recorded transition of a message",
        need=_EVERYTHING,
        handler=history,
        query=Empty,
        replies=((JSON, EventList),),
        errors=_ERRORS,
        tag="messages",
    ),
)
