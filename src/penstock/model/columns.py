"""The log as columns, for reading millions of entries: one list per field, no object per entry.

Payloads are separate, since not every reader needs them: pieces of bytes whose concatenation
is the payloads in order. ``size`` has the length of each, so an engine that stores many
payloads in one value can return that value unchanged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec import Struct

from penstock.model.message import HeaderValue, Message, Offset

__all__ = ["LogColumns"]


class LogColumns(Struct, frozen=True, kw_only=True):
    """Entries of the log from an offset on: one column per field of ``Message`` (L1, L2).

    A column that is None has no value in any entry. A number column may be a view of 64-bit ones.
    """

    next_offset: Offset
    """The offset to continue from."""
    offset: Sequence[int]
    id: Sequence[int]
    topic: Sequence[str]
    priority: Sequence[int]
    published_at: Sequence[int]
    deliver_at: Sequence[int]
    size: Sequence[int]
    checksum: Sequence[int]
    expires_at: Sequence[int | None] | None = None
    partition_key: Sequence[str | None] | None = None
    key: Sequence[str | None] | None = None
    content_type: Sequence[str | None] | None = None
    headers: Sequence[dict[str, HeaderValue]] | None = None
    max_attempts: Sequence[int | None] | None = None

    def __len__(self) -> int:
        return len(self.offset)

    @classmethod
    def of(cls, messages: Iterable[Message], next_offset: Offset) -> LogColumns:
        """The columns of existing messages."""
        rows = list(messages)
        return cls(
            next_offset=next_offset,
            offset=[row.offset for row in rows],
            id=[row.id for row in rows],
            topic=[row.topic for row in rows],
            priority=[row.priority for row in rows],
            published_at=[row.published_at for row in rows],
            deliver_at=[row.deliver_at for row in rows],
            size=[row.size for row in rows],
            checksum=[row.checksum for row in rows],
            expires_at=[row.expires_at for row in rows],
            partition_key=[row.partition_key for row in rows],
            key=[row.key for row in rows],
            content_type=[row.content_type for row in rows],
            headers=[row.headers for row in rows],
            max_attempts=[row.max_attempts for row in rows],
        )

    def before(self, end: Offset) -> LogColumns:
        """Only the entries below ``end``, with ``end`` as the offset to continue from."""
        if self.next_offset <= end:
            return self
        kept = bisect_left(self.offset, end)
        changed = {
            name: column[:kept]
            for name in self.__struct_fields__[1:]
            if (column := getattr(self, name)) is not None
        }
        return LogColumns(next_offset=end, **changed)
