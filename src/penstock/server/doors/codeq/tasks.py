"""Tasks of codeQ as messages: creation, what is shown of them, and their queues.

The command ``RENDER`` is the topic and the queue ``RENDER``; names that Penstock refuses are
escaped. A task's id is the message's id as a UUID, its payload the message's payload.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.broker import Broker
from penstock.errors import BadInput, UnknownMessage, UnknownQueue
from penstock.model.delivery import Delivery, Snapshot
from penstock.model.limits import MAX_ATTEMPTS, MAX_PRIORITY, MAX_TIME_MS, check_whole
from penstock.model.message import HeaderValue, Message
from penstock.model.names import escape, unescape
from penstock.model.queue import Backoff, RetryPosition, TopicPolicy
from penstock.model.states import State
from penstock.model.webhooks import split_url
from penstock.server.doors.codeq.refusals import CodeqError
from penstock.server.doors.json_bodies import as_text, rfc3339, to_ms
from penstock.server.doors.message_uuid import message_uuid, uuid_message

__all__ = [
    "BACKOFF",
    "COMMAND_LABEL",
    "DEFAULT_MAX_ATTEMPTS",
    "LEASE_S",
    "RETENTION_S",
    "WEBHOOK_HEADER",
    "CreateBody",
    "Found",
    "Task",
    "check_url",
    "claimed_task",
    "command_of",
    "create",
    "ensure_queue",
    "find",
    "shown_task",
]

DEFAULT_MAX_ATTEMPTS: Final = 5
LEASE_S: Final = 300
#: How long codeQ keeps finished tasks and idempotency keys.
RETENTION_S: Final = 24 * 3600
BACKOFF: Final = Backoff(5_000, 900_000)
COMMAND_LABEL: Final = "codeq.command"
#: The header of a task's message that has the URL of its result webhook.
WEBHOOK_HEADER: Final = "codeq_webhook"
#: Ends the error of a task whose worker submitted FAILED; the rest of its result follows.
RESULT_MARK: Final = "\n\ncodeq-result: "
_MAX_URL: Final = 2048
_JSON: Final = "application/json"

PENDING: Final = "PENDING"
IN_PROGRESS: Final = "IN_PROGRESS"
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
_PLACES: Final = {
    State.AVAILABLE: (PENDING, "PENDING_LIST"),
    State.DELAYED: (PENDING, "DELAYED_ZSET"),
    State.IN_FLIGHT: (IN_PROGRESS, "INPROG_SET"),
    State.DONE: (COMPLETED, "NONE"),
    State.FAILED: (FAILED, "DLQ_SET"),
    State.EXPIRED: (FAILED, "NONE"),
}


class CreateBody(Struct, frozen=True):
    """A task to create."""

    command: str = ""
    payload: Raw | UnsetType = UNSET
    priority: int = 0
    webhook: str | None = None
    maxAttempts: int = 0  # noqa: N815  (codeQ's name)
    idempotencyKey: str | None = None  # noqa: N815
    runAt: str | None = None  # noqa: N815
    delaySeconds: int = 0  # noqa: N815


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A task as the API shows it."""

    id: str
    command: str
    payload: str
    priority: int = 0
    webhook: str = ""
    trace_parent: str = ""
    trace_state: str = ""
    status: str
    last_known_location: str = ""
    worker_id: str = ""
    lease_until: str = ""
    attempts: int = 0
    max_attempts: int = 0
    error: str = ""
    result_key: str = ""
    tenant_id: str = ""
    created_at: str
    updated_at: str


class Found(Struct, frozen=True):
    """A task, and its delivery in the queue of its command."""

    message: Message
    payload: bytes
    delivery: Snapshot

    @property
    def queue(self) -> str:
        """The queue of the command."""
        return str(self.message.topic)


def command_of(topic: str) -> str:
    """The command that a topic stands for."""
    try:
        return unescape(topic)
    except BadInput:
        return topic


async def create(broker: Broker, body: CreateBody, headers: dict[str, HeaderValue]) -> Task:
    """Store a task; one with a known idempotency key is the first task again."""
    raw = _check(body)
    topic = escape(body.command, "command")
    if body.webhook:
        headers[WEBHOOK_HEADER] = check_url(body.webhook, "webhook")
    now = broker.engine.clock.now()
    deliver_at = _deliver_at(body, now)
    await ensure_queue(broker, topic)
    attempts = body.maxAttempts if body.maxAttempts > 0 else DEFAULT_MAX_ATTEMPTS
    published = await broker.publish(
        topic,
        raw,
        headers=headers,
        id=body.idempotencyKey or None,
        priority=min(max(body.priority, 0), MAX_PRIORITY),
        content_type=_JSON,
        deliver_at=deliver_at,
        max_attempts=attempts,
        auto_create=False,
    )
    found = await find(broker, message_uuid(published.id))
    if found is None:
        raise UnknownMessage("The task of this idempotency key is gone.", field="idempotencyKey")
    return shown_task(broker.tenant, found)


def _check(body: CreateBody) -> bytes:
    """The payload of a valid task."""
    if not body.command:
        raise CodeqError(400, "command is required", field="command")
    if isinstance(body.payload, UnsetType) or bytes(body.payload) == b"null":
        raise CodeqError(400, "payload is required", field="payload")
    if body.maxAttempts > 0:
        check_whole("maxAttempts", body.maxAttempts, 1, MAX_ATTEMPTS)
    if body.delaySeconds < 0:
        raise CodeqError(400, "delaySeconds must not be negative", field="delaySeconds")
    return bytes(body.payload)


def _deliver_at(body: CreateBody, now: int) -> int | None:
    if body.runAt:
        at_ms = to_ms(body.runAt, "runAt")
        return at_ms if at_ms > now else None
    return min(now + body.delaySeconds * 1000, MAX_TIME_MS) if body.delaySeconds else None


def check_url(url: str, field: str) -> str:
    """The URL of a callback; its addresses are checked before each call."""
    try:
        parts, host, _ = split_url(url)
    except ValueError:
        parts, host = None, ""
    if (
        parts is None
        or parts.scheme not in ("http", "https")
        or not host
        or not url.isascii()
        or not url.isprintable()
        or " " in url
        or "@" in parts.netloc
        or len(url) > _MAX_URL
    ):
        raise CodeqError(400, f"{field} must be an http or https URL", field=field)
    return url


async def ensure_queue(broker: Broker, topic: str) -> None:
    """Create the queue of a command if it is missing, and register its topic."""
    try:
        await broker.queue(topic)
    except UnknownQueue:
        if await broker.topic(topic) is None:
            await broker.put_topic(topic, TopicPolicy(dedup_window_ms=RETENTION_S * 1000))
        await broker.ensure_queue(
            topic,
            f"topic = '{topic}'",
            lease_ms=LEASE_S * 1000,
            max_attempts=DEFAULT_MAX_ATTEMPTS,
            backoff=BACKOFF,
            done_retention_s=RETENTION_S,
            retry_position=RetryPosition.BACK,
            labels={COMMAND_LABEL: topic},
        )


async def find(broker: Broker, id: str) -> Found | None:
    """The task with this id; None if there is none, or it was removed from its queue.

    The log still has the message of a task that was cleaned up, purged or cancelled, but nothing
    says any more how it ended.
    """
    message_id = uuid_message(id.lower())
    try:
        found = None if message_id is None else await broker.message(message_id)
    except UnknownMessage:
        return None
    if found is None:
        return None
    topic = found.message.topic
    for shown in found.deliveries:
        if shown.queue in (topic, f"{topic}.dlq"):
            return Found(found.message, found.payload, shown)
    return None


def shown_task(tenant: str, found: Found) -> Task:
    """A task as the API shows it."""
    shown, message = found.delivery, found.message
    status, place = _PLACES[shown.state]
    if shown.queue.endswith(".dlq"):
        status, place = FAILED, "DLQ_SET"
    error, _, rest = (shown.error or "").partition(RESULT_MARK)
    changed = shown.claimed_at or shown.at
    in_progress = status == IN_PROGRESS
    return Task(
        **_fields(tenant, message, found.payload),
        status=status,
        last_known_location="NONE" if rest else place,
        worker_id=_worker(shown.consumer or "") if in_progress else "",
        lease_until=rfc3339(shown.lease_deadline or 0) if in_progress else "",
        attempts=shown.attempts - shown.released,
        error=error,
        result_key=_result_key(message) if status in (COMPLETED, FAILED) else "",
        created_at=rfc3339(message.published_at),
        updated_at=rfc3339(message.published_at if changed is None else changed),
    )


def claimed_task(tenant: str, delivery: Delivery, worker_id: str) -> Task:
    """A task that was just claimed."""
    message = delivery.message
    return Task(
        **_fields(tenant, message, delivery.payload),
        status=IN_PROGRESS,
        last_known_location="INPROG_SET",
        worker_id=worker_id,
        lease_until=rfc3339(delivery.lease_deadline),
        attempts=delivery.attempts,
        created_at=rfc3339(message.published_at),
        updated_at=rfc3339(delivery.claimed_at),
    )


def _fields(tenant: str, message: Message, payload: bytes) -> dict[str, Any]:
    headers = message.headers
    return {
        "id": message_uuid(message.id),
        "command": command_of(message.topic),
        "payload": as_text(payload),
        "priority": message.priority,
        "webhook": str(headers.get(WEBHOOK_HEADER, "")),
        "trace_parent": str(headers.get("traceparent", "")),
        "trace_state": str(headers.get("tracestate", "")),
        "max_attempts": message.max_attempts or 0,
        "tenant_id": tenant,
    }


def _worker(consumer: str) -> str:
    try:
        return unescape(consumer)
    except BadInput:
        return consumer


def _result_key(message: Message) -> str:
    return f"codeq/results/{message_uuid(message.id)}"
