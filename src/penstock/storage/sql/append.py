"""Appending: planned messages become segments of the log and rows of their queues (L1, R1, S3).

Messages of one call that agree in everything that routing depends on form a block, which is placed
and routed as a whole; any other message is a single entry. A segment is filled with whole blocks
and entries only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from penstock.model.checksum import checksums
from penstock.model.decisions import expiry_in_queue
from penstock.model.message import Message, MessageId, NewMessage, Offset, Published, PublishReply
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import FreshGroup, NewSegment
from penstock.storage.sql.deliveries import (
    INDEX_BITS,
    DeliveryGroup,
    DeliveryRecord,
    Phase,
    message_id,
    pack_members,
)
from penstock.storage.sql.segments import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_ENTRIES,
    EntryMetadata,
    Segment,
)
from penstock.storage.sql.work import Work

__all__ = [
    "Appending",
    "Block",
    "Entry",
    "OpenKey",
    "Part",
    "Planned",
    "Twin",
    "blocks",
    "parts_of",
    "plain_blocks",
    "publish_plain",
    "published",
]


class OpenKey(Struct, frozen=True, eq=False):
    """A message whose key is open, and its locked deliveries."""

    message: Message
    held: dict[int, tuple[DeliveryGroup, int]]
    """By queue number."""


class Entry(Struct, eq=False, gc=False):
    """One entry to append."""

    metadata: EntryMetadata
    payload: bytes
    targets: Sequence[Queue]
    """The queues in which it becomes a new delivery."""
    behind: bool = False
    """Whether a queue takes it that will be caught up later."""
    replaces: OpenKey | None = None
    """The open message that it replaces."""
    number: int = 0
    index: int = 0

    @property
    def size(self) -> int:
        """The size of its payload and headers."""
        return self.metadata.total_bytes

    @property
    def offset(self) -> Offset:
        """Its offset, once it was appended."""
        return Offset(message_id(self.number, self.index))

    @property
    def id(self) -> MessageId:
        """The message that it belongs to."""
        return MessageId(self.offset) if self.replaces is None else self.replaces.message.id


class Block(Struct, eq=False):
    """Entries of one call that go to the same queues and become one group in each of them.

    None has an id, a key or a time, and all have the same priority and partition key.
    """

    metadata: Sequence[EntryMetadata]
    payloads: Sequence[bytes]
    size: int
    """The total size of payloads and headers."""
    targets: Sequence[Queue]
    number: int = 0
    index: int = 0
    """The index of the first entry."""


def blocks(
    metadata: Sequence[EntryMetadata], payloads: Sequence[bytes], targets: Sequence[Queue]
) -> list[Block]:
    """Blocks that each fit into a segment; a single message may be larger than that."""
    size = sum(map(len, payloads)) + sum([one.header_bytes for one in metadata if one.headers])
    if size <= MAX_SEGMENT_BYTES and len(metadata) <= MAX_SEGMENT_ENTRIES:
        return [Block(metadata, payloads, size, targets)]
    found: list[Block] = []
    start = size = 0
    for position, payload in enumerate(payloads):
        added = len(payload) + metadata[position].header_bytes
        full = size + added > MAX_SEGMENT_BYTES or position - start >= MAX_SEGMENT_ENTRIES
        if full and position > start:
            found.append(Block(metadata[start:position], payloads[start:position], size, targets))
            start, size = position, 0
        size += added
    return [*found, Block(metadata[start:], payloads[start:], size, targets)]


class Twin(NamedTuple):
    """A duplicate of an entry that the same transaction appends."""

    entry: Entry


#: The outcome for one message, or for the messages of a block.
Planned: TypeAlias = Block | Entry | Twin | Published


def published(plan: Sequence[Planned]) -> tuple[Published, ...]:
    """The reply to the caller, after everything was appended."""
    replies: list[Published] = []
    for item in plan:
        if type(item) is Block:
            begin = item.number << INDEX_BITS | item.index
            offsets: Any = range(begin, begin + len(item.metadata))
            flags = repeat(False), repeat(False), repeat(len(item.targets))
            replies += map(Published, offsets, offsets, *flags)
        elif type(item) is Entry:
            # Id and offset are the same number; the two properties would double the cost.
            offset: Any = item.number << INDEX_BITS | item.index
            if item.replaces is None:
                replies.append(Published(offset, offset, False, False, len(item.targets)))
            else:
                replies.append(Published(item.id, offset, False, True, len(item.targets)))
        elif isinstance(item, Twin):
            replies.append(Published(item.entry.id, item.entry.offset, duplicate=True))
        else:
            assert isinstance(item, Published)
            replies.append(item)
    return tuple(replies)


# -- segments and rows ---------------------------------------------------------------

_Item: TypeAlias = Block | Entry


class Part:
    """The contents of one segment."""

    __slots__ = ("_joined", "metadata", "items", "payloads", "size")

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.metadata: list[EntryMetadata] = []
        self.payloads: list[bytes] = []
        self.size = 0
        self._joined = b""

    def takes(self, entries: int, size: int) -> bool:
        """Whether ``entries`` more entries of ``size`` bytes fit."""
        return (
            self.size + size <= MAX_SEGMENT_BYTES
            and len(self.metadata) + entries <= MAX_SEGMENT_ENTRIES
        )

    def add(
        self, item: _Item, metadata: Sequence[EntryMetadata], payloads: Sequence[bytes], size: int
    ) -> None:
        """Append an item."""
        item.index = len(self.metadata)
        self.items.append(item)
        self.metadata += metadata
        self.payloads += payloads
        self.size += size

    def set_number(self, number: int) -> None:
        """Set the segment number of the items."""
        for item in self.items:
            item.number = number

    def row(self, tenant: int, now: int) -> NewSegment:
        """The segment as a database row."""
        self._joined = b"".join(self.payloads)
        return tenant, now, len(self.metadata), Segment.encode(self.metadata), self._joined

    def segment(self, number: int, tenant: int, now: int) -> Segment:
        """The written segment, for the cache."""
        return Segment(number, tenant, now, self.metadata, self._joined)


class Appending:
    """The entries that one transaction appends."""

    def __init__(self, work: Work) -> None:
        self._work = work
        #: In log order.
        self.items: list[_Item] = []

    async def write(self, *, numbers_first: bool) -> None:
        """Append the planned entries, and route them.

        Unless the caller needs the segment numbers first, segments and groups are sent in one
        statement.
        """
        items, self.items = self.items, []
        if not items:
            return
        work = self._work
        parts = parts_of(items)
        rows = [part.row(work.tenant.number, work.now) for part in parts]
        if numbers_first:
            numbers = await work.append_now(rows)
            _set_numbers(parts, numbers)
            self._route(items)
        else:
            _set_numbers(parts, work.append(rows))
            self._route(items)
            await work.write()
            numbers = work.numbers
            _set_numbers(parts, numbers)
        work.appended += [
            part.segment(number, work.tenant.number, work.now)
            for number, part in zip(numbers, parts, strict=True)
        ]

    def _route(self, items: Sequence[_Item]) -> None:
        """Add every new message to its queues; messages with equal routing become one group."""
        alike: dict[tuple[object, ...], list[Entry]] = {}
        for item in items:
            if type(item) is Block:
                members = range(item.index, item.index + len(item.metadata))
                self._add(item.metadata[0], item.targets, item.number, members)
            elif type(item) is Entry and item.targets and item.replaces is None:
                entry_metadata = item.metadata
                key = (
                    item.number,
                    id(item.targets),
                    entry_metadata.priority,
                    entry_metadata.partition_key,
                    entry_metadata.expires_at,
                    entry_metadata.deliver_at,
                    entry_metadata.key is None,
                    entry_metadata.max_attempts,
                )
                known = alike.get(key)
                if known is None:
                    alike[key] = [item]
                else:
                    known.append(item)
        for entries in alike.values():
            first = entries[0]
            indices = [entry.index for entry in entries]
            self._add(first.metadata, first.targets, first.number, indices)

    def _add(
        self,
        entry_metadata: EntryMetadata,
        targets: Sequence[Queue],
        number: int,
        members: Sequence[int],
    ) -> None:
        phase = Phase.FRESH if entry_metadata.deliver_at is None else Phase.DELAYED
        for queue in targets:
            record = DeliveryRecord(
                joined_at=self._work.now,
                expires_at=expiry_in_queue(queue.policy, entry_metadata.expires_at, self._work.now),
                max_attempts=entry_metadata.max_attempts,
                due_at=entry_metadata.deliver_at,
                keyed=entry_metadata.key is not None,
                partition=(entry_metadata.partition_key or "") if queue.ordered else None,
            )
            self._work.add(
                queue.number, phase, 9 - entry_metadata.priority, number, members, record
            )


def parts_of(items: Sequence[_Item]) -> list[Part]:
    """Fill segments with the items, in order. Returns no part if there are no items."""
    parts: list[Part] = []
    part: Part | None = None
    for item in items:
        metadata: Sequence[EntryMetadata]
        payloads: Sequence[bytes]
        if type(item) is Block:
            metadata, payloads, size = item.metadata, item.payloads, item.size
        else:
            assert type(item) is Entry
            metadata, payloads, size = (item.metadata,), (item.payload,), item.size
        if part is None or not part.takes(len(metadata), size):
            part = Part()
            parts.append(part)
        part.add(item, metadata, payloads, size)
    return parts


def _set_numbers(parts: Sequence[Part], numbers: Sequence[int]) -> None:
    for number, part in zip(numbers, parts, strict=True):
        part.set_number(number)


# -- plain publishes: one statement --------------------------------------------------
# Most messages have no id, no key and no time, and are routed by their topic alone. Nothing has to
# be read before they are written, and the only cached input is the catalog, whose version the
# statement checks. If one statement does not suffice, nothing is changed, and ``publish`` uses a
# transaction.


def plain_blocks(tenant: Tenant, topic: str, messages: Sequence[NewMessage]) -> list[Block] | None:
    """The messages as blocks, if all of them are plain; None otherwise.

    They must also share one priority and partition key, and match a queue.
    """
    targets = tenant.index.decided(topic)
    if (
        not targets
        or not messages
        or tenant.bounded_for(topic)
        or not tenant.all_take_publishes
        or tenant.topic(topic).default_ttl_ms is not None
        or (tenant.has_message_ttls and any(q.policy.message_ttl_ms is not None for q in targets))
    ):
        return None
    priority, partition_key = messages[0].priority, messages[0].partition_key
    for new in messages:
        if (
            new.id is not None
            or new.key is not None
            or new.deliver_at is not None
            or new.expires_at is not None
            or new.max_attempts is not None
            or new.priority != priority
            or new.partition_key != partition_key
        ):
            return None
    payloads = [new.payload for new in messages]
    metadata = [
        EntryMetadata(
            topic,
            priority,
            len(payload),
            total,
            None,
            None,
            partition_key,
            None,
            new.content_type,
            dict(new.headers) if new.headers else None,
        )
        for new, payload, total in zip(
            messages, payloads, checksums(payloads, repeat(0)), strict=True
        )
    ]
    return blocks(metadata, payloads, targets)


async def publish_plain(
    core: Core, tenant: Tenant, planned: Sequence[list[Block]]
) -> list[PublishReply]:
    """Append and route the blocks of several calls; returns a reply per call.

    Raises ``NeedsTransaction`` if that needs more than one statement; then nothing was changed.
    """
    began = time.perf_counter()
    now = core.clock.now()
    parts = parts_of([block for call in planned for block in call])
    segments = [part.row(tenant.number, now) for part in parts]
    groups = [group for nth, part in enumerate(parts, 1) for group in _groups(part, nth, now)]
    numbers = await core.single_write(
        lambda session: session.publish(tenant.number, tenant.version, segments, groups)
    )
    for number, part in zip(numbers, parts, strict=True):
        part.set_number(number)
        core.segments.remember(part.segment(number, tenant.number, now))
    core.fronts.wrote((), [group.row(numbers) for group in groups])
    queues = {group.queue for group in groups}
    core.brought(tenant, queues, len(segments) + 2 * len(groups), time.perf_counter() - began)
    return [PublishReply(published(call), "fsync") for call in planned]


def _groups(part: Part, nth: int, now: int) -> Iterator[FreshGroup]:
    """One group per block and queue that takes it."""
    for block in part.items:
        assert type(block) is Block
        first, size, entry_metadata = block.index, len(block.metadata), block.metadata[0]
        partition_key = entry_metadata.partition_key or ""
        members = pack_members(range(first, first + size))
        for queue in block.targets:
            partition = partition_key if queue.ordered else None
            yield FreshGroup(
                queue.number,
                nth,
                9 - entry_metadata.priority,
                first,
                size,
                None if partition is None else partition.encode(),
                members,
                DeliveryRecord(joined_at=now, partition=partition).pack(),
            )
