"""Entries: what a publish is about to append, before and after it has its place in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from penstock.model.message import Message, MessageId, Offset, Published
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.runs import INDEX_BITS, Run, message_id
from penstock.storage.sql.segments import Head

__all__ = ["Entry", "OpenKey", "Planned", "Twin", "published"]


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


class Twin(NamedTuple):
    """A duplicate of an entry that the same transaction appends."""

    entry: Entry


#: What becomes of one message.
Planned: TypeAlias = Entry | Twin | Published


def published(plan: Sequence[Planned]) -> tuple[Published, ...]:
    """What the caller is told, once everything is appended."""
    told: list[Published] = []
    for item in plan:
        if type(item) is Entry:
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
