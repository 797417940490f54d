"""The base of the broker's classes: an engine, the options, one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt
from typing import Final

from msgspec import Struct

from penstock.api import BULK_LIMIT
from penstock.broker.schemas import Schemas
from penstock.errors import BadFilter, BadInput, TooLarge
from penstock.filters import Filter, Selection, parse
from penstock.model.delivery import ReplaySource
from penstock.model.limits import (
    MAX_ASSIGN,
    MAX_FILTER_BYTES,
    MAX_KEY_BYTES,
    MAX_OFFSET,
    MAX_TIME_MS,
    check_name,
    check_whole,
    shown,
)
from penstock.model.message import Message, MessageId, Offset
from penstock.model.queue import Routing
from penstock.model.states import State
from penstock.model.webhooks import WebhookOptions
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.listener import Listener

__all__ = [
    "BrokerOptions",
    "Scope",
    "check_assignment",
    "check_count",
    "check_find",
    "check_flag",
    "check_ids",
    "check_offset",
    "check_replay",
    "check_text",
    "check_time",
    "count_of",
    "to_message_id",
    "to_selection",
    "to_state",
    "to_where",
    "utf8_bytes",
]

#: Deliveries per second of a replay.
_MAX_RATE: Final = 10**9


class BrokerOptions(Struct, frozen=True, kw_only=True):
    """The operator's options, including those of the engine."""

    engine: EngineOptions = EngineOptions()
    require_topics: bool = False
    """Publishing to a topic that was not registered is refused."""
    routing: Routing = "broker"
    """Which component catches up queues that are far behind: the keeper, or the pipeline."""
    webhooks: WebhookOptions = WebhookOptions()
    """How webhooks are called."""
    listener: Listener | None = None
    """Also receives the engine's notifications, after the broker's own waiters."""


class Scope:
    """One tenant of one engine (T1)."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        self._engine = engine
        self._options = options
        self._limits = options.engine.limits
        self._clock = engine.clock
        self.tenant = check_name(tenant, "tenant")
        #: The topics' schemas. Publishing reads them, changing a policy invalidates them.
        self._schemas = Schemas(engine, self.tenant)

    @property
    def options(self) -> BrokerOptions:
        """The options that the store was opened with."""
        return self._options


def to_where(where: str | None) -> Filter | None:
    """The filter that a bulk verb selects by; None selects everything."""
    if where is None:
        return None
    try:
        return parse(where)
    except BadFilter as error:
        error.field = "where"
        raise


class _Chosen(Struct, frozen=True):
    """Messages by id, narrowed by a filter."""

    ids: frozenset[int]
    where: Filter | None

    def matches(self, message: Message) -> bool:
        """Whether the message is selected."""
        return message.id in self.ids and (self.where is None or self.where.matches(message))


def check_ids(ids: Sequence[int] | None) -> None:
    """Refuse an ``ids`` that is not a list of ids, or is too long for one call."""
    if ids is None:
        return
    if not isinstance(ids, list | tuple) or not {int}.issuperset(map(type, ids)):
        raise BadInput("ids must be a list of message ids.", field="ids")
    if len(ids) > MAX_ASSIGN:
        raise TooLarge(
            f"{len(ids)} ids are too many for one call; at most {MAX_ASSIGN}.",
            field="ids",
            limit=MAX_ASSIGN,
        )
    if ids and not (min(ids) >= 0 and max(ids) <= MAX_OFFSET):
        raise BadInput(
            f"ids must be message ids: whole numbers from 0 to {MAX_OFFSET}.",
            field="ids",
            limit=MAX_OFFSET,
        )


def to_selection(where: str | None, ids: Sequence[int] | None) -> Selection | None:
    """The selection by filter and ids; None selects everything."""
    check_ids(ids)
    chosen = to_where(where)
    return chosen if ids is None else _Chosen(frozenset(ids), chosen)


def check_find(
    topic: str, id: str | None, key: str | None, partition_key: str | None = None
) -> None:
    """Refuse a search without a valid topic, or without exactly one of id and key."""
    check_name(topic, "topic")
    if (id is None) == (key is None):
        raise BadInput("Give either id or key.", field="id" if id is None else "key")
    check_text("id" if key is None else "key", id if key is None else key, least=1)
    if partition_key is not None:
        if id is None:
            raise BadInput("A partition_key is given only with an id.", field="partition_key")
        check_text("partition_key", partition_key)


def utf8_bytes(field: str, text: str) -> int:
    """The length of a text in UTF-8; raises if it is not valid Unicode."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise BadInput(f"{field} holds text that is not valid Unicode.", field=field) from error


def count_of(items: object) -> int:
    """The number of items of a call, before they are validated."""
    return len(items) if isinstance(items, list | tuple) else 0


def check_text(field: str, value: object, *, least: int = 0, most: int = MAX_KEY_BYTES) -> None:
    """Refuse a value that is not a text of at most ``most`` bytes."""
    if type(value) is not str:
        raise BadInput(f"{field} is {type(value).__name__}; it must be text.", field=field)
    size = utf8_bytes(field, value)
    if size > most:
        raise TooLarge(f"{field} has {size} bytes; the limit is {most}.", field=field, limit=most)
    if size < least:
        raise BadInput(f"{field} is empty.", field=field)


def check_flag(field: str, value: object) -> None:
    """Refuse a value that is not a bool."""
    if type(value) is not bool:
        raise BadInput(f"{field} is {shown(value)}; it must be true or false.", field=field)


def check_time(field: str, value: object, least: int) -> None:
    """Refuse a value that is not a number of milliseconds from ``least`` on."""
    if type(value) is not int or not least <= value <= MAX_TIME_MS:
        over = type(value) is int and value > MAX_TIME_MS
        raise BadInput(
            f"{field} is {shown(value)}; it must be a whole number of milliseconds from {least} to "
            f"{MAX_TIME_MS}.",
            field=field,
            limit=MAX_TIME_MS if over else least,
        )


def check_offset(field: str, value: object) -> Offset:
    """Return the offset, or refuse it."""
    if type(value) is not int or not 0 <= value <= MAX_OFFSET:
        raise BadInput(
            f"{field} is {shown(value)}; it must be an offset, from 0 to {MAX_OFFSET}.",
            field=field,
            limit=MAX_OFFSET,
        )
    return Offset(value)


def check_assignment(filter: str, start: int, end: int, offsets: Sequence[int]) -> None:
    """Refuse an invalid range, and offsets that are outside it or not increasing."""
    check_text("filter", filter, least=1, most=MAX_FILTER_BYTES)
    check_offset("start", start)
    check_offset("end", end)
    if start > end:
        raise BadInput(f"end is {end}; it must not be below start, {start}.", field="end")
    if not isinstance(offsets, list | tuple):
        raise BadInput("offsets must be a list of offsets.", field="offsets")
    if len(offsets) > MAX_ASSIGN:
        raise TooLarge(
            f"{len(offsets)} offsets are too many for one assignment; at most {MAX_ASSIGN}.",
            field="offsets",
            limit=MAX_ASSIGN,
        )
    if not {int}.issuperset(map(type, offsets)):
        raise BadInput("offsets must be whole numbers.", field="offsets")
    if offsets and (offsets[0] < start or offsets[-1] >= end):
        raise BadInput(f"offsets must be at least {start} and below {end}.", field="offsets")
    if not all(map(lt, offsets, offsets[1:])):
        raise BadInput("offsets must be strictly increasing.", field="offsets")


def check_replay(
    source: ReplaySource | str, limit: object, rate: object, replay_id: object, ttl_ms: object
) -> ReplaySource:
    """Check the arguments of a replay; returns its source."""
    check_count("limit", limit, BULK_LIMIT)
    if rate is not None:
        check_count("rate", rate, _MAX_RATE)
    if replay_id is not None:
        check_text("replay_id", replay_id, least=1)
    if ttl_ms is not None:
        check_whole("ttl_ms", ttl_ms, 1, MAX_TIME_MS)
    try:
        return ReplaySource(source)
    except ValueError as error:
        raise BadInput("source must be failed, done or log.", field="source") from error


def to_state(state: State | str) -> State:
    """The state of that name."""
    try:
        return State(state)
    except ValueError as error:
        states = ", ".join(item.value for item in State)
        raise BadInput(f"state is {state!r}; it must be one of {states}.", field="state") from error


def to_message_id(message_id: object) -> MessageId:
    """Return the id, or refuse it."""
    if type(message_id) is not int or not 0 <= message_id <= MAX_OFFSET:
        raise BadInput(f"{shown(message_id)} is not a message id.", field="id", limit=MAX_OFFSET)
    return MessageId(message_id)


def check_count(field: str, value: object, most: int) -> None:
    """Refuse a count that is not between 1 and ``most``."""
    check_whole(field, value, 1, most)
