"""A micro-batch of claims: what Spark's offset says of it, and its rows.

The offset names every delivery of the batch, by its place in the log and by its receipt, and
how the batch is cut into partitions. So a batch that is run again after a restart has the same
rows in the same partitions, whatever became of the claims meanwhile: whoever published them
before under that batch's number publishes nothing twice, and nothing is acked that was not in it.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.errors import BadInput
from penstock.filters.to_arrow import headers_of
from penstock.model.delivery import Delivery, Receipt
from penstock.model.identity import StoreIdentity, check_identity
from penstock.model.message import Message
from penstock.pipeline.format.schemas import table_schema

__all__ = ["Batch", "Claim", "SparkOffset", "claim_of", "claimed_rows", "consumer_schema", "cut"]

#: Spark keeps it as JSON, of plain values.
SparkOffset: TypeAlias = dict[str, Any]

_MS: Final = pa.timestamp("ms", tz="UTC")
_FIELDS: Final = {"value": "payload", "timestamp": "published_at"}


class Claim(Struct, frozen=True, gc=False, array_like=True):
    """One delivery of a batch: where its message is, and what acks it."""

    offset: int
    attempts: int
    receipt: Receipt


class Batch(Struct, frozen=True):
    """The claims of one micro-batch, cut into slices."""

    number: int
    claims: list[Claim]
    slices: list[int]
    """How many claims each partition has."""
    store: StoreIdentity | None = None
    """Of the store they were claimed from; None: written by an older Penstock."""

    def to_offset(self) -> SparkOffset:
        """For Spark, compact: receipts have much in common."""
        packed = zlib.compress(msgspec.msgpack.encode((self.claims, self.slices)), 1)
        offset = {"batch": self.number, "claims": b64encode(packed).decode()}
        if self.store is not None:
            offset |= {"store": self.store.store, "epoch": self.store.epoch}
        return offset

    @classmethod
    def from_offset(cls, offset: SparkOffset) -> Batch:
        """Read what ``to_offset`` wrote, maybe before a restart."""
        try:
            packed = b64decode(offset["claims"], validate=True)
            claims, slices = _CONTENT.decode(zlib.decompress(packed)) if packed else ([], [])
            known = StoreIdentity(offset["store"], offset["epoch"]) if "store" in offset else None
            store = None if known is None else check_identity(known)
            return cls(int(offset["batch"]), claims, slices, store)
        except (
            *(KeyError, TypeError, ValueError, BadInput),
            *(zlib.error, msgspec.MsgspecError),
        ) as error:
            raise BadInput(
                "The checkpoint is not that of a stream that consumes a queue.",
                field="checkpointLocation",
            ) from error

    def parts(self) -> Iterator[list[Claim]]:
        """The claims, a partition at a time."""
        for start, end in pairwise((0, *accumulate(self.slices))):
            yield self.claims[start:end]


_CONTENT: Final = msgspec.msgpack.Decoder(tuple[list[Claim], list[int]])


def claim_of(delivery: Delivery) -> Claim:
    """What a batch keeps of a delivery."""
    return Claim(int(delivery.message.offset), delivery.attempts, delivery.receipt)


def cut(sizes: Sequence[int], most: int, most_bytes: int) -> list[int]:
    """How many of the first, the next and so on make a slice, bounded in number and bytes."""
    slices: list[int] = []
    count = room = 0
    for size in sizes:
        if count and (count == most or room + size > most_bytes):
            slices.append(count)
            count = room = 0
        count += 1
        room += size
    return [*slices, count] if count else slices


def consumer_schema(*, payload: bool) -> pa.Schema:
    """The columns of a queue that is consumed: those of the log, and of the claim."""
    log = table_schema("log", payload=payload)
    return pa.schema([*log, ("attempts", pa.int32()), ("receipt", pa.string())])


def claimed_rows(
    claims: Sequence[Claim], messages: Sequence[Message], payloads: Sequence[bytes | None]
) -> pa.RecordBatch:
    """Rows of claims, with their payloads."""
    columns: dict[str, pa.Array] = {
        "headers": headers_of([message.headers for message in messages]),
        "value": pa.array(payloads, pa.binary()),
        "attempts": pa.array([claim.attempts for claim in claims], pa.int32()),
        "receipt": pa.array([claim.receipt for claim in claims], pa.string()),
    }
    schema = consumer_schema(payload=True)
    for field in schema:
        if field.name not in columns:
            name = _FIELDS.get(field.name, field.name)
            values = [getattr(message, name) for message in messages]
            is_time = pa.types.is_timestamp(field.type)
            column = pa.array(values, pa.int64() if is_time else field.type)
            columns[field.name] = column.cast(_MS).cast(field.type) if is_time else column
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
