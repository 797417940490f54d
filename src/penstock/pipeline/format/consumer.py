"""A queue as a stream: each micro-batch is claimed, and acked once the sink has it.

Delivery is at least once. A micro-batch is what was claimed for it: Spark's offset lists its
deliveries (``claims``), so after a restart the same batch is read again, from the log. Acking is
the last step: in ``commit``, or before the next claim if the query was restarted after its sink's
commit but before that. A claim whose lease was lost is not acked; its message is redelivered.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Final, NoReturn

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import OffsetsGone, OtherStore, PenstockError
from penstock.model.delivery import Delivery, Receipt
from penstock.model.identity import StoreIdentity, check_store
from penstock.model.limits import (
    MAX_CLAIM,
    MAX_CLAIM_BYTES,
    MAX_LEASE_MS,
    MIN_LEASE_MS,
    check_name,
)
from penstock.model.limits import check_queue_name as check_queue
from penstock.model.queue import Ordering
from penstock.pipeline.format.claims import (
    Batch,
    Claim,
    SparkOffset,
    claim_of,
    claimed_rows,
    consumer_schema,
    cut,
)
from penstock.pipeline.format.leases import Leases, acks, releases, settle
from penstock.pipeline.format.options import SERVER_OPTIONS, Given
from penstock.pipeline.format.read_back import read_back
from penstock.pipeline.remote import Remote, Server

__all__ = ["ConsumerOptions", "QueueStream", "queue_stream"]

_log: Final = logging.getLogger(__name__)

_OPTIONS: Final = (
    "queue",
    "consumer",
    "leaseMs",
    "maxOffsetsPerTrigger",
    "entriesPerPartition",
    "payload",
    "failOnDataLoss",
)
_MAX_TRIGGER: Final = 1_000_000
#: How long a claim waits for a message. Spark asks again immediately, so it costs no time; a query
#: that is stopped waits this long at most.
_WAIT_MS: Final = 500
#: Payload bytes after which no more is claimed for a micro-batch.
_BATCH_BYTES: Final = 64 * 1024 * 1024
#: Payload bytes per partition.
_SLICE_BYTES: Final = 16 * 1024 * 1024
#: Payload bytes sent with a partition: Spark warns of tasks above a million bytes.
_INLINE_BYTES: Final = 700_000


class ConsumerOptions(Struct, frozen=True, kw_only=True):
    """The queue to consume, and how."""

    server: Server
    queue: str
    consumer: str = "spark"
    lease_ms: int = 60_000
    per_trigger: int = 10_000
    """The most deliveries per micro-batch."""
    per_partition: int = 2_000
    payload: bool = True
    fail_on_data_loss: bool = True


class Slice(InputPartition):
    """The claims of one partition, with their rows if these are small and available."""

    def __init__(
        self, claims: list[Claim], rows: bytes | None, store: StoreIdentity | None
    ) -> None:
        self.claims = claims
        self.rows = rows
        self.store = store
        """Of the batch, see :class:`Batch`."""


def queue_stream(options: Mapping[str, str]) -> QueueStream:
    """The reader of ``readStream.format("penstock").option("queue", …)``; checks the options."""
    given = Given(options)
    given.refuse_others((*SERVER_OPTIONS, *_OPTIONS), "Consuming a queue")
    usual = ConsumerOptions(server=given.server(), queue=check_queue(given.needed("queue")))
    lease_ms = given.number("leaseMs", MIN_LEASE_MS, MAX_LEASE_MS)
    per_trigger = given.number("maxOffsetsPerTrigger", 1, _MAX_TRIGGER)
    per_partition = given.number("entriesPerPartition", 1, _MAX_TRIGGER)
    return QueueStream(
        ConsumerOptions(
            server=usual.server,
            queue=usual.queue,
            consumer=check_name(given.text("consumer") or usual.consumer, "consumer"),
            lease_ms=lease_ms or usual.lease_ms,
            per_trigger=per_trigger or usual.per_trigger,
            per_partition=per_partition or usual.per_partition,
            payload=given.truth("payload", True),
            fail_on_data_loss=given.truth("failOnDataLoss", True),
        )
    )


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims in a process next to the driver that runs as long as the query; reads in workers."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        self._remote: Remote | None = None
        self._leases: Leases | None = None
        #: The last batch that was claimed here, with its rows; replaced by the next.
        self._claimed: tuple[int, list[Delivery]] | None = None
        self._unplanned: list[Receipt] = []
        #: The number of the last acked batch.
        self._acked = 0
        #: How many more an availableNow query may claim.
        self._left: int | None = None

    # -- planning ----------------------------------------------------------------------

    def initialOffset(self) -> SparkOffset:  # noqa: N802
        """The offset before the first batch."""
        return Batch(0, [], [], self._store()).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit from ``maxOffsetsPerTrigger``."""
        return ReadMaxRows(self._options.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query when the queue is empty, or after as many deliveries as it has now."""
        stats = self._open().ask(lambda q: q.stats(self._options.queue))
        self._left = stats.available + stats.delayed + stats.in_flight

    def latestOffset(self, start: SparkOffset, limit: ReadLimit) -> SparkOffset:  # noqa: N802
        """Claim the next batch; returns ``start`` if there is nothing to claim."""
        last, store = Batch.from_offset(start), self._store()
        if last.number > self._acked:
            # Spark asks for the next batch when this one is committed, but does not repeat the
            # commit for a reader that was restarted.
            self.commit(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.per_trigger
        deliveries = self._claim(most if self._left is None else min(most, self._left))
        if not deliveries:
            return start
        if self._left is not None:
            self._left -= len(deliveries)
        sizes = [delivery.message.size for delivery in deliveries]
        slices = cut(sizes, self._options.per_partition, _SLICE_BYTES)
        batch = Batch(last.number + 1, [claim_of(one) for one in deliveries], slices, store)
        self._claimed = (batch.number, deliveries)
        self._unplanned = [claim.receipt for claim in batch.claims]
        return batch.to_offset()

    def _claim(self, most: int) -> list[Delivery]:
        """Claim up to ``most``, waiting briefly for the first."""
        options, remote = self._options, self._open()
        found: list[Delivery] = []
        remaining = _BATCH_BYTES
        # A query that ends with the queue does not wait for more messages.
        wait_ms = _WAIT_MS if self._left is None else 0
        while len(found) < most and remaining > 0:
            count = min(MAX_CLAIM, most - len(found))
            try:
                some = remote.ask(
                    lambda q, count=count, wait_ms=wait_ms: q.claim(  # type: ignore[misc]
                        options.queue,
                        limit=count,
                        consumer=options.consumer,
                        lease_ms=options.lease_ms,
                        wait_ms=wait_ms,
                    )
                )
            except PenstockError:
                if found:
                    break  # Use what was claimed so far.
                raise
            if not some:
                break
            lease_ms = some[0].lease_deadline - some[0].claimed_at
            self._hold([delivery.receipt for delivery in some], lease_ms)
            found += some
            size = sum(delivery.message.size for delivery in some)
            remaining -= size
            wait_ms = 0
            # A claim of large payloads gives fewer than there are.
            if len(some) < count and size < MAX_CLAIM_BYTES // 2:
                break
        return found

    def partitions(self, start: SparkOffset, end: SparkOffset) -> Sequence[InputPartition]:
        """The slices of a batch; one that was claimed before a restart is read from the log."""
        if start == end:
            return []
        batch = Batch.from_offset(end)
        self._unplanned = []
        if not self._is_ours(batch):
            return []
        if self._claimed is not None and self._claimed[0] == batch.number:
            return list(self._slices(batch, self._claimed[1]))
        # Claims that have not lapsed are still held by this consumer.
        self._hold([claim.receipt for claim in batch.claims], self._options.lease_ms)
        return [Slice(part, None, batch.store) for part in batch.parts()]

    def _slices(self, batch: Batch, deliveries: list[Delivery]) -> Iterator[Slice]:
        begin = 0
        for part in batch.parts():
            own = deliveries[begin : begin + len(part)]
            begin += len(part)
            small = sum(delivery.message.size for delivery in own) <= _INLINE_BYTES
            yield Slice(part, _packed(part, own) if small else None, batch.store)

    def commit(self, end: SparkOffset) -> None:
        """Ack the batch: the sink has it."""
        batch = Batch.from_offset(end)
        if batch.number <= self._acked or not self._is_ours(batch):
            return
        receipts = [claim.receipt for claim in batch.claims]
        queue = self._options.queue
        stale = self._open().ask(lambda q: settle(q, queue, acks(receipts)))
        self._acked = max(self._acked, batch.number)
        if self._leases is not None:
            self._leases.drop(receipts)
        if stale:
            _log.warning(
                "Batch %d: %d of %d claims in %r were lost before the ack and are redelivered.",
                *(batch.number, len(stale), len(receipts), queue),
            )

    def stop(self) -> None:
        """End the query and release claims that were never planned."""
        if self._leases is not None:
            self._leases.close()
            self._leases = None
        if self._remote is None:
            return
        remote, self._remote = self._remote, None
        receipts, queue = self._unplanned, self._options.queue
        try:
            if receipts:
                remote.ask(lambda q: settle(q, queue, releases(receipts)))
        except PenstockError as error:
            _log.warning("%d claims are available again when they lapse: %s", len(receipts), error)
        finally:
            remote.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _store(self) -> StoreIdentity:
        return self._open().ask(lambda q: q.identity())

    def _is_ours(self, batch: Batch) -> bool:
        """Whether the batch was claimed from the store that the server has now.

        Raises ``OtherStore`` if not: its offsets refer to other messages here. With
        ``failOnDataLoss`` false the batch is skipped instead.
        """
        if batch.store is None:
            return True
        try:
            check_store(self._store(), batch.store, f"The checkpoint, at batch {batch.number},")
        except OtherStore as error:
            if self._options.fail_on_data_loss:
                raise
            _log.warning("%s The batch is skipped.", error.detail)
            return False
        return True

    def _hold(self, receipts: Sequence[Receipt], lease_ms: int) -> None:
        options = self._options
        if self._leases is None:
            info = self._open().ask(lambda q: q.queue(options.queue))
            ordered = info.policy.ordering is Ordering.PARTITION
            self._leases = Leases(options.server, options.queue, options.consumer, ordered=ordered)
        self._leases.hold(receipts, lease_ms)

    def _open(self) -> Remote:
        """The planner's connection. Spark copies the reader for workers before this is opened."""
        if self._remote is None:
            self._remote = self._options.server.open()
            # Spark sends this process SIGTERM; ``stop`` only runs if that raises an exception.
            signal.signal(signal.SIGTERM, _end)
        return self._remote

    # -- reading -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in claim order."""
        assert isinstance(partition, Slice)
        names = consumer_schema(payload=self._options.payload).names
        if partition.rows is not None:
            with pa.ipc.open_stream(partition.rows) as reader:
                for rows in reader:
                    yield rows.select(names)
            return
        with self._options.server.open() as remote:
            for claims, entries in read_back(remote, self._options.queue, partition.claims):
                if partition.store is not None:
                    # After reading: a server that was restarted on another store has other
                    # messages at the same offsets.
                    store = remote.ask(lambda q: q.identity())
                    check_store(store, partition.store, "The batch that is read")
                self._check(claims, len(entries))
                kept = [claim for claim in claims if claim.offset in entries]
                if kept:
                    messages = [entries[claim.offset].message for claim in kept]
                    payloads = [entries[claim.offset].payload for claim in kept]
                    yield claimed_rows(kept, messages, payloads).select(names)

    def _check(self, claims: Sequence[Claim], found: int) -> None:
        missing = len({claim.offset for claim in claims}) - found
        if not missing:
            return
        gone = OffsetsGone(
            f"{missing} messages of a batch that is run again are no longer in the log.",
            field="failOnDataLoss",
        )
        if self._options.fail_on_data_loss:
            raise gone
        _log.warning("%s They are skipped.", gone.detail)


def _end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise SystemExit


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
