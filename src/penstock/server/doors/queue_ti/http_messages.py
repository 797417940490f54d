"""The HTTP routes of messages: list, enqueue, dequeue, nack, requeue. HTTP has no ack."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.errors import BadInput, UnknownQueue
from penstock.server.access import EVERYTHING, Action
from penstock.server.call import Call
from penstock.server.claiming import claim_within_bounds, or_wait
from penstock.server.doors.json_bodies import (
    SMALL_BYTES,
    decode_json,
    json_reply,
    query_of,
    read_typed_json,
    whole_number,
)
from penstock.server.doors.json_lists import json_list
from penstock.server.doors.path_door import DoorRoute
from penstock.server.doors.queue_ti import messages
from penstock.server.doors.queue_ti.access import Caller, check_may, may, may_dequeue
from penstock.server.doors.queue_ti.listing import Paging, list_messages
from penstock.server.doors.queue_ti.messages import MessageBody
from penstock.server.doors.queue_ti.topics import Limits, TopicName, to_topic, topic_text
from penstock.server.replies import Plain
from penstock.wire.bodies import ClaimBody

__all__ = ["MessageRoutes", "paging_of"]

_MAX_PAGE: Final = 200
#: Bytes of JSON that one byte of payload may take: a control character is written as ``\\u0000``.
_ESCAPED: Final = 6


class EnqueueBody(Struct, frozen=True):
    """A message to enqueue."""

    topic: str = ""
    payload: str = ""
    metadata: dict[str, str] | None = None
    key: str | None = None


class DequeueBody(Struct, frozen=True):
    """What a consumer wants."""

    topic: str = ""
    count: int = 1
    visibility_timeout_seconds: int | None = None
    consumer_group: str = ""


class NackBody(Struct, frozen=True):
    """Why, and in which group."""

    error: str = ""
    consumer_group: str = ""


class IdReply(Struct, frozen=True):
    """The id of a message."""

    id: str


class DequeueReply(Struct, frozen=True):
    """Claimed messages."""

    messages: list[MessageBody]


class MessagePage(Struct, frozen=True):
    """Some messages."""

    items: list[MessageBody]
    total: int
    limit: int
    offset: int


class MessageRoutes:
    """The handlers."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def routes(self) -> tuple[DoorRoute, ...]:
        """The routes with their handlers."""
        return (
            DoorRoute("GET", "/api/messages", "list_messages", self.list),
            DoorRoute("POST", "/api/messages", "enqueue", self.enqueue),
            DoorRoute("POST", "/api/messages/dequeue", "dequeue", self.dequeue),
            DoorRoute("POST", "/api/messages/{id}/nack", "nack", self.nack),
            DoorRoute("POST", "/api/messages/{id}/requeue", "requeue", self.requeue),
        )

    async def list(self, call: Call) -> Plain:
        """A page of messages."""
        query = query_of(call)
        paging = paging_of(query)
        topic = to_topic(query["topic"]) if query.get("topic") else None
        if topic is None:
            check_may(_reads_everything(call))
        else:
            check_may(may(call.credential, "read", topic))
        found, total = await call.scan(list_messages(call.broker, topic, paging))
        call.hold.take(sum(len(item.payload or b"") for item in found))
        retries: dict[str, int] = {}
        items = []
        for item in found:
            name = item.message.topic
            if name not in retries:
                home = TopicName(topic_text(name), name, is_dlq=False)
                retries[name] = await messages.max_retries(call.broker, home)
            items.append(messages.shown_message(item, retries[name]))
        return await json_list(MessagePage(items, total, paging.limit, paging.offset))

    async def enqueue(self, call: Call) -> Plain:
        """Store a message."""
        most = _ESCAPED * call.service.payload_bytes + SMALL_BYTES
        body = await read_typed_json(call, EnqueueBody, most)
        payload = body.payload.encode(errors="replace")
        topic = messages.check_payload(body.topic, payload)
        check_may(may(call.credential, "write", topic))
        made = await messages.enqueue(
            call.broker, self._limits, topic, payload, body.metadata or {}, body.key
        )
        return json_reply(IdReply(made), 201)

    async def dequeue(self, call: Call) -> Plain:
        """Claim messages."""
        body = await read_typed_json(call, DequeueBody)
        wanted = messages.wanted(
            body.topic, body.count, body.visibility_timeout_seconds, body.consumer_group
        )
        check_may(may_dequeue(call.credential, wanted.topic, body.consumer_group))
        claim = ClaimBody(wanted.count, wanted.lease_ms, consumer=consumer_of(call))
        call.parameters = (wanted.queue,)
        try:
            deliveries = await or_wait(call, claim, await claim_within_bounds(call, claim, 0))
        except UnknownQueue:
            deliveries = []
        retries = await messages.max_retries(call.broker, wanted.topic) if deliveries else 0
        return await json_list(
            DequeueReply([messages.claimed_message(item, retries) for item in deliveries])
        )

    async def nack(self, call: Call) -> Plain:
        """Give a message back; a body that cannot be read counts as none."""
        raw = await call.read_body(SMALL_BYTES)
        try:
            body = decode_json(raw, NackBody) if raw else NackBody()
        except BadInput:
            body = NackBody()
        claimed = await messages.in_processing(call.broker, call.name, body.consumer_group)
        topic = TopicName(topic_text(claimed.message.topic), claimed.message.topic, is_dlq=False)
        check_may(may_dequeue(call.credential, topic, body.consumer_group))
        await messages.settle(call.broker, claimed, error=body.error, ack=False)
        return Plain(204)

    async def requeue(self, call: Call) -> Plain:
        """Move a dead letter back."""
        message, _ = await messages.find_message(call.broker, call.name)
        topic = TopicName(topic_text(message.topic), message.topic, is_dlq=False)
        check_may(may(call.credential, "write", topic))
        await messages.requeue(call.broker, message)
        return Plain(204)


def consumer_of(call: Call) -> str:
    """The consumer of a caller's claims."""
    caller = call.credential
    return messages.consumer_name(caller.username if isinstance(caller, Caller) else caller.name)


def paging_of(query: dict[str, str]) -> Paging:
    """The page that a query asks for, clamped."""
    limit, offset = whole_number(query.get("limit")), whole_number(query.get("offset"))
    if limit is None:
        limit = 50
    return Paging(min(max(limit, 1), _MAX_PAGE), max(offset or 0, 0))


def _reads_everything(call: Call) -> bool:
    caller = call.credential
    if isinstance(caller, Caller) and not caller.is_admin:
        return any(
            grant.action == "read" and grant.topic_pattern == EVERYTHING
            for grant in caller.user_grants
        )
    return caller.allows(Action.READ, EVERYTHING)
