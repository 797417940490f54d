"""The partitions of a micro-batch: claims, and their rows if these are small."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.errors import OffsetsGone
from penstock.model.delivery import Delivery
from penstock.model.identity import StoreIdentity, check_store
from penstock.pipeline.format.claims import Claim, claimed_rows, consumer_schema
from penstock.pipeline.format.consumer_options import ConsumerOptions
from penstock.pipeline.format.read_back import read_back

__all__ = ["Slice", "fresh_slice", "read_slice"]

_log: Final = logging.getLogger(__name__)

#: Payload bytes sent with a partition: Spark warns of tasks above a million bytes.
_INLINE_BYTES: Final = 700_000


class Slice(InputPartition):
    """The claims of one partition, with their rows if these are small and available."""

    def __init__(
        self, claims: list[Claim], rows: bytes | None, store: StoreIdentity | None
    ) -> None:
        self.claims = claims
        self.rows = rows
        self.store = store
        """Of the batch, see :class:`Batch`."""


def fresh_slice(
    claims: list[Claim], deliveries: Sequence[Delivery], store: StoreIdentity | None
) -> Slice:
    """A slice of deliveries that have just been claimed."""
    small = sum(delivery.message.size for delivery in deliveries) <= _INLINE_BYTES
    return Slice(claims, _packed(claims, deliveries) if small else None, store)


def read_slice(options: ConsumerOptions, part: Slice) -> Iterator[pa.RecordBatch]:
    """The rows of a slice, in claim order; runs in a task."""
    names = consumer_schema(payload=options.payload).names
    if part.rows is not None:
        with pa.ipc.open_stream(part.rows) as reader:
            for rows in reader:
                yield rows.select(names)
        return
    if not part.claims:
        return
    with options.server.open() as remote:
        for claims, entries in read_back(remote, options.queue, part.claims):
            if part.store is not None:
                # After reading: a server that was restarted on another store has other
                # messages at the same offsets.
                store = remote.ask(lambda q: q.identity())
                check_store(store, part.store, "The batch that is read")
            _check(options, claims, len(entries))
            kept = [claim for claim in claims if claim.offset in entries]
            if kept:
                messages = [entries[claim.offset].message for claim in kept]
                payloads = [entries[claim.offset].payload for claim in kept]
                yield claimed_rows(kept, messages, payloads).select(names)


def _check(options: ConsumerOptions, claims: Sequence[Claim], found: int) -> None:
    missing = len({claim.offset for claim in claims}) - found
    if not missing:
        return
    gone = OffsetsGone(
        f"{missing} messages of a batch that is run again are no longer in the log.",
        field="failOnDataLoss",
    )
    if options.fail_on_data_loss:
        raise gone
    _log.warning("%s They are skipped.", gone.detail)


def _packed(claims: Sequence[Claim], deliveries: Sequence[Delivery]) -> bytes:
    rows = claimed_rows(
        claims,
        [delivery.message for delivery in deliveries],
        [delivery.payload for delivery in deliveries],
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
