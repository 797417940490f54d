"""The broker's part of publish: refuse malformed messages before anything is stored (E1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.broker.publish_batcher import PublishBatcher
from penstock.broker.schemas import Demand, check_payloads
from penstock.broker.scope import (
    BrokerOptions,
    Scope,
    check_count,
    check_flag,
    check_text,
    check_time,
    count_of,
    utf8_bytes,
)
from penstock.errors import (
    BadInput,
    PenstockError,
    SchemaViolation,
    TooLarge,
    TopicChanged,
    UnknownTopic,
)
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import (
    DEFAULT_PRIORITY,
    MAX_ATTEMPTS,
    MAX_BATCH,
    MAX_BATCH_MS,
    MAX_HEADER_NAME_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_PRIORITY,
    MAX_TIME_MS,
    check_name,
    check_whole,
    shown,
)
from penstock.model.message import (
    NO_HEADERS,
    Durability,
    HeaderValue,
    NewMessage,
    Published,
    PublishReply,
)
from penstock.model.payload import plain_messages, to_payload
from penstock.model.queue import TopicPolicy
from penstock.model.queue_events import check_unreserved
from penstock.storage.contract import Engine
from penstock.tracing import traced_headers, traced_messages, traced_publish

__all__ = [
    "Publishing",
    "check_batch",
    "check_batch_id",
    "is_long",
    "without_auto_create",
]

#: How often a publish is checked again because its topic's policy changed meanwhile.
_TRIES: Final = 20
_INT64: Final = range(-(2**63), 2**63)
_NUMBER_BYTES: Final = 8
#: Messages, and payload bytes, that are checked before other calls get their turn: with a schema,
#: a few milliseconds. A header takes as long as some bytes of payload.
_SLICE_MESSAGES: Final = 250
_SLICE_BYTES: Final = 512 * 1024
_HEADER_BYTES: Final = 128
#: So few messages without a schema are checked in one go: with all headers, in a few milliseconds.
_FEW_MESSAGES: Final = 100


class Publishing(Scope):
    """The verbs that publish."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        super().__init__(engine, options, tenant)
        self._batcher = PublishBatcher(engine, self.tenant)

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

        With a ``connection`` to the store's own database, the message is part of the
        transaction open there: it is published if and when that transaction commits.
        """
        raw, natural_type = to_payload(payload)
        message = NewMessage(
            raw,
            # A copy: the message waits for the end of the loop turn, and the caller may change it.
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
        check_name(topic, "topic")
        tries = 0
        while True:
            demand = self._remembered(topic) or await self._demand(topic)
            try:
                checked = self._check_batch(topic, (message,), demand, durability)
                if connection is not None:
                    reply = await self._engine.publish_within(
                        connection, self.tenant, topic, checked, checked={topic: demand.policy}
                    )
                    return reply.messages[0]
                return await self._batcher.publish(topic, checked[0], durability, demand.policy)
            except (TopicChanged, SchemaViolation) as error:
                tries += 1
                await self._check_again(error, tries, topic)

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
        With a ``connection`` the batch is part of the transaction open there, as in ``publish``.
        """
        check_name(topic, "topic")
        batch_ms = check_batch_id(batch_id, batch_ms)
        messages = traced_messages(messages)
        if auto_create is not True:
            messages = without_auto_create(messages, auto_create)
        tries = 0
        shares, cost = self._engine.shares, count_of(messages)
        if not shares.enter(self.tenant, cost):
            await shares.wait(self.tenant, cost)
        try:
            while True:
                try:
                    checked, policy = await self._checked(topic, messages, durability)
                    by = {topic: policy}
                    # No await between this and the engine: the caller could change its list.
                    if connection is not None:
                        return await self._engine.publish_within(
                            connection, self.tenant, topic, checked, batch_id, batch_ms, checked=by
                        )
                    return await self._engine.publish(
                        self.tenant, topic, checked, durability, batch_id, batch_ms, checked=by
                    )
                except (TopicChanged, SchemaViolation) as error:
                    tries += 1
                    await self._check_again(error, tries, topic)
        finally:
            shares.leave(self.tenant, cost)

    async def _check_again(self, error: PenstockError, tries: int, *topics: str) -> None:
        """Reload the topics' policies; raises the error unless one of them has changed.

        The cache may be stale in either direction: it lacks a new schema (the engine says so), or
        has one that another process removed.
        """
        before = [self._schemas.remembered(topic) for topic in topics]
        changed = isinstance(error, TopicChanged)
        for topic, known in zip(topics, before, strict=True):
            self._schemas.forget(topic)
            now = await self._demand(topic)
            changed |= known is not None and known.policy != now.policy
        if not changed or tries >= _TRIES:
            raise error

    async def _checked(
        self, topic: str, messages: Sequence[NewMessage], durability: Durability = "fsync"
    ) -> tuple[Sequence[NewMessage], TopicPolicy | None]:
        """The batch with absolute times, and the policy that it was checked against.

        A large batch is copied and checked in slices.
        """
        demand = self._remembered(topic) or await self._demand(topic)
        while _is_large(messages, demand):
            checked = await self._check_slices(topic, messages, demand, durability)
            # The topic's schema may have changed meanwhile, and takes effect immediately.
            now = self._remembered(topic) or await self._demand(topic)
            if now.checker is demand.checker:
                return checked, now.policy
            demand = now
        return self._check_batch(topic, messages, demand, durability), demand.policy

    async def _check_slices(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        demand: Demand,
        durability: Durability,
    ) -> Sequence[NewMessage]:
        check_batch_size(messages)
        owned = tuple(messages)
        checked: list[NewMessage] = []
        while len(checked) < len(owned):
            part = _slice(owned, len(checked))
            checked += self._check_batch(topic, part, demand, durability, len(checked))
            await self._engine.turns.take(self.tenant)
        return checked

    def _check_batch(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        demand: Demand,
        durability: Durability = "fsync",
        first: int = 0,
    ) -> Sequence[NewMessage]:
        if durability not in ("fsync", "os"):
            raise BadInput(f"durability is {durability!r}, not fsync or os.", field="durability")
        try:
            has_relative_times = check_batch(messages, self._limits.payload_bytes)
        except BadInput:
            # Other values than bytes and milliseconds are rare, so they are converted only here.
            if not isinstance(messages, list | tuple):
                raise
            messages = plain_messages(messages)
            has_relative_times = check_batch(messages, self._limits.payload_bytes)
        checked = _absolute(messages, self._clock.now()) if has_relative_times else messages
        if demand.checker is not None:
            check_payloads(demand.checker, topic, checked, first)
        return checked

    def _remembered(self, topic: str) -> Demand | None:
        """What the topic demands, from the cache; None if it has to be read."""
        return None if self._options.require_topics else self._schemas.remembered(topic)

    async def _demand(self, topic: str) -> Demand:
        check_unreserved(topic, "topic")
        demand = await self._schemas.read(topic)
        if self._options.require_topics and demand.policy is None:
            raise UnknownTopic(f"There is no topic {topic!r}.", field="topic")
        return demand


def check_batch_id(batch_id: str | None, batch_ms: Duration | None) -> int | None:
    """``batch_ms`` in milliseconds. Refuses a malformed batch id, or a time out of bounds."""
    batch_ms = to_ms(batch_ms)
    if batch_id is not None:
        check_text("batch_id", batch_id, least=1)
    if batch_ms is not None:
        check_count("batch_ms", batch_ms, MAX_BATCH_MS)
        if batch_id is None:
            raise BadInput(
                "batch_ms is how long to remember a batch_id; there is none.", field="batch_ms"
            )
    return batch_ms


def without_auto_create(
    messages: Sequence[NewMessage], auto_create: object
) -> Sequence[NewMessage]:
    """The messages of a batch that was published with ``auto_create=False``."""
    check_flag("auto_create", auto_create)
    check_batch_size(messages)
    return [
        replace(message, auto_create=False) if type(message) is NewMessage else message
        for message in messages
    ]


def check_batch_size(messages: Sequence[NewMessage]) -> None:
    """Refuse a batch that is not a list or tuple, or that is empty or too long."""
    if not isinstance(messages, list | tuple):
        raise BadInput("A batch must be a list or tuple of NewMessage.", field="messages")
    if not messages:
        raise BadInput("A batch must have at least one message.", field="messages", limit=1)
    if len(messages) > MAX_BATCH:
        raise TooLarge(
            f"A batch has {len(messages)} messages; the limit is {MAX_BATCH}.",
            field="messages",
            limit=MAX_BATCH,
        )


def is_long(messages: Sequence[NewMessage]) -> bool:
    """Whether checking the batch in one go may delay others: many messages, or many bytes."""
    if not isinstance(messages, list | tuple) or not 1 < len(messages) <= MAX_BATCH:
        return False
    return len(messages) > _SLICE_MESSAGES or sum(map(_size, messages)) > _SLICE_BYTES


def _is_large(messages: Sequence[NewMessage], demand: Demand) -> bool:
    if not isinstance(messages, list | tuple):
        return False
    # Without a schema the payloads are not read, and adding their sizes up takes time.
    return (demand.checker is not None or len(messages) > _FEW_MESSAGES) and is_long(messages)


def _slice(messages: Sequence[NewMessage], begin: int) -> list[NewMessage]:
    """The next slice of messages, with copies of their headers."""
    part: list[NewMessage] = []
    remaining = _SLICE_BYTES
    for message in messages[begin : begin + _SLICE_MESSAGES]:
        remaining -= _size(message)
        if remaining < 0 and part:
            break
        is_shared = type(message) is NewMessage and message.headers
        if is_shared and type(message.headers) is dict:
            part.append(replace(message, headers=message.headers.copy()))
        else:
            part.append(message)
    return part


def _size(message: NewMessage) -> int:
    # Anything else is refused when the message is checked.
    if type(message) is not NewMessage or type(message.payload) is not bytes:
        return 0
    headers = message.headers
    return len(message.payload) + (_HEADER_BYTES * len(headers) if type(headers) is dict else 0)


def check_batch(messages: Sequence[NewMessage], payload_limit: int) -> bool:
    """Refuse a batch that may not be stored; returns whether it has relative times."""
    check_batch_size(messages)
    relative = False
    for message in messages:
        if type(message) is not NewMessage:
            raise BadInput("A batch must be a list or tuple of NewMessage.", field="messages")
        payload = message.payload
        if type(payload) is not bytes:
            raise BadInput(f"The payload is {type(payload).__name__}, not bytes.", field="payload")
        if len(payload) > payload_limit:
            raise TooLarge(
                f"A payload of {len(payload)} bytes is over the limit of {payload_limit}.",
                field="payload",
                limit=payload_limit,
            )
        if message.headers:
            _check_headers(message.headers)
        priority = message.priority
        if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
            raise BadInput(
                f"priority is {shown(priority)}; it must be a whole number from 0 to "
                f"{MAX_PRIORITY}.",
                field="priority",
                limit=MAX_PRIORITY,
            )
        # Most messages have none of these, and checking each costs a quarter of a microsecond.
        if (
            message.id is not None
            or message.key is not None
            or message.partition_key is not None
            or message.content_type is not None
            or message.deliver_at is not None
            or message.expires_at is not None
            or message.delay_ms is not None
            or message.ttl_ms is not None
            or message.auto_create is not True
            or message.max_attempts is not None
        ):
            relative = _check_options(message) or relative
    return relative


def _check_headers(headers: Mapping[str, HeaderValue]) -> None:
    if not isinstance(headers, Mapping):
        raise BadInput("headers must be a mapping of names to values.", field="headers")
    if len(headers) > MAX_HEADERS:
        raise TooLarge(
            f"{len(headers)} headers are over the limit of {MAX_HEADERS}.",
            field="headers",
            limit=MAX_HEADERS,
        )
    total = 0
    for name, value in headers.items():
        if type(name) is not str or not name:
            raise BadInput(f"A header is named {name!r}; names are text.", field="headers")
        name_bytes = utf8_bytes("headers", name)
        if name_bytes > MAX_HEADER_NAME_BYTES:
            raise TooLarge(
                f"A header's name is over {MAX_HEADER_NAME_BYTES} bytes.",
                field="headers",
                limit=MAX_HEADER_NAME_BYTES,
            )
        total += name_bytes + _header_bytes(name, value)
    if total > MAX_HEADERS_BYTES:
        raise TooLarge(
            f"The headers have {total} bytes together; the limit is {MAX_HEADERS_BYTES}.",
            field="headers",
            limit=MAX_HEADERS_BYTES,
        )


def _header_bytes(name: str, value: HeaderValue) -> int:
    kind = type(value)
    if kind is str:
        return utf8_bytes("headers", value)  # type: ignore[arg-type]
    if kind is int:
        if value not in _INT64:
            raise BadInput(f"Header {name!r} does not fit 64 bits.", field="headers")
    elif kind is not float and kind is not bool:
        raise BadInput(
            f"Header {name!r} is {kind.__name__}; it must be text, int, float or bool.",
            field="headers",
        )
    return _NUMBER_BYTES


def _check_options(message: NewMessage) -> bool:
    """Check texts and times; returns whether relative times have to be made absolute."""
    if message.id is not None:
        check_text("id", message.id, least=1)
    if message.key is not None:
        check_text("key", message.key, least=1)
    if message.partition_key is not None:
        check_text("partition_key", message.partition_key)
    if message.content_type is not None:
        check_text("content_type", message.content_type)
    check_flag("auto_create", message.auto_create)
    if message.max_attempts is not None:
        check_whole("max_attempts", message.max_attempts, 1, MAX_ATTEMPTS)
    delay_ms, ttl_ms = message.delay_ms, message.ttl_ms
    if message.deliver_at is not None:
        check_time("deliver_at", message.deliver_at, 0)
        if delay_ms is not None:
            raise BadInput("delay_ms and deliver_at exclude each other.", field="delay_ms")
    if message.expires_at is not None:
        check_time("expires_at", message.expires_at, 0)
        if ttl_ms is not None:
            raise BadInput("ttl_ms and expires_at exclude each other.", field="ttl_ms")
    if delay_ms is None and ttl_ms is None:
        return False
    if delay_ms is not None:
        check_time("delay_ms", delay_ms, 0)
    if ttl_ms is not None:
        check_time("ttl_ms", ttl_ms, 1)
    return True


def _absolute(messages: Sequence[NewMessage], now: int) -> list[NewMessage]:
    """The messages with relative times made absolute."""
    return [_at(message, now) for message in messages]


def _at(message: NewMessage, now: int) -> NewMessage:
    if message.delay_ms is None and message.ttl_ms is None:
        return message
    deliver_at, expires_at = message.deliver_at, message.expires_at
    if message.delay_ms is not None:
        deliver_at = min(now + message.delay_ms, MAX_TIME_MS)
    if message.ttl_ms is not None:
        expires_at = min(now + message.ttl_ms, MAX_TIME_MS)
    return replace(
        message, deliver_at=deliver_at, expires_at=expires_at, delay_ms=None, ttl_ms=None
    )
