"""A micro-batch of claims: its Spark offset and its rows.

The offset lists every delivery of the batch, by offset and receipt, and how the batch is divided
into partitions. A batch that is repeated after a restart therefore has the same rows in the same
partitions, even if the claims have changed meanwhile: a sink that publishes under the batch's
number publishes nothing twice, and only deliveries of the batch are acked.
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
from penstock.pipeline.format.schemas import MESSAGE_FIELDS, table_schema

__all__ = ["Batch", "Claim", "SparkOffset", "claim_of", "claimed_rows", "consumer_schema", "cut"]

#: A JSON object of plain values, which Spark stores.
SparkOffset: TypeAlias = dict[str, Any]

_MS: Final = pa.timestamp("ms", tz="UTC")
_FIELDS: Final = {"value": "payload", "timestamp": "published_at"}


class Claim(Struct, frozen=True, gc=False, array_like=True):
    """One delivery of a batch: the offset of its message, and its receipt."""

    offset: int
    attempts: int
    receipt: Receipt


class Batch(Struct, frozen=True):
    """The claims of one micro-batch, divided into slices."""

    number: int
    claims: list[Claim]
    slices: list[int]
    """The number of claims per partition."""
    store: StoreIdentity | None = None
    """The store they were claimed from; None: written by an older version."""

    def to_offset(self) -> SparkOffset:
        """Encode for Spark, compressed: receipts have much in common."""
        packed = zlib.compress(msgspec.msgpack.encode((self.claims, self.slices)), 1)
        offset = {"batch": self.number, "claims": b64encode(packed).decode()}
        if self.store is not None:
            offset |= {"store": self.store.store, "epoch": self.store.epoch}
        return offset

    @classmethod
    def from_offset(cls, offset: SparkOffset) -> Batch:
        """Decode what ``to_offset`` wrote, possibly before a restart."""
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
                "The checkpoint does not belong to a stream that consumes a queue.",
                field="checkpointLocation",
            ) from error

    def parts(self) -> Iterator[list[Claim]]:
        """The claims of each partition."""
        for start, end in pairwise((0, *accumulate(self.slices))):
            yield self.claims[start:end]


_CONTENT: Final = msgspec.msgpack.Decoder(tuple[list[Claim], list[int]])


def claim_of(delivery: Delivery) -> Claim:
    """The part of a delivery that a batch records."""
    return Claim(int(delivery.message.offset), delivery.attempts, delivery.receipt)


def cut(sizes: Sequence[int], most: int, most_bytes: int) -> list[int]:
    """The sizes of consecutive slices, each with limited rows and bytes."""
    slices: list[int] = []
    count = remaining = 0
    for size in sizes:
        if count and (count == most or remaining + size > most_bytes):
            slices.append(count)
            count = remaining = 0
        count += 1
        remaining += size
    return [*slices, count] if count else slices


def consumer_schema(*, payload: bool) -> pa.Schema:
    """The columns of a consumed queue: those of the log and of the claim."""
    log = table_schema("log", payload=payload)
    return pa.schema([*log, ("attempts", pa.int32()), ("receipt", pa.string())])


def claimed_rows(
    claims: Sequence[Claim], messages: Sequence[Message], payloads: Sequence[bytes | None]
) -> pa.RecordBatch:
    """Rows for claims, with their payloads."""
    columns: dict[str, pa.Array] = {
        "headers": headers_of([message.headers for message in messages]),
        "value": pa.array(payloads, pa.binary()),
        "attempts": pa.array([claim.attempts for claim in claims], pa.int32()),
        "receipt": pa.array([claim.receipt for claim in claims], pa.string()),
    }
    schema = consumer_schema(payload=True)
    for field in schema:
        if field.name not in columns:
            name = MESSAGE_FIELDS.get(field.name, field.name)
            values = [getattr(message, name) for message in messages]
            is_time = pa.types.is_timestamp(field.type)
            column = pa.array(values, pa.int64() if is_time else field.type)
            columns[field.name] = column.cast(_MS).cast(field.type) if is_time else column
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
