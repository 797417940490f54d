"""Appending: write planned entries as segments of the log and runs of their queues (L1, R1, S3).

Messages of one call that agree in everything that routing depends on form a block, which is
placed and routed as a whole; any other message is a single entry. A segment is filled with whole
blocks and entries only.
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
            heads, payloads, size = (item.head,), (item.payload,), item.size
        if part is None or not part.takes(len(heads), size):
            part = Part()
            parts.append(part)
        part.add(item, heads, payloads, size)
    return parts


def _place(parts: Sequence[Part], numbers: Sequence[int]) -> None:
    for number, part in zip(numbers, parts, strict=True):
        part.place(number)
