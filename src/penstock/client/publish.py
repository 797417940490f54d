"""Publish over HTTP: single messages share requests, a batch is a request of its own.

Every request has a batch id, so one whose answer was lost is retried, stored once and given
its first answer again (P4), within the topic's dedup window. The caller does not see
``repeated``, unless the batch id is its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from penstock.broker.publish import check_batch, check_batch_id, without_auto_create
from penstock.client.address import Address
from penstock.client.call_batcher import CallBatcher
from penstock.client.calling import Calls, read
from penstock.client.ids import Ids
from penstock.client.options import ClientOptions
from penstock.client.scope import UNENCODABLE, Scope, encoded
from penstock.client.transport import Request
from penstock.errors import BadInput, BadReply
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import DEFAULT_PRIORITY, MAX_PAYLOAD_BYTES, check_name, shown
from penstock.model.message import (
    NO_HEADERS,
    Durability,
    HeaderValue,
    NewMessage,
    Published,
    PublishReply,
)
from penstock.model.payload import plain_messages, to_payload
from penstock.tracing import traced_headers, traced_messages, traced_publish
from penstock.wire.bodies import PublishBody
from penstock.wire.codecs import BATCH_MSGPACK, encode_msgpack

__all__ = ["Publishing", "as_sendable"]

_REPLY: Final = msgspec.msgpack.Decoder(PublishReply)
#: Topic and durability, which all messages of a request share.
_Kind: TypeAlias = tuple[str, Durability]
#: What a message adds to a request besides its payload, approximately.
_MESSAGE_BYTES: Final = 150


class Publishing(Scope):
    """The verbs that publish."""

    def __init__(self, calls: Calls, address: Address, options: ClientOptions) -> None:
        super().__init__(calls, address, options)
        self._ids = Ids(options.id_prefix) if options.idempotent else None
        self._publishes: CallBatcher[_Kind, NewMessage, Published] = CallBatcher(
            self._publish_singles, options
        )

    @traced_publish
    async def publish(
        self,
        topic: str,
        payload: object,
        *,
        headers: Mapping[str, HeaderValue] = NO_HEADERS,
        id: str | None = None,
        key: str | None = None,
        partition_key: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        content_type: str | None = None,
        delay_ms: Duration | None = None,
        deliver_at: int | None = None,
        ttl_ms: Duration | None = None,
        expires_at: int | None = None,
        auto_create: bool = True,
        max_attempts: int | None = None,
        durability: Durability = "fsync",
        connection: object | None = None,
    ) -> Published:
        """Publish one message: bytes unchanged, text as UTF-8, anything else as JSON.

        With ``auto_create=False`` the message creates no queue if no queue takes it.
        """
        _refuse_connection(connection)
        raw, natural_type = to_payload(payload)
        _check(topic, durability)
        message = NewMessage(
            raw,
            # A copy: the message may wait for others, and the caller may change it.
            traced_headers(headers.copy() if type(headers) is dict else headers),
            id,
            key,
            partition_key,
            priority,
            natural_type if content_type is None else content_type,
            deliver_at,
            expires_at,
            None if delay_ms is None else to_ms(delay_ms),
            None if ttl_ms is None else to_ms(ttl_ms),
            auto_create,
            max_attempts,
        )
        return await self._publishes.call((topic, durability), message, len(raw) + _MESSAGE_BYTES)

    @traced_publish
    async def publish_batch(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        durability: Durability = "fsync",
        batch_id: str | None = None,
        batch_ms: Duration | None = None,
        auto_create: bool = True,
        connection: object | None = None,
    ) -> PublishReply:
        """Publish a batch: all of it or nothing (P2), once per ``batch_id`` (P4).

        The id is remembered for the topic's dedup window, or for ``batch_ms``.
        With ``auto_create=False`` no message of the batch creates a queue.
        """
        _refuse_connection(connection)
        kept_ms = check_batch_id(batch_id, batch_ms)
        _check(topic, durability)
        messages = check_shape(messages)
        if auto_create is not True:
            messages = without_auto_create(messages, auto_create)
        return await self._publish(topic, traced_messages(messages), durability, batch_id, kept_ms)

    async def _publish_singles(
        self, kind: _Kind, messages: list[NewMessage]
    ) -> Sequence[Published]:
        topic, durability = kind
        return (await self._publish(topic, messages, durability)).messages

    async def _publish(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        durability: Durability,
        given_id: str | None = None,
        batch_ms: int | None = None,
    ) -> PublishReply:
        batch_id = given_id
        if batch_id is None and self._ids is not None:
            batch_id = self._ids.next()
        body = _encode(messages, durability, batch_id, batch_ms)
        request = Request(
            "POST",
            self._target(f"/v1/topics/{topic}/messages"),
            body,
            BATCH_MSGPACK,
            repeatable=batch_id is not None or all(item.id is not None for item in messages),
        )
        try:
            answer = await self._calls.call(request)
        except BadInput:
            # Raise the broker's own error, if its checks find one.
            check_batch(messages, MAX_PAYLOAD_BYTES)
            raise
        reply = read(_REPLY, answer)
        if reply.repeated and given_id is not None:
            # The answer to the first batch of that id, which may have been a different one.
            return reply
        if len(reply.messages) != len(messages):
            raise BadReply(f"{len(reply.messages)} answers to {len(messages)} messages.")
        # Only this client knows the id, so the repetition was its own retry.
        return replace(reply, repeated=False) if reply.repeated else reply


def check_shape(messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """The messages with bytes and milliseconds; refuses a malformed batch."""
    if not isinstance(messages, list | tuple) or not all(
        type(message) is NewMessage for message in messages
    ):
        check_batch(messages, MAX_PAYLOAD_BYTES)
    return messages if all(map(_is_plain, messages)) else plain_messages(messages)


def _is_plain(message: NewMessage) -> bool:
    payload: object = message.payload
    times: tuple[object, ...] = (message.delay_ms, message.ttl_ms)
    return type(payload) is bytes and (
        times == (None, None) or not any(isinstance(time, timedelta) for time in times)
    )


def as_sendable(messages: Sequence[NewMessage]) -> list[NewMessage]:
    """The messages with headers as dicts, which can be encoded, if they are other mappings."""
    return [
        message
        if type(message.headers) is dict
        else replace(message, headers=dict(message.headers))
        for message in messages
    ]


def _refuse_connection(connection: object | None) -> None:
    if connection is not None:
        raise BadInput(
            "A server cannot publish in a transaction of its caller; open the store itself, with "
            "penstock.open.",
            field="connection",
        )


def _check(topic: str, durability: Durability) -> None:
    check_name(topic, "topic")
    if not isinstance(durability, str):
        raise BadInput(f"durability is {shown(durability)}, not fsync or os.", field="durability")


def _encode(
    messages: Sequence[NewMessage],
    durability: Durability,
    batch_id: str | None,
    batch_ms: int | None,
) -> bytes:
    # For mypy: a tuple encodes like a list, and a copy is not worth it.
    body = PublishBody(messages, durability, batch_id, batch_ms)  # type: ignore[arg-type]
    try:
        return encode_msgpack(body)
    except UNENCODABLE:
        check_batch(messages, MAX_PAYLOAD_BYTES)
        sendable = as_sendable(messages)
        return encoded(PublishBody(sendable, durability, batch_id, batch_ms), lambda: None)
