"""Reading the log, by messages or as columns, and messages with their deliveries and histories.

The log is read up to its settled end and never beyond, so that no entry appears behind a reader
(L2). A message is looked up within its tenant (T1), by its first entry or, if it was replaced,
by its newest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import accumulate, groupby, pairwise, repeat
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.errors import StoreCorrupt, UnknownMessage
from penstock.model.checksum import first_wrong
from penstock.model.columns import LogColumns
from penstock.model.delivery import Event, LogEntry, LogPage, MessageDeliveries, Result
from penstock.model.message import NO_HEADERS, Message, MessageId, Offset
from penstock.model.reports import HistoryEntry, HistoryPage
from penstock.model.states import State, Transition
from penstock.storage.bulk import MAX_SPLITS
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Session
from penstock.storage.sql.deliveries import (
    INDEX_BITS,
    DeliveryGroup,
    Phase,
    message_id,
    segment_of,
    unseal,
)
from penstock.storage.sql.group_cursor import snapshot
from penstock.storage.sql.segments import EntryMetadata, Segment

__all__ = [
    "behind",
    "end_of_log",
    "events_of",
    "history",
    "log_end",
    "log_splits",
    "message",
    "read_columns",
    "read_history",
    "read_log",
    "read_payloads",
    "result",
    "scan",
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
        entries: list[LogEntry] = []
        async for segment, part in scan(
            session, known.number, start, limit, settled, payloads=payloads
        ):
            entries += [
                LogEntry(segment.message(i), segment.payload(i) if payloads else None) for i in part
            ]
        following = Offset(entries[-1].message.offset + 1) if entries else start
        return LogPage(tuple(entries), following)

    return await core.read(tenant, look)


async def scan(
    session: Session,
    tenant: int,
    start: int,
    limit: int,
    settled: int,
    *,
    payloads: bool = False,
) -> AsyncIterator[tuple[Segment, range]]:
    """The segments of the next ``limit`` entries at or above ``start``, and their indices there."""
    first, index = segment_of(max(start, 0))
    most = _MAX_WHOLE_SEGMENTS if payloads else _MAX_SEGMENTS
    while first <= settled and limit:
        rows = await session.fetch(
            "scan_segments" if payloads else "scan_metadata",
            tenant=tenant,
            first=first,
            last=settled,
            # Every segment but the first has an entry for the page.
            most=min(limit + 1, most),
        )
        if not rows:
            break
        for number, published_at, metadata, *rest in rows:
            contents = rest[0] if payloads else None
            segment = Segment.read(number, tenant, published_at, metadata, contents)
            begin = index if number == first else 0
            part = range(begin, min(len(segment.metadata), begin + limit))
            limit -= len(part)
            yield segment, part
        first, index = rows[-1][0] + 1, 0


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
            snapshot(
                queue, group.phase, group.record, found, failed=group.phase is Phase.DEAD_RETURNED
            )
            for queue, group in await _deliveries(session, known, id)
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
        for found, group in await _deliveries(session, known, id):
            if found.number == wanted.number and group.phase is done:
                return Result(id, group.record.result, group.record.at or 0)
        return None

    return await core.read(tenant, look)


async def history(core: Core, tenant: str, id: MessageId) -> tuple[Event, ...]:
    """Every recorded transition of every delivery, by time."""

    async def look(session: Session, known: Tenant) -> tuple[Event, ...]:
        found, _ = await _newest(session, known, id)
        events = [
            event
            for queue, group in await _deliveries(session, known, id)
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


async def _newest(
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


async def _deliveries(
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


# -- tenants and queues ----------------------------------------------------------------


async def tenants(core: Core) -> tuple[str, ...]:
    """The tenants that have a queue or a topic, or have ever published."""
    rows = await core.fetch("list_tenants")
    return tuple(name for (name,) in rows)


async def behind(core: Core) -> tuple[tuple[str, str], ...]:
    """The queues with a cursor."""
    rows = await core.fetch("list_behind")
    return tuple((tenant, queue) for tenant, queue in rows)


# -- bulk reads ----------------------------------------------------------------------
# A segment stores the metadata of its entries as one value, which one call decodes, and their
# payloads as another, which is passed on unchanged: only checksums are verified (P3, X1).
# Deliveries with the same history are one row, so that history is built once.

#: Segments whose metadata, and segments whose payloads, are read in one statement.
_MAX_PAYLOAD_SEGMENTS: Final = 64


# -- the log ---------------------------------------------------------------------------


async def read_columns(core: Core, tenant: str, start: Offset, limit: int) -> LogColumns:
    """Entries at or above ``start``, up to the settled end of the log."""
    settled = (await core.stable()).settled

    async def look(session: Session, known: Tenant) -> LogColumns:
        found = [one async for one in scan(session, known.number, start, limit, settled)]
        return _columns(found, start)

    return await core.read(tenant, look)


def _columns(found: Sequence[tuple[Segment, range]], start: Offset) -> LogColumns:
    metadata: list[EntryMetadata] = []
    offsets: list[int] = []
    published: list[int] = []
    for segment, part in found:
        base = segment.number << INDEX_BITS
        metadata += segment.metadata[part.start : part.stop]
        offsets += range(base + part.start, base + part.stop)
        published += repeat(segment.published_at, len(part))
    if any(entry_metadata.id is not None for entry_metadata in metadata):
        ids = [
            offset if entry_metadata.id is None else entry_metadata.id
            for offset, entry_metadata in zip(offsets, metadata, strict=True)
        ]
        published = [
            at if entry_metadata.published_at is None else entry_metadata.published_at
            for at, entry_metadata in zip(published, metadata, strict=True)
        ]
    else:
        ids = offsets
    return LogColumns(
        next_offset=Offset(offsets[-1] + 1) if offsets else start,
        offset=offsets,
        id=ids,
        topic=[entry_metadata.topic for entry_metadata in metadata],
        priority=[entry_metadata.priority for entry_metadata in metadata],
        published_at=published,
        deliver_at=[
            at if entry_metadata.deliver_at is None else entry_metadata.deliver_at
            for at, entry_metadata in zip(published, metadata, strict=True)
        ],
        size=[entry_metadata.size for entry_metadata in metadata],
        checksum=[entry_metadata.checksum for entry_metadata in metadata],
        expires_at=[entry_metadata.expires_at for entry_metadata in metadata],
        partition_key=[entry_metadata.partition_key for entry_metadata in metadata],
        key=[entry_metadata.key for entry_metadata in metadata],
        content_type=[entry_metadata.content_type for entry_metadata in metadata],
        headers=[entry_metadata.headers or NO_HEADERS for entry_metadata in metadata]
        if any(entry_metadata.headers for entry_metadata in metadata)
        else None,
    )


async def log_splits(
    core: Core, tenant: str, start: Offset, end: Offset, entries: int
) -> tuple[Offset, ...]:
    """Offsets at which segments begin, about ``entries`` entries apart."""
    settled = (await core.stable()).settled

    async def look(session: Session, known: Tenant) -> tuple[Offset, ...]:
        last = min(end, await end_of_log(session, known.number, settled))
        if last <= start:
            return (start,)
        rows = await session.fetch(
            "log_pieces",
            tenant=known.number,
            first=segment_of(start)[0],
            last=segment_of(last - 1)[0],
            entries=entries,
            most=MAX_SPLITS,
        )
        between = [Offset(message_id(number, 0)) for (number,) in rows[1:]]
        return (start, *between, last)

    return await core.read(tenant, look)


# -- payloads --------------------------------------------------------------------------


class _Sized(Struct, frozen=True, array_like=True, gc=False):
    """The part of the metadata that locates its payload."""

    topic: msgspec.Raw
    priority: msgspec.Raw
    size: int
    checksum: int


_decode_sized: Final = msgspec.msgpack.Decoder(list[_Sized]).decode


async def read_payloads(
    core: Core, tenant: str, offsets: Sequence[int]
) -> Sequence[bytes | memoryview] | None:
    """The payloads, in the order of the offsets; None if a segment is missing."""
    wanted = {
        number: [segment_of(offset)[1] for offset in some]
        for number, some in groupby(offsets, key=lambda offset: offset >> INDEX_BITS)
    }

    async def look(session: Session, known: Tenant) -> Sequence[memoryview] | None:
        numbers = list(wanted)
        pieces: list[memoryview] = []
        for begin in range(0, len(numbers), _MAX_PAYLOAD_SEGMENTS):
            some = numbers[begin : begin + _MAX_PAYLOAD_SEGMENTS]
            rows = await session.fetch("read_segments", tenant=known.number, numbers=some)
            if len(rows) < len(some):
                return None
            for number, _, metadata, payloads in sorted(rows, key=lambda row: row[0]):
                pieces += _payloads_in(number, metadata, payloads, wanted[number])
        return pieces

    return await core.read(tenant, look)


def _payloads_in(
    number: int, metadata: bytes, payloads: bytes, indices: Sequence[int]
) -> Iterator[memoryview]:
    what = f"segment {number} of the log"
    try:
        sized = _decode_sized(unseal(metadata, what))
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"The heads of {what} cannot be read.") from error
    starts = [0, *accumulate(entry_metadata.size for entry_metadata in sized)]
    view = memoryview(payloads)
    # Consecutive indices have the same difference to their position in the list.
    groups = groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])
    for group in ([index for _, index in some] for _, some in groups):
        first, last = group[0], group[-1] + 1
        each = [view[start:end] for start, end in pairwise(starts[first : last + 1])]
        sums = [entry_metadata.checksum for entry_metadata in sized[first:last]]
        if first_wrong(each, repeat(0), sums) is not None:
            raise StoreCorrupt(f"The checksum of a payload of {what} is wrong.")
        yield view[starts[first] : starts[last]]


# -- histories -------------------------------------------------------------------------

#: Histories by group and by the times at which the messages were published and due.
_Made: TypeAlias = dict[tuple[int, tuple[int, int]], list[Event]]


async def read_history(
    core: Core, tenant: str, start: Offset, limit: int, queue: str | None
) -> HistoryPage:
    """Every transition of the messages among ``limit`` entries, ordered by message."""
    settled = (await core.stable()).settled

    async def look(session: Session, known: Tenant) -> HistoryPage:
        numbers = sorted(known.numbered) if queue is None else [known.find(queue)[0].number]
        found = [one async for one in scan(session, known.number, start, limit, settled)]
        columns = _columns(found, start)
        if not found or not numbers:
            return HistoryPage((), columns.next_offset)
        rows = await session.fetch(
            "segment_groups", segments=[segment.number for segment, _ in found], queues=numbers
        )
        records: defaultdict[int, list[tuple[Queue, DeliveryGroup]]] = defaultdict(list)
        for group in map(DeliveryGroup.read, rows):
            found_in = known.numbered[group.queue]
            for member in group.ids():
                records[member].append((found_in, group))
        made: _Made = {}
        entries: list[HistoryEntry] = []
        times = zip(columns.published_at, columns.deliver_at, strict=True)
        for offset, number, when in zip(columns.offset, columns.id, times, strict=True):
            # The history of a replacement is recorded with the message that it replaced.
            if offset == number and offset in records:
                entries += _history(MessageId(number), when, records[offset], made, queue)
        return HistoryPage(tuple(entries), columns.next_offset)

    return await core.read(tenant, look)


def _history(
    number: MessageId,
    times: tuple[int, int],
    records: list[tuple[Queue, DeliveryGroup]],
    made: _Made,
    queue: str | None,
) -> list[HistoryEntry]:
    """The transitions of one message that was published and first due at these times.

    ``made`` caches histories by group: the messages of a group share one.
    """
    events: list[Event] = []
    for found_in, group in sorted(records, key=lambda record: record[0].name):
        record = made.get((id(group), times))
        if record is None:
            record = made[id(group), times] = events_of(found_in, group, *times)
        events += record
    events.sort(key=lambda event: event.at)
    return [HistoryEntry(number, event) for event in events if queue in (None, event.queue)]
