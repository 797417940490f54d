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
from penstock.model.message import Message, MessageId, NewMessage, Offset, Published, PublishReply
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import FreshRun, NewSegment
from penstock.storage.sql.deliveries import INDEX_BITS, Life, Phase, Run, message_id, pack_members
from penstock.storage.sql.segments import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_ENTRIES,
    Head,
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
    held: dict[int, tuple[Run, int]]
    """By queue number."""


class Entry(Struct, eq=False, gc=False):
    """One entry to append."""

    head: Head
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
    def offset(self) -> Offset:
        """Its offset, once it was appended."""
        return Offset(message_id(self.number, self.index))

    @property
    def id(self) -> MessageId:
        """The message that it belongs to."""
        return MessageId(self.offset) if self.replaces is None else self.replaces.message.id


class Block(Struct, eq=False):
    """Entries of one call that go to the same queues and become one run in each of them.

    None has an id, a key or a time, and all have the same priority and partition key.
    """

    heads: Sequence[Head]
    payloads: Sequence[bytes]
    size: int
    """The total size of the payloads."""
    targets: Sequence[Queue]
    number: int = 0
    index: int = 0
    """The index of the first entry."""


def blocks(
    heads: Sequence[Head], payloads: Sequence[bytes], targets: Sequence[Queue]
) -> list[Block]:
    """Blocks that each fit into a segment; a single message may be larger than that."""
    size = sum(map(len, payloads))
    if size <= MAX_SEGMENT_BYTES and len(heads) <= MAX_SEGMENT_ENTRIES:
        return [Block(heads, payloads, size, targets)]
    found: list[Block] = []
    start = size = 0
    for position, payload in enumerate(payloads):
        full = size + len(payload) > MAX_SEGMENT_BYTES or position - start >= MAX_SEGMENT_ENTRIES
        if full and position > start:
            found.append(Block(heads[start:position], payloads[start:position], size, targets))
            start, size = position, 0
        size += len(payload)
    return [*found, Block(heads[start:], payloads[start:], size, targets)]


class Twin(NamedTuple):
    """A duplicate of an entry that the same transaction appends."""

    entry: Entry


#: The outcome for one message, or for the messages of a block.
Planned: TypeAlias = Block | Entry | Twin | Published


def published(plan: Sequence[Planned]) -> tuple[Published, ...]:
    """The reply to the caller, after everything was appended."""
    told: list[Published] = []
    for item in plan:
        if type(item) is Block:
            begin = item.number << INDEX_BITS | item.index
            offsets: Any = range(begin, begin + len(item.heads))
            told += map(Published, offsets, offsets)
        elif type(item) is Entry:
            # Id and offset are the same number; the two properties would double the cost.
            offset: Any = item.number << INDEX_BITS | item.index
            if item.replaces is None:
                told.append(Published(offset, offset))
            else:
                told.append(Published(item.id, offset, replaced=True))
        elif isinstance(item, Twin):
            told.append(Published(item.entry.id, item.entry.offset, duplicate=True))
        else:
            assert isinstance(item, Published)
            told.append(item)
    return tuple(told)


# -- segments and rows ---------------------------------------------------------------

_Item: TypeAlias = Block | Entry


class Part:
    """The contents of one segment."""

    __slots__ = ("_joined", "heads", "items", "payloads", "size")

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.heads: list[Head] = []
        self.payloads: list[bytes] = []
        self.size = 0
        self._joined = b""

    def takes(self, entries: int, size: int) -> bool:
        """Whether ``entries`` more entries of ``size`` bytes fit."""
        return (
            self.size + size <= MAX_SEGMENT_BYTES
            and len(self.heads) + entries <= MAX_SEGMENT_ENTRIES
        )

    def add(self, item: _Item, heads: Sequence[Head], payloads: Sequence[bytes], size: int) -> None:
        """Append an item."""
        item.index = len(self.heads)
        self.items.append(item)
        self.heads += heads
        self.payloads += payloads
        self.size += size

    def place(self, number: int) -> None:
        """Set the segment number of the items."""
        for item in self.items:
            item.number = number

    def row(self, tenant: int, now: int) -> NewSegment:
        """The segment as a database row."""
        self._joined = b"".join(self.payloads)
        return tenant, now, len(self.heads), Segment.encode(self.heads), self._joined

    def segment(self, number: int, tenant: int, now: int) -> Segment:
        """The written segment, for the cache."""
        return Segment(number, tenant, now, self.heads, self._joined)


class Appending:
    """The entries that one transaction appends."""

    def __init__(self, work: Work) -> None:
        self._work = work
        #: In log order.
        self.items: list[_Item] = []

    async def write(self, *, numbers_first: bool) -> None:
        """Append the planned entries, and route them.

        Unless the caller needs the segment numbers first, segments and runs are sent in one
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
            _place(parts, numbers)
            self._route(items)
        else:
            _place(parts, work.append(rows))
            self._route(items)
            await work.write()
            numbers = work.numbers
            _place(parts, numbers)
        work.appended += [
            part.segment(number, work.tenant.number, work.now)
            for number, part in zip(numbers, parts, strict=True)
        ]

    def _route(self, items: Sequence[_Item]) -> None:
        """Add every new message to its queues; messages with equal routing become one run."""
        alike: dict[tuple[object, ...], list[Entry]] = {}
        for item in items:
            if type(item) is Block:
                members = range(item.index, item.index + len(item.heads))
                self._add(item.heads[0], item.targets, item.number, members)
            elif type(item) is Entry and item.targets and item.replaces is None:
                head = item.head
                key = (
                    item.number,
                    id(item.targets),
                    head.priority,
                    head.partition_key,
                    head.expires_at,
                    head.deliver_at,
                    head.key is None,
                )
                known = alike.get(key)
                if known is None:
                    alike[key] = [item]
                else:
                    known.append(item)
        for entries in alike.values():
            first = entries[0]
            indices = [entry.index for entry in entries]
            self._add(first.head, first.targets, first.number, indices)

    def _add(
        self, head: Head, targets: Sequence[Queue], number: int, members: Sequence[int]
    ) -> None:
        phase = Phase.FRESH if head.deliver_at is None else Phase.DELAYED
        for queue in targets:
            life = Life(
                joined_at=self._work.now,
                expires_at=head.expires_at,
                due_at=head.deliver_at,
                keyed=head.key is not None,
                partition=(head.partition_key or "") if queue.ordered else None,
            )
            self._work.add(queue.number, phase, 9 - head.priority, number, members, life)


def parts_of(items: Sequence[_Item]) -> list[Part]:
    """Fill segments with the items, in order. Returns no part if there are no items."""
    parts: list[Part] = []
    part: Part | None = None
    for item in items:
        heads: Sequence[Head]
        payloads: Sequence[bytes]
        if type(item) is Block:
            heads, payloads, size = item.heads, item.payloads, item.size
        else:
            assert type(item) is Entry
            heads, payloads, size = (item.head,), (item.payload,), item.head.size
        if part is None or not part.takes(len(heads), size):
            part = Part()
            parts.append(part)
        part.add(item, heads, payloads, size)
    return parts


def _place(parts: Sequence[Part], numbers: Sequence[int]) -> None:
    for number, part in zip(numbers, parts, strict=True):
        part.place(number)


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
    ):
        return None
    priority, partition_key = messages[0].priority, messages[0].partition_key
    for new in messages:
        if (
            new.id is not None
            or new.key is not None
            or new.deliver_at is not None
            or new.expires_at is not None
            or new.priority != priority
            or new.partition_key != partition_key
        ):
            return None
    payloads = [new.payload for new in messages]
    heads = [
        Head(
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
    return blocks(heads, payloads, targets)


async def publish_plain(
    core: Core, tenant: Tenant, planned: Sequence[list[Block]]
) -> list[PublishReply]:
    """Append and route the blocks of several calls; returns a reply per call.

    Raises ``NotAtOnce`` if that needs more than one statement; then nothing was changed.
    """
    began = time.perf_counter()
    now = core.clock.now()
    parts = parts_of([block for call in planned for block in call])
    segments = [part.row(tenant.number, now) for part in parts]
    runs = [run for nth, part in enumerate(parts, 1) for run in _runs(part, nth, now)]
    numbers = await core.once(
        lambda session: session.publish(tenant.number, tenant.version, segments, runs)
    )
    for number, part in zip(numbers, parts, strict=True):
        part.place(number)
        core.segments.remember(part.segment(number, tenant.number, now))
    queues = {run.queue for run in runs}
    core.brought(tenant, queues, len(segments) + 2 * len(runs), time.perf_counter() - began)
    return [PublishReply(published(call), "fsync") for call in planned]


def _runs(part: Part, nth: int, now: int) -> Iterator[FreshRun]:
    """One run per block and queue that takes it."""
    for block in part.items:
        assert type(block) is Block
        first, size, head = block.index, len(block.heads), block.heads[0]
        partition_key = head.partition_key or ""
        members = pack_members(range(first, first + size))
        for queue in block.targets:
            partition = partition_key if queue.ordered else None
            yield FreshRun(
                queue.number,
                nth,
                9 - head.priority,
                first,
                size,
                None if partition is None else partition.encode(),
                members,
                Life(joined_at=now, partition=partition).pack(),
            )
