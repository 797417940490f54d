"""Messages of queue-ti: enqueue, dequeue, ack, nack, requeue, for HTTP and gRPC alike.

An id is the message's id as a UUID. To settle by it, the door looks up the receipt of the current
claim; it remembers nothing (S1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.broker import Broker
from penstock.errors import BadName, UnknownMessage, UnknownQueue
from penstock.model.delivery import Ack, Delivery, Nack, Receipt, Settlement, Snapshot
from penstock.model.limits import DLQ_SUFFIX, MAX_LEASE_MS, MAX_WAIT_MS
from penstock.model.message import HeaderValue, Message
from penstock.model.names import escape
from penstock.model.states import State
from penstock.server.doors.json_bodies import as_text, rfc3339
from penstock.server.doors.message_uuid import message_uuid, uuid_message
from penstock.server.doors.queue_ti.refusals import QueueTiError, invalid, not_found
from penstock.server.doors.queue_ti.topics import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_TTL_S,
    Limits,
    TopicConfig,
    TopicName,
    base_queue,
    config_of,
    ensure_base,
    queues_of,
    to_topic,
    topic_text,
)

__all__ = [
    "MAX_COUNT",
    "Claimed",
    "MessageBody",
    "Wanted",
    "check_payload",
    "claimed_message",
    "consumer_name",
    "dequeue",
    "enqueue",
    "find_message",
    "in_processing",
    "max_retries",
    "metadata_of",
    "requeue",
    "settle",
    "shown_message",
    "ttl_ms",
    "wanted",
]

MAX_COUNT: Final = 1000
_ANYBODY: Final = "queue-ti"
PENDING: Final = "pending"
PROCESSING: Final = "processing"
EXPIRED: Final = "expired"
_STATUS: Final = {
    State.AVAILABLE: PENDING,
    State.DELAYED: PENDING,
    State.IN_FLIGHT: PROCESSING,
    State.EXPIRED: EXPIRED,
    State.FAILED: PENDING,
}


class MessageBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as the HTTP interface shows it."""

    id: str
    topic: str
    key: str | None = None
    payload: str
    metadata: dict[str, str]
    status: str
    retry_count: int
    max_retries: int
    last_error: str | None = None
    expires_at: str | None = None
    created_at: str
    original_topic: str | None = None
    dlq_moved_at: str | None = None


class Wanted(Struct, frozen=True):
    """What a consumer asks for, validated."""

    topic: TopicName
    queue: str
    count: int
    lease_ms: int | None


class Claimed(Struct, frozen=True):
    """A message that is being processed, and its current claim."""

    message: Message
    queue: str
    receipt: Receipt


async def enqueue(
    broker: Broker,
    limits: Limits,
    topic: TopicName,
    payload: bytes,
    metadata: Mapping[str, str],
    key: str | None,
) -> str:
    """Store a message, or replace the pending one with this key; returns its id."""
    if topic.is_dlq:
        raise QueueTiError(500, "INTERNAL", f"topic {topic.shown!r} is reserved for dead letters")
    base = await ensure_base(broker, topic, limits)
    config = config_of(base)
    published = await broker.publish(
        topic.name,
        payload,
        headers=dict(metadata),
        key=key or None,
        ttl_ms=ttl_ms(config),
        max_attempts=limits.attempts(config),
        auto_create=False,
    )
    return message_uuid(published.id)


def ttl_ms(config: TopicConfig) -> int | None:
    """How long a message of the topic is kept; None is forever."""
    seconds = config.message_ttl_seconds
    return (DEFAULT_TTL_S if seconds is None else seconds) * 1000 or None


def check_payload(topic: str, payload: bytes) -> TopicName:
    """The topic of a message; raises if either is empty."""
    found = to_topic(topic)
    if not payload:
        raise invalid("payload is required", "payload")
    return found


def wanted(topic: str, count: int, visibility_s: int | None, group: str) -> Wanted:
    """Validate a dequeue."""
    found = to_topic(topic)
    if not 1 <= count <= MAX_COUNT:
        raise invalid(f"count must be between 1 and {MAX_COUNT}", "count")
    if visibility_s is not None and visibility_s <= 0:
        raise invalid("visibility_timeout_seconds must be positive", "visibility_timeout_seconds")
    lease_ms = None if visibility_s is None else min(visibility_s * 1000, MAX_LEASE_MS)
    return Wanted(found, found.queue(group), count, lease_ms)


async def dequeue(
    broker: Broker, wanted: Wanted, consumer: str, *, wait_ms: int = 0
) -> list[Delivery]:
    """Claim messages; none if the topic or the group does not exist."""
    try:
        return await broker.claim(
            wanted.queue,
            limit=wanted.count,
            consumer=consumer,
            lease_ms=wanted.lease_ms,
            wait_ms=min(wait_ms, MAX_WAIT_MS),
        )
    except UnknownQueue:
        return []


async def max_retries(broker: Broker, topic: TopicName) -> int:
    """What clients see of the retries of a topic."""
    base = None if topic.is_dlq else await base_queue(broker, topic)
    if base is None:
        return 0 if topic.is_dlq else DEFAULT_MAX_RETRIES
    value = config_of(base).max_retries
    return DEFAULT_MAX_RETRIES if value is None else value


async def find_message(broker: Broker, id: str) -> tuple[Message, tuple[Snapshot, ...]]:
    """The message with this id, and its deliveries."""
    if not id:
        raise invalid("id is required", "id")
    message_id = uuid_message(id.lower())
    try:
        found = None if message_id is None else await broker.message(message_id)
    except UnknownMessage:
        found = None
    if found is None:
        raise not_found("message not found")
    return found.message, found.deliveries


async def in_processing(broker: Broker, id: str, group: str) -> Claimed:
    """The current claim of a message in a group; raises if it is not being processed."""
    message, deliveries = await find_message(broker, id)
    home = TopicName("", message.topic, is_dlq=False).queue(group)
    for shown in deliveries:
        if shown.queue.removesuffix(DLQ_SUFFIX) == home and shown.receipt is not None:
            return Claimed(message, shown.queue, shown.receipt)
    raise not_found("message not found or not in processing state")


async def settle(broker: Broker, claimed: Claimed, *, error: str | None = None, ack: bool) -> None:
    """Ack a message, or nack it: pending again at once, or a dead letter."""
    settlement: Settlement = (
        Ack(claimed.receipt) if ack else Nack(claimed.receipt, error or None, delay_ms=0)
    )
    reply = await broker.settle(claimed.queue, [settlement])
    if not reply.outcomes[0].ok:
        # Another call settled it, or its visibility ended, since it was looked up.
        raise not_found("message not found or not in processing state")


async def requeue(broker: Broker, message: Message) -> None:
    """Move a dead letter back to its topic, with all its attempts, in every group it failed in."""
    topic = TopicName(topic_text(message.topic), message.topic, is_dlq=False)
    moved = 0
    ttl = None
    base = await base_queue(broker, topic)
    if base is not None:
        ttl = ttl_ms(config_of(base))
    for info in await queues_of(broker, topic):
        reply = await broker.replay(info.name, "failed", ids=[message.id], ttl_ms=ttl)
        moved += reply.count
    if not moved:
        raise not_found("message not found or not a dead-letter message")


def metadata_of(headers: Mapping[str, HeaderValue]) -> dict[str, str]:
    """Headers as the text that queue-ti has; a native producer may have sent others."""
    return {name: _text_of(value) for name, value in headers.items()}


def _text_of(value: HeaderValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def claimed_message(delivery: Delivery, retries: int) -> MessageBody:
    """A message that was just dequeued."""
    is_dlq = delivery.queue.endswith(DLQ_SUFFIX)
    message = delivery.message
    text = topic_text(message.topic)
    return MessageBody(
        id=message_uuid(message.id),
        topic=text + DLQ_SUFFIX if is_dlq else text,
        key=message.key,
        payload=as_text(delivery.payload),
        metadata=metadata_of(message.headers),
        status=PROCESSING,
        retry_count=0 if is_dlq else delivery.attempts - 1,
        max_retries=0 if is_dlq else retries,
        last_error=delivery.error,
        expires_at=_time(None if is_dlq else message.expires_at),
        created_at=rfc3339(message.published_at),
        original_topic=text if is_dlq else None,
        dlq_moved_at=_time(delivery.failed_at),
    )


def shown_message(shown: Snapshot, retries: int) -> MessageBody:
    """A message that is listed."""
    is_dlq = shown.state is State.FAILED or shown.queue.endswith(DLQ_SUFFIX)
    message = shown.message
    text = topic_text(message.topic)
    used = shown.attempts - shown.released - (shown.state is State.IN_FLIGHT)
    return MessageBody(
        id=message_uuid(message.id),
        topic=text + DLQ_SUFFIX if is_dlq else text,
        key=message.key,
        payload=as_text(shown.payload or b""),
        metadata=metadata_of(message.headers),
        status=_STATUS[shown.state],
        retry_count=0 if is_dlq else max(0, used),
        max_retries=0 if is_dlq else retries,
        last_error=shown.error,
        expires_at=_time(None if is_dlq else message.expires_at),
        created_at=rfc3339(message.published_at),
        original_topic=text if is_dlq else None,
        dlq_moved_at=_time(shown.at) if is_dlq else None,
    )


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)


def consumer_name(user: str) -> str:
    """The consumer of a user's claims."""
    try:
        return escape(user) if user else _ANYBODY
    except BadName:
        return _ANYBODY
