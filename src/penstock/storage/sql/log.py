"""Reading the log, by messages or as columns, and the histories of its messages.

The log is read up to its settled end and never beyond, so that no entry appears behind a reader
(L2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import accumulate, groupby, pairwise, repeat
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.errors import StoreCorrupt
from penstock.model.checksum import first_wrong
from penstock.model.columns import LogColumns
from penstock.model.delivery import (
    Event,
    LogEntry,
    LogPage,
)
from penstock.model.message import NO_HEADERS, MessageId, Offset
from penstock.model.reports import HistoryEntry, HistoryPage
from penstock.storage.bulk import MAX_SPLITS
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Session
from penstock.storage.sql.deliveries import (
    INDEX_BITS,
    DeliveryGroup,
    message_id,
    segment_of,
    unseal,
)
from penstock.storage.sql.messages import events_of
from penstock.storage.sql.segments import EntryMetadata, Segment

__all__ = [
    "behind",
    "end_of_log",
    "log_end",
    "log_splits",
    "read_columns",
    "read_history",
    "read_log",
    "read_payloads",
    "scan",
    "tenants",
]

#: Segments per read; with payloads, each holds an eighth of a megabyte, or one message.
_MAX_SEGMENTS: Final = 500
_MAX_WHOLE_SEGMENTS: Final = 32


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
        max_attempts=[entry_metadata.max_attempts for entry_metadata in metadata]
        if any(entry_metadata.max_attempts for entry_metadata in metadata)
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
        raise StoreCorrupt(f"The metadata of {what} cannot be read.") from error
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
