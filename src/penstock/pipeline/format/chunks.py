"""Chunks: every row of a partition is published once, even if several attempts write it (P4).

Spark runs the task of a partition again when it fails, twice concurrently when it is slow, and
again when a query is restarted, and the rows may come in another order each time. Published rows
therefore form a log of numbered chunks, to which attempts append by compare-and-set: chunk ``k``
is a batch whose id ends in ``k``, so exactly one attempt wins it. A loser reads the winner's
chunk, removes those rows from its own, and continues with ``k + 1``. No attempt can append chunk
``k`` without knowing all chunks below it, so no row is published twice, and an attempt that
finishes has seen every one of its rows published.

Rows are identified by their content, as far as the log preserves it. Rows whose stored form is
less specific than the row go to a lane of their own, with separate chunks, which compares only
what the log preserves. Other lanes are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from penstock.model.message import HeaderValue, Message, NewMessage

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "Kind", "RowSequence", "Stored", "stored_of"]

#: Rows per chunk: enough to amortize a request, and few enough that the server's other callers
#: wait for a few tens of milliseconds at most.
CHUNK_ROWS: Final = 2_000
#: Payload bytes per chunk; a larger row is a chunk of its own.
CHUNK_BYTES: Final = 4 * 1024 * 1024
_DIGEST_BYTES: Final = 16


class Kind(Struct, frozen=True):
    """Which fields of the rows in a lane the log preserves."""

    keyed: bool = False
    """A message with a key may replace another and keep its priority, partition key and due
    time: these are not compared."""
    delayed: bool = False
    """``deliver_at`` was given; the log has the later of it and the publish time."""
    expiring: bool = False
    """``expires_at`` was given; otherwise the log may have the topic's default."""

    @property
    def name(self) -> str:
        """The part of a batch id for this kind."""
        return "k" * self.keyed + "d" * self.delayed + "e" * self.expiring


class Stored(Struct, frozen=True, gc=False):
    """One row of a chunk that another attempt published."""

    identity: bytes
    at: int
    """When it was published."""
    due: int
    """When it may be delivered: never before ``at``."""


def stored_of(kind: Kind, message: Message, payload: bytes) -> Stored:
    """The row that a log entry was made of."""
    identity = _identity(kind, message, payload)
    return Stored(identity, message.published_at, message.deliver_at)


def _identity(kind: Kind, row: NewMessage | Message, payload: bytes) -> bytes:
    place = None if kind.keyed else (row.partition_key or "", row.priority)
    expires_at = row.expires_at if kind.expiring else None
    headers = _in_order(row.headers) if row.headers else ()
    about = msgspec.msgpack.encode(
        (headers, row.key, row.content_type or "", place, expires_at, len(payload))
        + (() if row.max_attempts is None else (row.max_attempts,))
    )
    digest = blake2b(about, digest_size=_DIGEST_BYTES)
    digest.update(payload)
    return digest.digest()


def _in_order(headers: Mapping[str, HeaderValue]) -> list[tuple[str, HeaderValue]]:
    return sorted(headers.items(), key=lambda item: item[0])


class RowSequence:
    """One attempt's rows of one kind for one topic, and the state of their chunks.

    It does no I/O: the caller publishes ``chunk()`` under ``number`` and reports the outcome with
    ``won()`` or ``lost(…)`` before it asks for the next chunk.
    """

    def __init__(
        self, kind: Kind, chunk_rows: int = CHUNK_ROWS, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.kind = kind
        self.number = 0
        """The number of the next chunk; all below are known."""
        self.found = 0
        """Rows that other attempts had published."""
        self.published = 0
        """Rows that this attempt has published."""
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._rows: list[NewMessage] = []
        self._bytes = 0
        #: How many of the first rows are in flight.
        self._sent = 0
        self._sent_bytes = 0
        #: Rows published by other attempts that were not added here yet.
        self._ahead: dict[bytes, list[Stored]] = {}

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes of the rows that are not in flight."""
        return self._bytes - self._sent_bytes

    @property
    def is_full(self) -> bool:
        """Whether there is a whole chunk in addition to the one in flight."""
        waiting = len(self._rows) - self._sent
        return waiting >= self._chunk_rows or self.waiting_bytes >= self._chunk_bytes

    @property
    def is_empty(self) -> bool:
        """Whether every row added so far is known to be published."""
        return not self._rows

    @property
    def strays(self) -> int:
        """Published rows not added yet; at the end, rows that this attempt does not have."""
        return sum(map(len, self._ahead.values()))

    def add(self, rows: Iterable[NewMessage]) -> None:
        """Add rows, except those that are published already."""
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
        """This attempt published the chunk."""
        self.published += self._sent
        del self._rows[: self._sent]
        self._bytes -= self._sent_bytes
        self._next()

    def lost(self, chunk: Iterable[Stored]) -> None:
        """Another attempt published this chunk: its rows are done, ours are still to publish."""
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
        # A row stored with due > at can only match this exact deliver_at; among the others, the
        # oldest matches the fewest rows.
        best = min(fitting, key=lambda one: (one.due != row.deliver_at, one.at))
        self._ahead[identity].remove(best)
        if not self._ahead[identity]:
            del self._ahead[identity]
        self.found += 1
        return True

    def _fits(self, row: NewMessage, stored: Stored) -> bool:
        """Whether the row, if published at that time, would have the same due time."""
        if self.kind.keyed or not self.kind.delayed:
            return True
        return max(row.deliver_at or 0, stored.at) == stored.due
