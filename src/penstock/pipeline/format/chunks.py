"""Chunks: every row of a partition is published once, whichever attempts write it (P4).

Spark runs the task of a partition again when it fails, twice at a time when it is slow, and
again when a query is restarted, and the rows may come in another order each time. What is
published is therefore a log of numbered chunks to which attempts append by comparing: chunk
``k`` is a batch whose id ends in ``k``, so exactly one attempt wins it. Whoever loses is told
what the winner's chunk holds, takes those rows out of its own, and goes on with ``k + 1``.
Nobody can append chunk ``k`` without knowing all chunks below it, hence no row is published
twice, and an attempt that comes to its end has seen every one of its rows published.

The rows of a partition are told apart by their content, of which the log keeps an image. Where
the image is coarser than the row there is a lane for such rows, with chunks of its own: it
then says exactly what it can, and the others lose nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from penstock.model.message import HeaderValue, Message, NewMessage

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "Kind", "Lane", "Stored", "stored_of"]

#: Rows of a chunk: the request's own cost does not show any more, and the server's other
#: callers wait for some tens of milliseconds at the most.
CHUNK_ROWS: Final = 2_000
#: Payload bytes of a chunk; one row that is larger goes alone.
CHUNK_BYTES: Final = 4 * 1024 * 1024
_DIGEST_BYTES: Final = 16


class Kind(Struct, frozen=True):
    """What the log can say about the rows of a lane."""

    keyed: bool = False
    """A message with a key may replace another, whose place in the log's words it then has:
    priority, partition key and due time are not compared."""
    delayed: bool = False
    """``deliver_at`` was given; the log has the later of that and the time of the publish."""
    expiring: bool = False
    """``expires_at`` was given; otherwise the topic's default may stand there."""

    @property
    def name(self) -> str:
        """Its part of a batch id."""
        return "k" * self.keyed + "d" * self.delayed + "e" * self.expiring


class Stored(Struct, frozen=True, gc=False):
    """One row of a chunk that another attempt has published."""

    identity: bytes
    at: int
    """When it was published."""
    due: int
    """When it may be delivered: not before ``at``."""


def stored_of(kind: Kind, message: Message, payload: bytes) -> Stored:
    """A log entry as the row that it was."""
    identity = _identity(kind, message, payload)
    return Stored(identity, message.published_at, message.deliver_at)


def _identity(kind: Kind, row: NewMessage | Message, payload: bytes) -> bytes:
    place = None if kind.keyed else (row.partition_key or "", row.priority)
    expires_at = row.expires_at if kind.expiring else None
    headers = _in_order(row.headers) if row.headers else ()
    about = msgspec.msgpack.encode(
        (headers, row.key, row.content_type or "", place, expires_at, len(payload))
    )
    digest = blake2b(about, digest_size=_DIGEST_BYTES)
    digest.update(payload)
    return digest.digest()


def _in_order(headers: Mapping[str, HeaderValue]) -> list[tuple[str, HeaderValue]]:
    return sorted(headers.items(), key=lambda item: item[0])


class Lane:
    """One attempt's rows of one kind for one topic, and how far their chunks are known.

    It does no I/O: whoever drives it publishes ``chunk()`` under ``number`` and says how that
    came out, by ``won()`` or by ``lost(…)``, before it asks for the next chunk.
    """

    def __init__(
        self, kind: Kind, chunk_rows: int = CHUNK_ROWS, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.kind = kind
        self.number = 0
        """Of the next chunk: all below are known."""
        self.found = 0
        """Rows that other attempts had published."""
        self.published = 0
        """Rows that this attempt has published."""
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._rows: list[NewMessage] = []
        self._bytes = 0
        #: How many of the first rows are on their way.
        self._sent = 0
        self._sent_bytes = 0
        #: Rows that were published by others and have not come yet.
        self._ahead: dict[bytes, list[Stored]] = {}

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes of the rows that are not on their way."""
        return self._bytes - self._sent_bytes

    @property
    def is_full(self) -> bool:
        """Whether there is a whole chunk beside the one that is on its way."""
        waiting = len(self._rows) - self._sent
        return waiting >= self._chunk_rows or self.waiting_bytes >= self._chunk_bytes

    @property
    def is_empty(self) -> bool:
        """Whether every row that came is known to be published."""
        return not self._rows

    @property
    def strays(self) -> int:
        """Published rows that have not come; at the end, rows that this attempt does not have."""
        return sum(map(len, self._ahead.values()))

    def add(self, rows: Iterable[NewMessage]) -> None:
        """Take more rows, except those that are published already."""
        fresh = [row for row in rows if not self._is_ahead(row)] if self._ahead else list(rows)
        self._rows += fresh
        self._bytes += sum(len(row.payload) for row in fresh)

    def chunk(self) -> Sequence[NewMessage]:
        """The rows to publish under ``number``."""
        count = size = 0
        for row in self._rows[: self._chunk_rows]:
            size += len(row.payload)
            if count and size > self._chunk_bytes:
                size -= len(row.payload)
                break
            count += 1
        self._sent, self._sent_bytes = count, size
        return self._rows[:count]

    def won(self) -> None:
        """The chunk is published, by this attempt."""
        self.published += self._sent
        del self._rows[: self._sent]
        self._bytes -= self._sent_bytes
        self._next()

    def lost(self, chunk: Iterable[Stored]) -> None:
        """The chunk is another's: its rows are published, those that were sent are not."""
        left = dict(enumerate(self._rows))
        places: dict[bytes, list[int]] = {}
        for place, row in left.items():
            places.setdefault(_identity(self.kind, row, row.payload), []).append(place)
        for stored in chunk:
            same = places.get(stored.identity, [])
            fitting = [place for place in same if self._fits(left[place], stored)]
            if fitting:
                same.remove(fitting[0])
                self._bytes -= len(left.pop(fitting[0]).payload)
                self.found += 1
            else:
                self._ahead.setdefault(stored.identity, []).append(stored)
        self._rows = list(left.values())
        self._next()

    def _next(self) -> None:
        self._sent = self._sent_bytes = 0
        self.number += 1

    def _is_ahead(self, row: NewMessage) -> bool:
        identity = _identity(self.kind, row, row.payload)
        fitting = [one for one in self._ahead.get(identity, ()) if self._fits(row, one)]
        if not fitting:
            return False
        # One that was published before its time stands for rows with this very time only; of the
        # others the oldest stands for the fewest.
        best = min(fitting, key=lambda one: (one.due != row.deliver_at, one.at))
        self._ahead[identity].remove(best)
        if not self._ahead[identity]:
            del self._ahead[identity]
        self.found += 1
        return True

    def _fits(self, row: NewMessage, stored: Stored) -> bool:
        """Whether the row, published when that was, would have the same times."""
        if self.kind.keyed or not self.kind.delayed:
            return True
        return max(row.deliver_at or 0, stored.at) == stored.due
