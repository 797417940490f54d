"""Appending: what was planned becomes segments of the log and runs of its queues (L1, R1, S3).

What comes in one call and is alike in everything that routing asks for is a block, and is placed
and routed as a whole; what differs is an entry by itself. A segment is filled as long as whole
blocks and entries go into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.database import NewSegment
from penstock.storage.sql.entries import Block, Entry
from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import Life
from penstock.storage.sql.segments import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_ENTRIES,
    Head,
    Segment,
)
from penstock.storage.sql.work import Work

__all__ = ["Appending", "Part", "parts_of"]

_Item: TypeAlias = Block | Entry


class Part:
    """What goes into one segment."""

    __slots__ = ("_joined", "heads", "items", "payloads", "size")

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.heads: list[Head] = []
        self.payloads: list[bytes] = []
        self.size = 0
        self._joined = b""

    def takes(self, entries: int, size: int) -> bool:
        """Whether so many more fit."""
        return (
            self.size + size <= MAX_SEGMENT_BYTES
            and len(self.heads) + entries <= MAX_SEGMENT_ENTRIES
        )

    def add(self, item: _Item, heads: Sequence[Head], payloads: Sequence[bytes], size: int) -> None:
        """Put an item at the end."""
        item.index = len(self.heads)
        self.items.append(item)
        self.heads += heads
        self.payloads += payloads
        self.size += size

    def place(self, number: int) -> None:
        """Tell the items which segment they are in."""
        for item in self.items:
            item.number = number

    def row(self, tenant: int, now: int) -> NewSegment:
        """The segment as it is written."""
        self._joined = b"".join(self.payloads)
        return tenant, now, len(self.heads), Segment.encode(self.heads), self._joined

    def segment(self, number: int, tenant: int, now: int) -> Segment:
        """The segment that was written, as it is remembered."""
        return Segment(number, tenant, now, self.heads, self._joined)


class Appending:
    """What one transaction appends."""

    def __init__(self, work: Work) -> None:
        self._work = work
        #: In the order of the log.
        self.items: list[_Item] = []

    async def write(self, *, numbers_first: bool) -> None:
        """Append what is here, and route it.

        Where nobody has to know the numbers of the segments before that, everything goes to the
        database in one piece.
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
        """Give every new message to its queues; those that are alike are one run."""
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
    """Fill segments with the items, in order. Without items there is no segment."""
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
