"""Publish: one raw body, or a batch in JSON, MessagePack or Arrow.

Only the content types for batches make a batch. Any other body is one message, stored with its
content type, byte for byte as received (P3). Its options come in headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import (
    BadInput,
    PenstockError,
    QueueFull,
    SchemaViolation,
    TooLarge,
    TooManyQueues,
    UnknownTopic,
)
from penstock.model.limits import DEFAULT_PRIORITY, MAX_BATCH
from penstock.model.message import (
    NO_HEADERS,
    Durability,
    HeaderValue,
    NewMessage,
    Published,
    PublishReply,
)
from penstock.server.call import Call
from penstock.server.decoding import (
    DIRECT_BYTES,
    DIRECT_MSGPACK_BYTES,
    JSON_FORMAT,
    MSGPACK_FORMAT,
    Lists,
    item_bytes,
)
from penstock.server.loading import ARROW_WRITES, load
from penstock.server.request_parsing import RawBody
from penstock.server.routing import Need, Route
from penstock.wire.bodies import PublishBody
from penstock.wire.codecs import (
    ARROW_STREAM,
    BATCH_JSON,
    BATCH_MSGPACK,
    JSON,
    Codec,
    refused,
)
from penstock.wire.payloads import JsonMessage, JsonPublishBody, to_new_message
from penstock.wire.splitting import Bounds

__all__ = ["ROUTES"]

_BATCH: Final = Codec(PublishBody)
_JSON_BATCH: Final = Codec(JsonPublishBody)
_LISTS: Final = Lists(PublishBody, {"messages": NewMessage})
_JSON_LISTS: Final = Lists(JsonPublishBody, {"messages": JsonMessage})
_HEADERS: Final = msgspec.json.Decoder(dict[str, HeaderValue])
_MAX_DIGITS: Final = 18
_PREFIX: Final = b"penstock-"
_REQUEST_ID: Final = b"penstock-request-id"
#: Headers with options for a raw body.
_OPTIONS: Final = frozenset(
    {
        b"penstock-id",
        b"penstock-key",
        b"penstock-partition-key",
        b"penstock-priority",
        b"penstock-delay-ms",
        b"penstock-deliver-at",
        b"penstock-ttl-ms",
        b"penstock-expires-at",
        b"penstock-max-attempts",
        b"penstock-durability",
        b"penstock-headers",
        b"penstock-auto-create",
    }
)


class PublishQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a publish in its URL."""

    durability: str | None = None
    """``fsync`` or ``os``; a batch or a header may set it too."""
    batch_id: str | None = None
    """For an Arrow batch, which cannot contain it."""
    batch_ms: int | None = None
    """How long the batch id of an Arrow batch is remembered."""
    auto_create: bool = True
    """False: no message of this call creates a queue."""


async def publish(call: Call, query: PublishQuery, body: bytes) -> PublishReply:
    """Store a message or a batch completely, or not at all."""
    media = call.media
    durability: Durability = query.durability or "fsync"
    if media in (BATCH_MSGPACK, BATCH_JSON):
        batch = await _read_batch(call, body, is_json=media == BATCH_JSON)
        durability = query.durability or batch.durability
        named = (batch.batch_id, batch.batch_ms)
        return await _publish_batch(call, query, batch.messages, durability, *named)
    if media == ARROW_STREAM:
        messages = await _read_arrow(call, body)
        named = (query.batch_id, query.batch_ms)
        return await _publish_batch(call, query, messages, durability, *named)
    return await _publish_one(call, query, body, durability)


async def _read_batch(call: Call, body: bytes, *, is_json: bool) -> PublishBody:
    """The batch of a body; a large one is decoded in pieces."""
    if len(body) > (DIRECT_BYTES if is_json else DIRECT_MSGPACK_BYTES):
        # The decoded body is about as large as the raw one.
        call.hold.add(len(body))
        bounds = {"messages": Bounds(MAX_BATCH, item_bytes(call.service.payload_bytes))}
        if not is_json:
            return await _LISTS.decode(MSGPACK_FORMAT, body, bounds)
        given = await _JSON_LISTS.decode(JSON_FORMAT, body, bounds, to_new_message)
        messages: list[Any] = given.messages
    elif is_json:
        given = _JSON_BATCH.from_json(body)
        messages = [to_new_message(message) for message in given.messages]
    else:
        return _BATCH.from_msgpack(body)
    return PublishBody(messages, given.durability, given.batch_id, given.batch_ms)


async def _read_arrow(call: Call, body: bytes) -> list[NewMessage]:
    """The messages of an Arrow stream, whose uncompressed size is limited like a body's."""
    await load(ARROW_WRITES)
    from penstock.wire.arrow import (  # noqa: PLC0415  (an extra)
        declared_size,
        open_messages,
        read_messages,
    )

    size = call.service.limits.body_bytes
    declared = await asyncio.to_thread(declared_size, body, size)
    # Once as columns, and once as messages.
    call.hold.take(2 * declared)
    table = await asyncio.to_thread(open_messages, body, size)
    # A value of a dictionary takes its bytes in every row.
    call.hold.take(2 * max(0, table.nbytes - declared))
    messages: list[NewMessage] = []
    for part in read_messages(table):
        messages += part
        await asyncio.sleep(0)
    return messages


async def _publish_batch(
    call: Call,
    query: PublishQuery,
    messages: Sequence[NewMessage],
    durability: Durability,
    batch_id: str | None,
    batch_ms: int | None,
) -> PublishReply:
    trace = _trace(call.headers)
    if trace:
        messages = [_traced(message, trace) for message in messages]
    reply = await call.broker.publish_batch(
        call.name,
        messages,
        durability=durability,
        batch_id=batch_id,
        batch_ms=batch_ms,
        auto_create=query.auto_create,
    )
    call.service.metrics.published(len(messages))
    return reply


async def _publish_one(
    call: Call, query: PublishQuery, body: bytes, durability: Durability
) -> PublishReply:
    headers = call.headers
    for name in headers:
        if name.startswith(_PREFIX) and name not in _OPTIONS and name != _REQUEST_ID:
            _refuse_option(name)
    content_type = headers.get(b"content-type")
    if type(body) is not bytes:
        body = _whole(body, call.service.payload_bytes)
    if _OPTIONS.isdisjoint(headers):
        # Most calls have no options, and looking up each costs as much as storing the message.
        published = await call.broker.publish(
            call.name,
            body,
            headers=_trace(headers) or NO_HEADERS,
            content_type=_text(content_type, "Content-Type"),
            auto_create=query.auto_create,
            durability=durability,
        )
        return _reply(call, published, durability)
    given = headers.get(b"penstock-durability")
    durability = _text(given, "Penstock-Durability") or durability
    published = await call.broker.publish(
        call.name,
        body,
        headers=_message_headers(headers),
        id=_text(headers.get(b"penstock-id"), "Penstock-Id"),
        key=_text(headers.get(b"penstock-key"), "Penstock-Key"),
        partition_key=_text(headers.get(b"penstock-partition-key"), "Penstock-Partition-Key"),
        priority=_number(headers, b"penstock-priority", DEFAULT_PRIORITY),
        content_type=_text(content_type, "Content-Type"),
        delay_ms=_number(headers, b"penstock-delay-ms", None),
        deliver_at=_number(headers, b"penstock-deliver-at", None),
        ttl_ms=_number(headers, b"penstock-ttl-ms", None),
        expires_at=_number(headers, b"penstock-expires-at", None),
        auto_create=_flag(headers, b"penstock-auto-create", query.auto_create),
        max_attempts=_number(headers, b"penstock-max-attempts", None),
        durability=durability,
    )
    return _reply(call, published, durability)


def _refuse_option(name: bytes) -> NoReturn:
    """Refuse a header that looks like an option: ignoring a misspelt delay would lose it."""
    field = name.decode("latin-1").title()
    known = ", ".join(option.decode().title() for option in sorted(_OPTIONS))
    raise BadInput(f"There is no option {field}; there are {known}.", field=field)


def _whole(body: bytes, limit: int) -> bytes:
    """Copy a large body into bytes; raises ``TooLarge`` before copying if it is over the limit."""
    if len(body) > limit:
        raise TooLarge(
            f"A payload of {len(body)} bytes is over the limit of {limit}.",
            field="payload",
            limit=limit,
        )
    return bytes(body)


def _reply(call: Call, published: Published, durability: Durability) -> PublishReply:
    call.service.metrics.published(1)
    best = call.broker.engine.capabilities.durability
    return PublishReply((published,), durability if best == "fsync" else best)


def _message_headers(headers: Mapping[bytes, bytes]) -> Mapping[str, HeaderValue]:
    given = headers.get(b"penstock-headers")
    trace = _trace(headers)
    if given is None:
        return trace or NO_HEADERS
    try:
        decoded = _HEADERS.decode(given)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        problem = refused(error, dict, "Penstock-Headers")
        problem.field = "Penstock-Headers"
        raise problem from error
    return {**trace, **decoded}


def _trace(headers: Mapping[bytes, bytes]) -> dict[str, HeaderValue]:
    """The caller's W3C trace context, as message headers."""
    parent = headers.get(b"traceparent")
    if parent is None:
        return {}
    trace: dict[str, HeaderValue] = {"traceparent": parent.decode("latin-1")}
    state = headers.get(b"tracestate")
    if state:
        trace["tracestate"] = state.decode("latin-1")
    return trace


def _traced(message: NewMessage, trace: dict[str, HeaderValue]) -> NewMessage:
    if "traceparent" in message.headers:
        return message
    return replace(message, headers={**trace, **message.headers})


def _text(value: bytes | None, field: str) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{field} is not UTF-8.", field=field) from error


def _number(headers: Mapping[bytes, bytes], name: bytes, default: int | None) -> int:
    value = headers.get(name)
    if value is None:
        # The broker's default is either None or the number passed here.
        return default  # type: ignore[return-value]
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        field = name.decode().title()
        raise BadInput(f"{field} is not a whole number.", field=field)
    return int(value)


def _flag(headers: Mapping[bytes, bytes], name: bytes, default: bool) -> bool:
    value = headers.get(name)
    if value is None:
        return default
    if value not in (b"true", b"false"):
        field = name.decode().title()
        raise BadInput(f"{field} is not true or false.", field=field)
    return value == b"true"


_ERRORS: Final[tuple[type[PenstockError], ...]] = (
    BadInput,
    UnknownTopic,
    TooLarge,
    SchemaViolation,
    TooManyQueues,
    QueueFull,
)

ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/topics/{topic}/messages",
        verb="publish",
        summary="Publish a raw body as one message, or a batch",
        need=Need("publish", "topic"),
        handler=publish,
        query=PublishQuery,
        body=RawBody(),
        is_raw=True,
        status=201,
        replies=((JSON, PublishReply),),
        errors=_ERRORS,
        tag="flow",
    ),
)
