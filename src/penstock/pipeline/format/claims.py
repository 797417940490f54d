"""The claims of a micro-batch, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock.filters.to_arrow import headers_of
from penstock.model.delivery import Delivery, Receipt
from penstock.model.message import Message
from penstock.pipeline.format.schemas import MESSAGE_FIELDS, table_schema

__all__ = ["Claim", "claim_of", "claimed_rows", "consumer_schema", "cut", "cut_at_keys"]

_MS: Final = pa.timestamp("ms", tz="UTC")
_FIELDS: Final = {"value": "payload", "timestamp": "published_at"}


class Claim(Struct, frozen=True, gc=False):
    """One delivery of a batch."""

    offset: int
    message_id: int
    """The offset of the message's first entry: other than ``offset`` after a keyed replacement."""
    attempts: int
    receipt: Receipt | None
    """None: it is not claimed, or no longer."""


def claim_of(delivery: Delivery) -> Claim:
    """The part of a delivery that a batch records."""
    message = delivery.message
    return Claim(int(message.offset), int(message.id), delivery.attempts, delivery.receipt)


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


def cut_at_keys(
    deliveries: Sequence[Delivery], most: int, most_bytes: int
) -> tuple[list[Delivery], list[int]]:
    """Deliveries of an ordered queue, and slices in which each partition key is whole.

    Tasks run concurrently, so only the rows of one slice are processed in their order. A key with
    more rows than a slice may have gets a slice of its own.
    """
    by_key: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        by_key.setdefault(delivery.message.partition_key or "", []).append(delivery)
    slices: list[int] = []
    count = size = 0
    for group in by_key.values():
        group_size = sum(delivery.message.size for delivery in group)
        if count and (count + len(group) > most or size + group_size > most_bytes):
            slices.append(count)
            count = size = 0
        count += len(group)
        size += group_size
    ordered = [delivery for group in by_key.values() for delivery in group]
    return ordered, [*slices, count] if count else slices


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
