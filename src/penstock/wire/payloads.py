"""Payloads inside JSON, readable where the bytes are text.

A message in JSON has exactly one of three fields: ``payload``, a JSON value, if the content
type is JSON; ``payload_text`` if the bytes are declared as text; ``payload_base64`` for
everything else, and for bytes that do not match their content type. In MessagePack ``payload``
is bytes. What is stored is byte-equal to what came in (P3), so a JSON value is kept with its
white space.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.errors import BadInput
from penstock.model.delivery import (
    Delivery,
    LogEntry,
    LogPage,
    MessageDeliveries,
    Outcome,
    Page,
    SettleAndClaimReply,
    Settlement,
    Snapshot,
)
from penstock.model.limits import DEFAULT_PRIORITY
from penstock.model.message import (
    NO_HEADERS,
    Durability,
    HeaderValue,
    Message,
    NewMessage,
    Offset,
    Published,
)
from penstock.model.states import State
from penstock.wire.bodies import ClaimBody, ClaimReply

__all__ = [
    "JsonClaimReply",
    "JsonDelivery",
    "JsonLogEntry",
    "JsonLogPage",
    "JsonMessage",
    "JsonMessageDeliveries",
    "JsonOutgoing",
    "JsonPage",
    "JsonPublishBody",
    "JsonSettleBody",
    "JsonSettleReply",
    "JsonSnapshot",
    "Shown",
    "show",
    "shown_claims",
    "shown_delivery",
    "shown_log",
    "shown_message",
    "shown_page",
    "shown_settle_and_claim",
    "to_new_message",
]

_JSON: Final = "application/json"
_TEXT: Final = "text/"
_any_json: Final = msgspec.json.Decoder(Raw)
_UTF8: Final = "text/plain; charset=utf-8"


class Shown(Struct, frozen=True):
    """A payload in JSON; at most one field is set, none without a payload."""

    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET


def show(payload: bytes | None, content_type: str | None) -> Shown:
    """The most readable form that loses nothing."""
    if payload is None:
        return Shown()
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == _JSON or kind.endswith("+json"):
        # The declared type may be wrong, and a payload that is not JSON would break the reply.
        try:
            # Finding the end of a value is three times as fast as decoding it, but does not
            # check the text in it.
            payload.decode()
            _any_json.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            return Shown(payload_base64=payload)
        return Shown(payload=Raw(payload))
    if kind.startswith(_TEXT):
        try:
            return Shown(payload_text=payload.decode())
        except UnicodeDecodeError:
            pass
    return Shown(payload_base64=payload)


class JsonMessage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message to publish, in JSON."""

    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    headers: dict[str, HeaderValue] = NO_HEADERS
    id: str | None = None
    key: str | None = None
    partition_key: str | None = None
    priority: int = DEFAULT_PRIORITY
    content_type: str | None = None
    deliver_at: int | None = None
    expires_at: int | None = None
    delay_ms: int | None = None
    ttl_ms: int | None = None
    auto_create: bool = True
    max_attempts: int | None = None


class JsonPublishBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch in JSON."""

    messages: list[JsonMessage]
    durability: Durability = "fsync"
    batch_id: str | None = None
    batch_ms: int | None = None


class JsonOutgoing(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages for one topic, published with a settlement, in JSON."""

    topic: str
    messages: list[JsonMessage]


class JsonSettleBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Settlements in JSON; a result is base64."""

    settlements: list[Settlement]
    publish: list[JsonOutgoing] = []
    claim: ClaimBody | None = None


def to_new_message(message: JsonMessage) -> NewMessage:
    """The message, with the content type that its form implies."""
    given = [
        form
        for form in (message.payload, message.payload_text, message.payload_base64)
        if form is not UNSET
    ]
    if len(given) != 1:
        raise BadInput(
            "A message must have one of payload, payload_text and payload_base64.", field="payload"
        )
    content_type = message.content_type
    if isinstance(message.payload, Raw):
        payload = bytes(message.payload)
        content_type = _JSON if content_type is None else content_type
    elif isinstance(message.payload_text, str):
        payload = message.payload_text.encode()
        content_type = _UTF8 if content_type is None else content_type
    else:
        assert isinstance(message.payload_base64, bytes)
        payload = message.payload_base64
    return NewMessage(
        payload,
        message.headers,
        message.id,
        message.key,
        message.partition_key,
        message.priority,
        content_type,
        message.deliver_at,
        message.expires_at,
        message.delay_ms,
        message.ttl_ms,
        message.auto_create,
        message.max_attempts,
    )


class JsonDelivery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery in JSON."""

    queue: str
    receipt: str
    message: Message
    attempts: int
    claimed_at: int
    lease_deadline: int
    error: str | None = None
    failed_at: int | None = None
    original_queue: str | None = None
    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET


def shown_delivery(delivery: Delivery) -> JsonDelivery:
    """The delivery in JSON."""
    form = show(delivery.payload, delivery.message.content_type)
    return JsonDelivery(
        queue=delivery.queue,
        receipt=delivery.receipt,
        message=delivery.message,
        attempts=delivery.attempts,
        claimed_at=delivery.claimed_at,
        lease_deadline=delivery.lease_deadline,
        error=delivery.error,
        failed_at=delivery.failed_at,
        original_queue=delivery.original_queue,
        payload=form.payload,
        payload_text=form.payload_text,
        payload_base64=form.payload_base64,
    )


class JsonClaimReply(Struct, frozen=True):
    """The claimed deliveries in JSON."""

    deliveries: list[JsonDelivery]


def shown_claims(reply: ClaimReply) -> JsonClaimReply:
    """The deliveries in JSON."""
    return JsonClaimReply([shown_delivery(delivery) for delivery in reply.deliveries])


class JsonSettleReply(Struct, frozen=True, kw_only=True):
    """Outcomes in JSON, and the deliveries that were claimed after the settle, if it asked."""

    deliveries: list[JsonDelivery] | UnsetType = UNSET
    outcomes: tuple[Outcome, ...]
    published: tuple[Published, ...]
    durability: Durability
    repeated: bool = False


def shown_settle_and_claim(reply: SettleAndClaimReply) -> JsonSettleReply:
    """The outcomes and the deliveries in JSON."""
    return JsonSettleReply(
        deliveries=[shown_delivery(delivery) for delivery in reply.deliveries],
        outcomes=reply.outcomes,
        published=reply.published,
        durability=reply.durability,
        repeated=reply.repeated,
    )


class JsonSnapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A browsed delivery in JSON."""

    queue: str
    message: Message
    state: State
    attempts: int
    released: int = 0
    at: int | None = None
    claimed_at: int | None = None
    lease_deadline: int | None = None
    consumer: str | None = None
    error: str | None = None
    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET


class JsonPage(Struct, frozen=True):
    """A page of browsed deliveries in JSON."""

    items: list[JsonSnapshot]
    cursor: str | None


def shown_page(page: Page) -> JsonPage:
    """The page in JSON."""
    return JsonPage([_shown_snapshot(item) for item in page.items], page.cursor)


def _shown_snapshot(item: Snapshot) -> JsonSnapshot:
    form = show(item.payload, item.message.content_type)
    return JsonSnapshot(
        queue=item.queue,
        message=item.message,
        state=item.state,
        attempts=item.attempts,
        released=item.released,
        at=item.at,
        claimed_at=item.claimed_at,
        lease_deadline=item.lease_deadline,
        consumer=item.consumer,
        error=item.error,
        payload=form.payload,
        payload_text=form.payload_text,
        payload_base64=form.payload_base64,
    )


class JsonLogEntry(Struct, frozen=True, kw_only=True):
    """A log entry in JSON."""

    message: Message
    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET


class JsonLogPage(Struct, frozen=True):
    """A page of the log in JSON."""

    entries: list[JsonLogEntry]
    next_offset: Offset


def shown_log(page: LogPage) -> JsonLogPage:
    """The page in JSON."""
    return JsonLogPage([_shown_entry(entry) for entry in page.entries], page.next_offset)


def _shown_entry(entry: LogEntry) -> JsonLogEntry:
    form = show(entry.payload, entry.message.content_type)
    return JsonLogEntry(
        message=entry.message,
        payload=form.payload,
        payload_text=form.payload_text,
        payload_base64=form.payload_base64,
    )


class JsonMessageDeliveries(Struct, frozen=True, kw_only=True):
    """A message and its deliveries in JSON."""

    message: Message
    deliveries: tuple[Snapshot, ...]
    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET


def shown_message(found: MessageDeliveries) -> JsonMessageDeliveries:
    """The message in JSON."""
    form = show(found.payload, found.message.content_type)
    return JsonMessageDeliveries(
        message=found.message,
        deliveries=found.deliveries,
        payload=form.payload,
        payload_text=form.payload_text,
        payload_base64=form.payload_base64,
    )
