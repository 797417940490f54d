"""A micro-batch of claims, and its Spark offset.

The offset names every delivery of the batch and how the batch is divided into partitions. A batch
that is repeated after a restart therefore has the same rows in the same partitions, even if the
claims have changed meanwhile, and only deliveries of the batch are acked.

Receipts are not part of the offset, because Spark repeats it in every progress event and receipts
do not compress. A restarted stream finds its claims, and their receipts, at the broker by the
name of their consumer, which no other stream has (``recovery``).
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.errors import BadInput
from penstock.model.delivery import Receipt
from penstock.model.identity import StoreIdentity, check_identity
from penstock.pipeline.format.claims import Claim

__all__ = ["NOTHING_UNACKED", "Batch", "SparkOffset"]

#: A JSON object of plain values, which Spark stores.
SparkOffset: TypeAlias = dict[str, Any]

NOTHING_UNACKED: Final[Mapping[int, int]] = {}


class Batch(Struct, frozen=True):
    """The claims of one micro-batch, divided into slices."""

    number: int
    claims: list[Claim]
    slices: list[int]
    """The number of claims per partition."""
    store: StoreIdentity | None = None
    """The store they were claimed from; None: written by an older version."""
    stream: str = ""
    """The part of the consumer's name that is unique to the stream; empty: written by an older
    version."""
    claimed_at: int = 0
    """When the first of them was claimed, by the clock of the store."""
    unacked: Mapping[int, int] = NOTHING_UNACKED
    """Deliveries of earlier batches that the sink has and that are not acked, because their claims
    were lost: message id to ``claimed_at`` of their batch."""

    def to_offset(self) -> SparkOffset:
        """Encode for Spark: differences between neighbours, compressed."""
        replaced = {
            index: claim.offset
            for index, claim in enumerate(self.claims)
            if claim.offset != claim.message_id
        }
        content = _Content(
            _steps([claim.message_id for claim in self.claims]),
            [claim.attempts for claim in self.claims],
            self.slices,
            replaced,
            _steps(self.unacked.keys()),
            _steps(self.unacked.values()),
        )
        offset: SparkOffset = {
            "batch": self.number,
            "deliveries": _packed(msgspec.msgpack.encode(content)),
            "stream": self.stream,
            "claimed_at": self.claimed_at,
        }
        if self.store is not None:
            offset |= {"store": self.store.store, "epoch": self.store.epoch}
        return offset

    @classmethod
    def from_offset(cls, offset: SparkOffset) -> Batch:
        """Decode what ``to_offset`` wrote, possibly in an older version."""
        try:
            known = StoreIdentity(offset["store"], offset["epoch"]) if "store" in offset else None
            store = None if known is None else check_identity(known)
            if "claims" in offset:
                return cls(int(offset["batch"]), *_with_receipts(offset["claims"]), store)
            content = _CONTENT.decode(_unpacked(offset["deliveries"]))
            return cls(
                int(offset["batch"]),
                list(content.claims()),
                content.slices,
                store,
                str(offset["stream"]),
                int(offset["claimed_at"]),
                dict(zip(accumulate(content.unacked), accumulate(content.unacked_at), strict=True)),
            )
        except (
            *(KeyError, TypeError, ValueError, BadInput),
            *(zlib.error, msgspec.MsgspecError),
        ) as error:
            raise BadInput(
                "The checkpoint does not belong to a stream that consumes a queue.",
                field="checkpointLocation",
            ) from error

    def parts(self) -> Iterator[list[Claim]]:
        """The claims of each partition."""
        for start, end in pairwise((0, *accumulate(self.slices))):
            yield self.claims[start:end]


class _Content(Struct, frozen=True, array_like=True):
    """The compressed part of an offset. Numbers are differences from the number before."""

    message_ids: list[int]
    attempts: list[int]
    slices: list[int]
    replaced: dict[int, int]
    """Index to offset, where the offset is not the message id."""
    unacked: list[int]
    unacked_at: list[int]

    def claims(self) -> Iterator[Claim]:
        """The claims, without receipts."""
        ids = accumulate(self.message_ids)
        for index, (message_id, attempts) in enumerate(zip(ids, self.attempts, strict=True)):
            yield Claim(self.replaced.get(index, message_id), message_id, attempts, None)


class _OldClaim(Struct, frozen=True, array_like=True):
    """A claim in a checkpoint of version 1.0: with its receipt, without its message id."""

    offset: int
    attempts: int
    receipt: Receipt


_CONTENT: Final = msgspec.msgpack.Decoder(_Content)
_OLD_CONTENT: Final = msgspec.msgpack.Decoder(tuple[list[_OldClaim], list[int]])


def _with_receipts(text: str) -> tuple[list[Claim], list[int]]:
    packed = b64decode(text, validate=True)
    claims, slices = _OLD_CONTENT.decode(zlib.decompress(packed)) if packed else ([], [])
    return [Claim(one.offset, one.offset, one.attempts, one.receipt) for one in claims], slices


def _steps(numbers: Iterable[int]) -> list[int]:
    every: Sequence[int] = (0, *numbers)
    return [after - before for before, after in pairwise(every)]


def _packed(content: bytes) -> str:
    return b64encode(zlib.compress(content, 9)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(b64decode(text, validate=True))
