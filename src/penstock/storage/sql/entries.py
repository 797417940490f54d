"""Entries: planned entries of a publish, before and after they have an offset."""

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
    def size(self) -> int:
        """The size of its payload and headers."""
        return self.head.size + self.head.header_bytes

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
    """The total size of payloads and headers."""
    targets: Sequence[Queue]
    number: int = 0
    index: int = 0
    """The index of the first entry."""


def blocks(
    heads: Sequence[Head], payloads: Sequence[bytes], targets: Sequence[Queue]
) -> list[Block]:
    """Blocks that each fit into a segment; a single message may be larger than that."""
    size = sum(map(len, payloads)) + sum([head.header_bytes for head in heads if head.headers])
    if size <= MAX_SEGMENT_BYTES and len(heads) <= MAX_SEGMENT_ENTRIES:
        return [Block(heads, payloads, size, targets)]
    found: list[Block] = []
    start = size = 0
    for position, payload in enumerate(payloads):
        added = len(payload) + heads[position].header_bytes
        full = size + added > MAX_SEGMENT_BYTES or position - start >= MAX_SEGMENT_ENTRIES
        if full and position > start:
            found.append(Block(heads[start:position], payloads[start:position], size, targets))
            start, size = position, 0
        size += added
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
