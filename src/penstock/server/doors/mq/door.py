"""MQ: queues of raw bytes, in six routes without JSON.

A queue of MQ is the queue of that name, with the messages of the topic of that name. MQ accepts
messages for a queue that does not exist yet, and delivers them when it is created. So a post to
such a queue notes the end of the log, and creating the queue starts there (P1).
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from penstock.broker import Broker
from penstock.errors import (
    AccessError,
    BadInput,
    Conflict,
    MethodNotAllowed,
    NotFound,
    PenstockError,
    Unauthenticated,
    UnknownMessage,
    UnknownQueue,
    UnknownRoute,
)
from penstock.model.delivery import Ack
from penstock.model.limits import MAX_ATTEMPTS
from penstock.model.queue import Start
from penstock.model.states import State
from penstock.server.call import Call
from penstock.server.claiming import claim_within_bounds
from penstock.server.doors.message_uuid import message_uuid, uuid_message
from penstock.server.doors.path_door import DoorRoute, PathDoor
from penstock.server.head import ends_connection
from penstock.server.replies import Plain
from penstock.server.service import Service
from penstock.settings import Settings
from penstock.wire.bodies import ClaimBody

__all__ = ["ROUTES", "MqDoor", "open_door"]

PREFIX: Final = "/mq"
#: How long a fetched message stays hidden, as MQ is shipped.
REDELIVERY_MS: Final = 10_000
#: Offsets from which queues that do not exist yet have to be caught up.
_WAITING_KIND: Final = "mq-waiting"
#: MQ's code takes letters only, but its documentation has ``queue001``.
_QUEUE: Final = re.compile(r"[a-z][a-z0-9]*")
_ID: Final = re.compile(r"[a-z0-9-]+")
_UUID_VERSION: Final = 1
_RETRY_AFTER: Final = (b"retry-after", b"10")
_CLOSE: Final = ((b"connection", b"close"),)
_BYTES: Final = "application/octet-stream"
#: Passes of the router that catch up a new queue before the reply; the keeper does the rest.
_ROUTE_PASSES: Final = 3


async def find_queue(call: Call) -> Plain:
    """200 if the queue exists."""
    call.check("read", call.name)
    await call.broker.queue(call.name)
    return Plain(200)


async def create_queue(call: Call) -> Plain:
    """Create the queue, with the messages that were posted to it before."""
    call.check("admin", call.name)
    broker, engine, queue = call.broker, call.broker.engine, call.name
    document = _document(broker, queue)
    # The end is read first: a post between this and the creation is not missed.
    end = await broker.log_end()
    noted = await engine.get_document(_WAITING_KIND, document)
    start = Start(Start.OFFSET, end if noted is None else min(end, int(noted)))
    await broker.ensure_queue(
        queue,
        f"topic = '{queue}'",
        start=start,
        lease_ms=REDELIVERY_MS,
        max_attempts=MAX_ATTEMPTS,
        description="Created through the MQ door.",
    )
    await _catch_up(broker, queue)
    await engine.delete_document(_WAITING_KIND, document)
    return Plain(201)


async def delete_queue(call: Call) -> Plain:
    """Delete the queue and the messages that wait in it."""
    call.check("admin", call.name)
    with suppress(UnknownQueue):
        await call.broker.delete_queue(call.name)
    await call.broker.engine.delete_document(_WAITING_KIND, _document(call.broker, call.name))
    return Plain(200)


async def post(call: Call) -> Plain:
    """Store a message, whether or not its queue exists."""
    queue, broker = call.name, call.broker
    call.check("publish", queue)
    body = await call.read_body(call.service.payload_bytes)
    try:
        await broker.queue(queue)
    except UnknownQueue:
        end = await broker.log_end()
        await broker.engine.add_document(_WAITING_KIND, _document(broker, queue), b"%d" % end)
    published = await broker.publish(queue, body, auto_create=False, max_attempts=MAX_ATTEMPTS)
    return Plain(201, headers=(_id_header(published.id),))


async def fetch(call: Call) -> Plain:
    """Hide the next message and return it."""
    call.check("consume", call.name)
    try:
        deliveries = await claim_within_bounds(call, ClaimBody(consumer="mq"), 0)
    except UnknownQueue:
        return Plain(204)
    if not deliveries:
        return Plain(204)
    (delivery,) = deliveries
    call.service.metrics.claimed(1)
    # Payloads are untrusted: a browser must not run one as a page of this origin.
    headers = (
        _id_header(delivery.message.id),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
        (b"x-content-type-options", b"nosniff"),
    )
    return Plain(200, delivery.payload, _BYTES, headers)


async def delete_message(call: Call) -> Plain:
    """Delete a message, waiting or hidden; an unknown one is accepted too."""
    queue, text = call.parameters
    call.check("consume", queue)
    message_id = uuid_message(text, _UUID_VERSION)
    if message_id is not None:
        with suppress(UnknownMessage, UnknownQueue):
            await _delete(call.broker, queue, message_id)
    return Plain(202)


async def _delete(broker: Broker, queue: str, message_id: int) -> None:
    """Ack the message if it is hidden; otherwise cancel it."""
    for shown in (await broker.message(message_id)).deliveries:
        if shown.queue == queue and shown.state is State.IN_FLIGHT and shown.receipt is not None:
            reply = await broker.settle(queue, [Ack(shown.receipt)])
            if reply.outcomes[0].ok:
                return
    cancelled = await broker.cancel(message_id, queue=queue)
    if cancelled.pending:
        await _catch_up(broker, queue)
        await broker.cancel(message_id, queue=queue)


async def _catch_up(broker: Broker, queue: str) -> None:
    for _ in range(_ROUTE_PASSES):
        if (await broker.route(queue)).cursor is None:
            return


def _document(broker: Broker, queue: str) -> str:
    return f"{broker.tenant}/{queue}"


def _id_header(message_id: int) -> tuple[bytes, bytes]:
    return b"x-message-id", message_uuid(message_id, _UUID_VERSION).encode()


_Q: Final = PREFIX + "/{queue}"
_M: Final = _Q + "/messages"
ROUTES: Final = (
    DoorRoute("GET", _Q, "find_queue", find_queue),
    DoorRoute("PUT", _Q, "create_queue", create_queue),
    DoorRoute("DELETE", _Q, "delete_queue", delete_queue),
    DoorRoute("POST", _M, "post", post),
    DoorRoute("GET", _M, "fetch", fetch),
    DoorRoute("DELETE", _M + "/{id}", "delete_message", delete_message),
)


class MqDoor(PathDoor):
    """The six routes, below ``/mq``."""

    name = "mq"
    #: curl posts the content type of a form, and nothing marks a fetch as one of MQ.
    page_proof = None

    def __init__(self) -> None:
        super().__init__(ROUTES)

    def takes(self, call: Call) -> bool:
        """Everything below ``/mq/``."""
        return call.path.startswith(PREFIX + "/")

    def find(self, call: Call) -> None:
        """Find the route; raises ``UnknownRoute`` for any other path or method."""
        super().find(call)
        queue, *ids = call.parameters
        if _QUEUE.fullmatch(queue) is None or any(_ID.fullmatch(text) is None for text in ids):
            raise UnknownRoute("MQ has no such path.")

    def refuse(self, call: Call, error: PenstockError) -> Plain:  # noqa: ARG002
        """A status without a body; what is not stored may be sent again after 10 seconds."""
        if isinstance(error, Unauthenticated):
            return Plain(401, headers=((b"www-authenticate", b'Bearer realm="penstock"'),))
        if isinstance(error, AccessError):
            return Plain(error.status)
        if isinstance(error, NotFound | MethodNotAllowed):
            return Plain(404)
        if isinstance(error, BadInput):
            return Plain(400, headers=_CLOSE if ends_connection(error) else ())
        if isinstance(error, Conflict):
            return Plain(409)
        return Plain(503, headers=(_RETRY_AFTER,))


def open_door(service: Service, settings: Settings) -> MqDoor:  # noqa: ARG001
    """The door for a server."""
    return MqDoor()
