"""Listings of queue-ti: pending messages and the message log, by offset, and counts.

queue-ti pages by a number of rows, Penstock by cursor. So a page skips the rows before it, without
their payloads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from msgspec import Struct

from penstock.broker import Broker
from penstock.errors import TooLarge
from penstock.model.delivery import QueueStats, Snapshot
from penstock.model.limits import DLQ_SUFFIX, MAX_PAGE
from penstock.model.queue import QueueInfo
from penstock.model.states import State
from penstock.server.doors.json_bodies import rfc3339
from penstock.server.doors.message_uuid import message_uuid
from penstock.server.doors.queue_ti.messages import EXPIRED, PENDING, PROCESSING
from penstock.server.doors.queue_ti.topics import (
    TOPIC_LABEL,
    TopicName,
    queues_of,
    topic_filter,
    topic_text,
)

__all__ = [
    "Archived",
    "LogPage",
    "Paging",
    "StatusCount",
    "archived",
    "counts",
    "list_messages",
    "message_log",
    "topics_of",
    "walk",
]

#: Rows that one page may skip: a walk of some hundred milliseconds.
MAX_OFFSET: Final = 100_000
#: Payloads of one page; encoding them takes some 10 ms.
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
_LIVE: Final = (State.AVAILABLE, State.DELAYED, State.IN_FLIGHT, State.EXPIRED)


class Paging(Struct, frozen=True):
    """A page: how many rows, after how many others."""

    limit: int = 50
    offset: int = 0


class Archived(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An acked message."""

    id: str
    topic: str
    key: str | None = None
    payload: bytes
    """In JSON, base64."""
    retry_count: int
    original_topic: str | None = None
    created_at: str
    acked_at: str


class LogPage(Struct, frozen=True):
    """A page of acked messages."""

    items: list[Archived]
    total: int
    limit: int
    offset: int


class StatusCount(Struct, frozen=True):
    """How many messages of a topic have a status."""

    topic: str
    status: str
    count: int


async def list_messages(
    broker: Broker, topic: TopicName | None, paging: Paging
) -> tuple[list[Snapshot], int]:
    """A page of the messages of a topic, or of all topics; and how many there are."""
    if topic is None:
        places = [
            place
            for info in await topics_of(broker)
            for place in (*_live(info.name), *_dead(info.name))
        ]
    else:
        queues = await queues_of(broker, topic)
        places = [
            place
            for info in queues
            for place in (_dead(info.name) if topic.is_dlq else _live(info.name))
        ]
    return await _page(broker, places, paging)


async def message_log(broker: Broker, topic: TopicName, paging: Paging) -> LogPage:
    """A page of the acked messages of a topic."""
    places = [(info.name, State.DONE) for info in await queues_of(broker, topic)]
    items, total = await _page(broker, places, paging)
    return LogPage([archived(item) for item in items], total, paging.limit, paging.offset)


def archived(item: Snapshot) -> Archived:
    """An acked message as the message log shows it."""
    message = item.message
    return Archived(
        id=message_uuid(message.id),
        topic=topic_text(message.topic),
        key=message.key,
        payload=item.payload or b"",
        retry_count=max(0, item.attempts - item.released - 1),
        created_at=rfc3339(message.published_at),
        acked_at=rfc3339(item.at or message.published_at),
    )


async def counts(broker: Broker) -> list[StatusCount]:
    """The messages of every topic by status, without zeros."""
    found: dict[tuple[str, str], int] = {}
    for info in await topics_of(broker):
        topic = topic_text(info.policy.labels.get(TOPIC_LABEL, info.name))
        stats = await broker.stats(info.name)
        dead = (await broker.stats(info.name + DLQ_SUFFIX)).in_flight
        for name, status, count in (
            (topic, PENDING, stats.available + stats.delayed),
            (topic, PROCESSING, stats.in_flight),
            (topic, EXPIRED, stats.expired),
            (topic + DLQ_SUFFIX, PENDING, stats.failed - dead),
            (topic + DLQ_SUFFIX, PROCESSING, dead),
        ):
            found[name, status] = found.get((name, status), 0) + count
    return [
        StatusCount(topic, status, count)
        for (topic, status), count in sorted(found.items())
        if count
    ]


async def topics_of(broker: Broker) -> list[QueueInfo]:
    """The queues of topics: those of this door, and those that take one topic of their name."""
    return [
        info
        for info in await broker.queues()
        if TOPIC_LABEL in info.policy.labels or info.policy.filter == topic_filter(info.name)
    ]


async def walk(
    broker: Broker, queue: str, state: State, *, where: str | None = None
) -> AsyncIterator[tuple[Snapshot, ...]]:
    """The deliveries of a queue in a state, in pages, without payloads."""
    cursor: str | None = None
    while True:
        page = await broker.peek(queue, state, where=where, limit=MAX_PAGE, cursor=cursor)
        yield page.items
        cursor = page.cursor
        if cursor is None:
            return


def _live(queue: str) -> list[tuple[str, State]]:
    return [(queue, state) for state in _LIVE]


def _dead(queue: str) -> list[tuple[str, State]]:
    return [(queue, State.FAILED), (queue + DLQ_SUFFIX, State.IN_FLIGHT)]


async def _page(
    broker: Broker, places: Sequence[tuple[str, State]], paging: Paging
) -> tuple[list[Snapshot], int]:
    counted = [(place, await _count(broker, *place)) for place in places]
    total = sum(count for _, count in counted)
    items: list[Snapshot] = []
    skip = min(paging.offset, MAX_OFFSET)
    for (queue, state), count in counted:
        if skip >= count:
            skip -= count
            continue
        rows = await _rows(broker, queue, state, skip, paging.limit - len(items))
        items += rows
        skip = 0
        if len(items) >= paging.limit:
            break
    return items, total


async def _rows(
    broker: Broker, queue: str, state: State, skip: int, limit: int
) -> Iterable[Snapshot]:
    cursor: str | None = None
    while skip > 0:
        page = await broker.peek(queue, state, limit=min(skip, MAX_PAGE), cursor=cursor)
        skip -= len(page.items)
        cursor = page.cursor
        if cursor is None:
            return ()
    found: list[Snapshot] = []
    size = 0
    while len(found) < limit:
        page = await broker.peek(
            queue, state, limit=limit - len(found), cursor=cursor, payloads=True
        )
        found += page.items
        size += sum(item.message.size for item in page.items)
        if size > MAX_PAGE_BYTES and len(found) > 1:
            raise TooLarge(
                f"The page has more than {MAX_PAGE_BYTES} bytes of payloads; ask for fewer items.",
                field="limit",
                limit=MAX_PAGE_BYTES,
            )
        cursor = page.cursor
        if cursor is None:
            break
    return found


async def _count(broker: Broker, queue: str, state: State) -> int:
    stats: QueueStats = await broker.stats(queue)
    count = int(getattr(stats, state.value))
    if state is State.FAILED:
        # Dead letters in flight are failed too, but are listed in the dead-letter queue.
        count -= (await broker.stats(queue + DLQ_SUFFIX)).in_flight
    return max(0, count)
