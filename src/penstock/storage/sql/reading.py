"""Reading: the log, messages with their deliveries and histories, tenants.

The log is read up to its settled end and never beyond, so that no entry appears behind a reader
(L2). A message is looked up within its tenant (T1), by its first entry or, if it was replaced,
by its newest.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import UnknownMessage
from penstock.model.delivery import Event, LogEntry, LogPage, MessageDeliveries, Result
from penstock.model.message import Message, MessageId, Offset
from penstock.model.states import State, Transition
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Session
from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import Run, message_id, segment_of
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.snapshots import snapshot

__all__ = [
    "behind",
    "end_of_log",
    "history",
    "life_of",
    "log_end",
    "message",
    "read_log",
    "result",
    "tenants",
]

#: Segments per read; with payloads, each holds an eighth of a megabyte, or one message.
_MAX_SEGMENTS: Final = 500
_MAX_WHOLE_SEGMENTS: Final = 32
#: Message ids have 63 bits.
_MAX_ID: Final = (1 << 63) - 1


# -- the log ---------------------------------------------------------------------------


async def read_log(
    core: Core, tenant: str, start: Offset, limit: int, *, payloads: bool
) -> LogPage:
    """Entries at or above ``start``, up to the settled end of the log."""
    settled = (await core.stable()).settled

    async def look(session: Session, known: Tenant) -> LogPage:
        first, index = segment_of(max(start, 0))
        most = _MAX_WHOLE_SEGMENTS if payloads else _MAX_SEGMENTS
        entries: list[LogEntry] = []
        while first <= settled and len(entries) < limit:
            rows = await session.fetch(
                "scan_segments" if payloads else "scan_heads",
                tenant=known.number,
                first=first,
                last=settled,
                # Every segment but the first has an entry for the page.
                most=min(limit - len(entries) + 1, most),
            )
            if not rows:
                break
            for number, published_at, heads, *rest in rows:
                segment = Segment.read(
                    number, known.number, published_at, heads, rest[0] if payloads else None
                )
                begin = index if number == first else 0
                end = min(len(segment.heads), begin + limit - len(entries))
                entries += [
                    LogEntry(segment.message(i), segment.payload(i) if payloads else None)
                    for i in range(begin, end)
                ]
            first, index = rows[-1][0] + 1, 0
        following = Offset(entries[-1].message.offset + 1) if entries else start
        return LogPage(tuple(entries), following)

    return await core.read(tenant, look)


async def log_end(core: Core, tenant: str) -> Offset:
    """The offset after the last settled entry there ever was."""
    settled = (await core.stable()).settled
    return await core.read(
        tenant, lambda session, known: end_of_log(session, known.number, settled)
    )


async def log_trimmed(core: Core, tenant: str) -> Offset:
    """The offset after the last entry that retention has removed."""

    async def look(session: Session, known: Tenant) -> Offset:
        ((trimmed, _, _),) = await session.fetch("log_end", tenant=known.number, last=0)
        return Offset(trimmed or 0)

    return await core.read(tenant, look)


async def end_of_log(session: Session, tenant: int, settled: int) -> Offset:
    """The offset after the tenant's last entry up to a segment, or after the last removed one."""
    ((trimmed, segment, entries),) = await session.fetch("log_end", tenant=tenant, last=settled)
    end = 0 if segment is None else message_id(segment, entries - 1) + 1
    return Offset(max(end, trimmed or 0))


# -- messages --------------------------------------------------------------------------


async def message(core: Core, tenant: str, id: MessageId) -> MessageDeliveries:
    """The current message, and its deliveries."""

    async def look(session: Session, known: Tenant) -> MessageDeliveries:
        found, segment = await _newest(session, known, id, payloads=True)
        payload = segment.payload(segment_of(found.offset)[1])
        deliveries = [
            snapshot(queue, run.phase, run.life, found, failed=run.phase is Phase.DEAD_RETURNED)
            for queue, run in await _deliveries(session, known, id)
        ]
        deliveries.sort(key=lambda shown: shown.queue)
        return MessageDeliveries(found, payload, tuple(deliveries))

    return await core.read(tenant, look)


async def result(core: Core, tenant: str, queue: str, id: MessageId) -> Result | None:
    """The result of the ack, while its done record is kept."""

    async def look(session: Session, known: Tenant) -> Result | None:
        wanted, dead = known.find(queue)
        await _newest(session, known, id)
        done = Phase.DEAD_DONE if dead else Phase.DONE
        for found, run in await _deliveries(session, known, id):
            if found.number == wanted.number and run.phase is done:
                return Result(id, run.life.result, run.life.at or 0)
        return None

    return await core.read(tenant, look)


async def history(core: Core, tenant: str, id: MessageId) -> tuple[Event, ...]:
    """Every recorded transition of every delivery, by time."""

    async def look(session: Session, known: Tenant) -> tuple[Event, ...]:
        found, _ = await _newest(session, known, id)
        events = [
            event
            for queue, run in await _deliveries(session, known, id)
            for event in life_of(queue, run, found.published_at, found.deliver_at)
        ]
        return tuple(sorted(events, key=lambda event: event.at))

    return await core.read(tenant, look)


def life_of(queue: Queue, run: Run, published_at: int, deliver_at: int) -> list[Event]:
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
        for mark in run.life.marks
    ]
    return [published, *events]


async def _newest(
    session: Session, known: Tenant, id: MessageId, *, payloads: bool = False
) -> tuple[Message, Segment]:
    """The message's newest entry, and its segment.

    Read from the database: another server may have removed a segment that is cached here.
    """
    if 0 <= id <= _MAX_ID:
        newest = await session.fetch("find_newest", messages=[int(id)])
        number, index = segment_of(newest[0][1] if newest else id)
        statement = "read_segments" if payloads else "read_heads"
        rows = await session.fetch(statement, tenant=known.number, numbers=[number])
        for _, published_at, heads, *rest in rows:
            contents = rest[0] if payloads else None
            segment = Segment.read(number, known.number, published_at, heads, contents)
            found = segment.message(index) if index < len(segment.heads) else None
            # The offset of a replacement is not a message id.
            if found is not None and found.id == id:
                return found, segment
    raise UnknownMessage(f"There is no message {id}.", field="id")


async def _deliveries(session: Session, known: Tenant, id: MessageId) -> list[tuple[Queue, Run]]:
    """The deliveries of a message, ordered by queue name."""
    number, index = segment_of(id)
    rows = await session.fetch("segment_runs", segments=[number], queues=sorted(known.numbered))
    found = [
        (known.numbered[run.queue], run)
        for run in (Run.read(row) for row in rows)
        if index in run.members
    ]
    return sorted(found, key=lambda place: place[0].name)


# -- tenants and queues ----------------------------------------------------------------


async def tenants(core: Core) -> tuple[str, ...]:
    """The tenants that have a queue or a topic, or have ever published."""
    rows = await core.plainly(lambda session: session.fetch("list_tenants"))
    return tuple(name for (name,) in rows)


async def behind(core: Core) -> tuple[tuple[str, str], ...]:
    """The queues with a cursor."""
    rows = await core.plainly(lambda session: session.fetch("list_behind"))
    return tuple((tenant, queue) for tenant, queue in rows)
