"""Entries: what a publish is about to append, before and after it has its place in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from penstock.model.message import Message, MessageId, Offset, Published
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.runs import INDEX_BITS, Run, message_id
from penstock.storage.sql.segments import MAX_SEGMENT_BYTES, MAX_SEGMENT_ENTRIES, Head

__all__ = ["Block", "Entry", "OpenKey", "Planned", "Twin", "blocks", "published"]


class OpenKey(Struct, frozen=True, eq=False):
    """A message whose key is open, and its deliveries, which are locked."""

    message: Message
    held: dict[int, tuple[Run, int]]
    """By queue number."""


class Entry(Struct, eq=False, gc=False):
    """One entry that is about to be appended."""

    head: Head
    payload: bytes
    targets: Sequence[Queue]
    """Where it becomes a new delivery."""
    behind: bool = False
    """Whether a queue takes it that will be caught up later."""
    replaces: OpenKey | None = None
    """The open message that it takes the place of."""
    number: int = 0
    index: int = 0

    @property
    def offset(self) -> Offset:
        """Its place in the log, once it was appended."""
        return Offset(message_id(self.number, self.index))

    @property
    def id(self) -> MessageId:
        """The message that it is an entry of."""
        return MessageId(self.offset) if self.replaces is None else self.replaces.message.id


class Block(Struct, eq=False):
    """Entries of one call that go to the same queues and become one run in each of them.

    None has an id, a key or a time, and all have one priority and one partition key.
    """

    heads: Sequence[Head]
    payloads: Sequence[bytes]
    size: int
    """Of the payloads together."""
    targets: Sequence[Queue]
    number: int = 0
    index: int = 0
    """Of the first."""


def blocks(
    heads: Sequence[Head], payloads: Sequence[bytes], targets: Sequence[Queue]
) -> list[Block]:
    """Blocks that each go into a segment; a message alone may be larger than that."""
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


#: What becomes of one message, or of those of a block.
Planned: TypeAlias = Block | Entry | Twin | Published


def published(plan: Sequence[Planned]) -> tuple[Published, ...]:
    """What the caller is told, once everything is appended."""
    told: list[Published] = []
    for item in plan:
        if type(item) is Block:
            begin = item.number << INDEX_BITS | item.index
            offsets: Any = range(begin, begin + len(item.heads))
            told += map(Published, offsets, offsets)
        elif type(item) is Entry:
            # An id and an offset at once; asking the entry for both costs as much again.
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
