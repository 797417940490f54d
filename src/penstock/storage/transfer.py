"""Transfers: a whole store as a stream of items, for copies and backups (X1).

A store of one family, key-value or SQL, is a set of *items*: its records, or its rows. Between two
stores of a family, items are moved as they are, so everything is kept. Between families they go
through the records of ``storage.dump``.

The stream of an unchanged store is always the same, in the same batches. So a target notes in
each write how many batches it has, and the sum of their items, and an interrupted transfer is
continued by reading the stream again from the beginning and skipping what the target has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from penstock.errors import StoreCorrupt

if TYPE_CHECKING:
    from penstock.storage.dump import DumpRecord

__all__ = [
    "BATCH_BYTES",
    "BATCH_ITEMS",
    "Batch",
    "Family",
    "Item",
    "Origin",
    "Progress",
    "Source",
    "Target",
    "Totals",
    "batches",
    "decode_progress",
    "encode_progress",
]

#: The engines that store the same items.
Family: TypeAlias = Literal["keyvalue", "sql"]

#: A batch is written as one commit; a larger item is a batch of its own.
BATCH_ITEMS: Final = 2_000
BATCH_BYTES: Final = 1024 * 1024
_MASK: Final = (1 << 64) - 1


class Item(NamedTuple):
    """One record of a key-value store, or one row of a database."""

    kind: str
    """The type of the record, or the table of the row."""
    key: bytes
    """Empty for a row."""
    value: bytes
    """The value of the record, or the row in MessagePack."""


Batch: TypeAlias = Sequence[Item]


class Totals(Struct):
    """How many items of each kind a stream had, and the sum of their hashes modulo 2^64."""

    counts: dict[str, int] = msgspec.field(default_factory=dict)
    sums: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, items: Iterable[Item]) -> None:
        """Count more items."""
        counts, sums = self.counts, self.sums
        for kind, key, value in items:
            counts[kind] = counts.get(kind, 0) + 1
            digest = xxh3_64_intdigest(value, xxh3_64_intdigest(key))
            sums[kind] = (sums.get(kind, 0) + digest) & _MASK

    @property
    def items(self) -> int:
        """How many items there were."""
        return sum(self.counts.values())

    def difference(self, other: Totals) -> str | None:
        """Describe the first difference; None if they are equal."""
        for kind in sorted({*self.counts, *other.counts}):
            ours, theirs = self.counts.get(kind, 0), other.counts.get(kind, 0)
            if ours != theirs:
                return f"{ours} and {theirs} items of {kind}"
            if self.sums.get(kind) != other.sums.get(kind):
                return f"{ours} items of {kind} with different checksums"
        return None


class Origin(Struct, frozen=True):
    """The store that items come from."""

    store: bytes
    """Its identity."""
    epoch: bytes
    family: Family


class Progress(Struct, frozen=True):
    """What an unfinished target has."""

    origin: Origin
    batches: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)
    version: int = 1
    """Of the format of this value, and of the stream."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Progress).decode


def encode_progress(progress: Progress) -> bytes:
    """The progress as the target stores it."""
    return _encode(progress)


def decode_progress(value: bytes) -> Progress:
    """Decode what ``encode_progress`` wrote."""
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt("The progress of a copy cannot be read.") from error


class Source(ABC):
    """A store that is read as a whole, and must not change meanwhile."""

    family: Family
    origin: Origin

    @abstractmethod
    def items(self) -> AsyncIterator[Item]:
        """Every item, always in the same order. Leaves out the identity of the store."""

    @abstractmethod
    def dump(self) -> AsyncIterator[DumpRecord]:
        """The contents in a form that every family can load."""

    @abstractmethod
    async def check_unchanged(self) -> None:
        """Raise ``SourceChanged`` if the store was written to since it was opened."""

    @abstractmethod
    async def close(self) -> None:
        """Release the store."""


class Target(ABC):
    """An empty store, or an unfinished copy, which no engine opens until it is finished."""

    family: Family

    @abstractmethod
    async def begin(self, origin: Origin) -> Progress:
        """Mark the store as unfinished, and return what it has.

        Raises ``StoreNotEmpty`` if it has anything else than an unfinished copy of ``origin``.
        """

    @abstractmethod
    def load(self, records: AsyncIterator[DumpRecord]) -> AsyncIterator[Item]:
        """The items that hold the contents of a store of another family."""

    @abstractmethod
    async def write(self, items: Batch, progress: Progress) -> None:
        """Store the items and the progress in one durable commit."""

    @abstractmethod
    def items(self) -> AsyncIterator[Item]:
        """Every item that was written, in any order."""

    @abstractmethod
    async def finish(self, store: bytes, epoch: bytes) -> None:
        """Give the store its identity, and allow engines to open it."""

    @abstractmethod
    async def close(self) -> None:
        """Release the store."""


async def batches(items: AsyncIterator[Item]) -> AsyncIterator[list[Item]]:
    """The items in batches; the same items always make the same batches."""
    batch: list[Item] = []
    size = 0
    async for item in items:
        batch.append(item)
        size += len(item.key) + len(item.value)
        if size >= BATCH_BYTES or len(batch) >= BATCH_ITEMS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
