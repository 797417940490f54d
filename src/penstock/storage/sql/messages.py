"""One message: its newest entry, its deliveries, their results and histories.

A message is looked up within its tenant (T1), by its first entry or, if it was replaced, by its
newest.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.errors import UnknownDelivery, UnknownMessage
from penstock.model.delivery import (
    Event,
    MessageDeliveries,
    Receipt,
    Result,
    ResultStatus,
    Snapshot,
)
from penstock.model.message import Message, MessageId
from penstock.model.states import State, Transition
from penstock.storage.dedup_scope import stored_id
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Session
from penstock.storage.sql.deliveries import DeliveryGroup, Phase, is_dead, segment_of
from penstock.storage.sql.group_cursor import snapshot
from penstock.storage.sql.ids import kind_of
from penstock.storage.sql.segments import Segment

__all__ = ["deliveries_of", "events_of", "find", "history", "message", "newest_entry", "result"]

#: Message ids have 63 bits.
_MAX_ID: Final = (1 << 63) - 1


async def message(core: Core, tenant: str, id: MessageId) -> MessageDeliveries:
    """The current message, and its deliveries."""

    async def look(session: Session, known: Tenant) -> MessageDeliveries:
        found, segment = await newest_entry(session, known, id, payloads=True)
        payload = segment.payload(segment_of(found.offset)[1])
        deliveries = [
            _shown(core, queue, group, found)
            for queue, group in await deliveries_of(session, known, id)
        ]
        deliveries.sort(key=lambda shown: shown.queue)
        return MessageDeliveries(found, payload, tuple(deliveries))

    return await core.read(tenant, look)


def _shown(core: Core, queue: Queue, group: DeliveryGroup, message: Message) -> Snapshot:
    """The delivery; if it is in flight, with the receipt of the claim."""
    failed = group.phase is Phase.DEAD_RETURNED
    shown = snapshot(queue, group.phase, group.record, message, failed=failed)
    if shown.state is not State.IN_FLIGHT:
        return shown
    prefix = core.receipts.prefix(queue.number, group.rank, group.record.lease)
    return replace(shown, receipt=Receipt(f"{prefix}{message.id:x}"))


async def find(
    core: Core, tenant: str, topic: str, id: str, partition_key: str | None
) -> Message | None:
    """The message with this idempotency id, if it was published inside the topic's window."""

    async def look(session: Session, known: Tenant) -> Message | None:
        policy = known.topic(topic)
        text = stored_id(policy, id, partition_key).encode()
        kind = kind_of(policy)
        rows = await session.fetch("find_id", tenant=known.number, kind=kind, topic=topic, id=text)
        if not rows or rows[0][0] + policy.dedup_window_ms <= core.clock.now():
            return None
        try:
            return (await newest_entry(session, known, MessageId(rows[0][1])))[0]
        except UnknownMessage:
            return None

    return await core.read(tenant, look)


async def result(core: Core, tenant: str, queue: str, id: MessageId) -> Result | None:
    """How the delivery ended; None if it has not ended or is not routed yet."""

    async def look(session: Session, known: Tenant) -> Result | None:
        wanted, dead = known.find(queue)
        message, _ = await newest_entry(session, known, id)
        group = await _delivery(session, known, wanted, id)
        if group is None:
            # Read the cursor first: the next statement sees every entry below it.
            rows = await session.fetch("read_cursor", queue=wanted.number)
            cursor = rows[0][0] if rows else None
            if cursor is not None and message.offset >= cursor:
                return None
            group = await _delivery(session, known, wanted, id)
        if group is None:
            raise UnknownDelivery(f"Queue {queue!r} has no delivery of message {id}.", field="id")
        return _result(id, group, dead=dead)

    return await core.read(tenant, look)


async def _delivery(
    session: Session, known: Tenant, queue: Queue, id: MessageId
) -> DeliveryGroup | None:
    """The group of the message's delivery in the queue or in its dead letters."""
    for found, group in await deliveries_of(session, known, id):
        if found.number == queue.number:
            return group
    return None


def _result(id: MessageId, group: DeliveryGroup, *, dead: bool) -> Result | None:
    """The result that a group shows to its queue, or to its dead-letter queue."""
    record = group.record
    if group.phase is Phase.DEAD_DONE or (group.phase is Phase.DONE and not dead):
        return Result(
            message_id=id,
            status=ResultStatus.DONE,
            result=record.result,
            attempts=record.attempts,
            at=record.at or 0,
        )
    if dead or not (is_dead(group.phase) or group.phase is Phase.EXPIRED):
        return None
    return Result(
        message_id=id,
        status=ResultStatus.FAILED if is_dead(group.phase) else ResultStatus.EXPIRED,
        error=record.error,
        attempts=record.attempts,
        at=record.at or 0,
    )


async def history(core: Core, tenant: str, id: MessageId) -> tuple[Event, ...]:
    """Every recorded transition of every delivery, by time."""

    async def look(session: Session, known: Tenant) -> tuple[Event, ...]:
        found, _ = await newest_entry(session, known, id)
        events = [
            event
            for queue, group in await deliveries_of(session, known, id)
            for event in events_of(queue, group, found.published_at, found.deliver_at)
        ]
        return tuple(sorted(events, key=lambda event: event.at))

    return await core.read(tenant, look)


def events_of(
    queue: Queue, group: DeliveryGroup, published_at: int, deliver_at: int
) -> list[Event]:
    """The history of a delivery whose message was published and first due at these times."""
    published = Event(
        at=published_at,
        queue=queue.name,
        transition=Transition.PUBLISH,
        state=State.DELAYED if deliver_at > published_at else State.AVAILABLE,
    )
    events = [
        Event(
            at=mark.at,
            queue=queue.shown_as(dead=mark.dead),
            transition=mark.transition,
            state=mark.state,
            consumer=mark.consumer,
            error=mark.error,
        )
        for mark in group.record.marks
    ]
    return [published, *events]


async def newest_entry(
    session: Session, known: Tenant, id: MessageId, *, payloads: bool = False
) -> tuple[Message, Segment]:
    """The message's newest entry, and its segment.

    Read from the database: another server may have removed a segment that is cached here.
    """
    if 0 <= id <= _MAX_ID:
        newest = await session.fetch("find_newest", messages=[int(id)])
        number, index = segment_of(newest[0][1] if newest else id)
        statement = "read_segments" if payloads else "read_metadata"
        rows = await session.fetch(statement, tenant=known.number, numbers=[number])
        for _, published_at, metadata, *rest in rows:
            contents = rest[0] if payloads else None
            segment = Segment.read(number, known.number, published_at, metadata, contents)
            found = segment.message(index) if index < len(segment.metadata) else None
            # The offset of a replacement is not a message id.
            if found is not None and found.id == id:
                return found, segment
    raise UnknownMessage(f"There is no message {id}.", field="id")


async def deliveries_of(
    session: Session, known: Tenant, id: MessageId
) -> list[tuple[Queue, DeliveryGroup]]:
    """The deliveries of a message, ordered by queue name."""
    number, index = segment_of(id)
    rows = await session.fetch("segment_groups", segments=[number], queues=sorted(known.numbered))
    found = [
        (known.numbered[group.queue], group)
        for group in (DeliveryGroup.read(row) for row in rows)
        if index in group.members
    ]
    return sorted(found, key=lambda found_in: found_in[0].name)
