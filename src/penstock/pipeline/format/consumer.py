"""A queue as a stream: each micro-batch is claimed, and acked once the sink has it.

A micro-batch is what was claimed for it: Spark's offset names its deliveries (``batch``), so after
a restart the same batch has the same rows, read from the log. Acking is the last step: in
``commit``, or before the next claim if the query was restarted after its sink's commit but before
that. A row whose claim was lost before its ack is not processed again (``claiming``). So a sink
that ignores a batch id that it has seen gets every row once, wherever the query is killed.

A query that fails gives the claims of its batch back, which uses up an attempt of each row. Rows
with few attempts left are retried in small batches (``suspects``), and those that have none left
are dead letters, which the batch leaves out.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.client.options import random_prefix
from penstock.errors import OtherStore, PenstockError
from penstock.model.delivery import Delivery, Receipt
from penstock.model.identity import StoreIdentity, check_store
from penstock.pipeline.format.batch import Batch, SparkOffset
from penstock.pipeline.format.claimed_slices import Slice, read_slice
from penstock.pipeline.format.claiming import Claiming
from penstock.pipeline.format.claims import claim_of, cut, cut_at_keys
from penstock.pipeline.format.consumer_options import ConsumerOptions, consumer_options
from penstock.pipeline.format.leases import releases, settle
from penstock.pipeline.format.running import (
    Running,
    give_back,
    recovered,
    resumed,
    rows_of,
    slices_of,
)
from penstock.pipeline.remote import Remote

__all__ = ["QueueStream", "queue_stream"]

_log: Final = logging.getLogger(__name__)

#: How long a claim waits for a message. Spark asks again immediately, so it costs no time; a query
#: that is stopped waits this long at most.
_WAIT_MS: Final = 500
#: Payload bytes per partition.
_SLICE_BYTES: Final = 16 * 1024 * 1024
#: Characters of a stream's own part of the consumer's name.
_STREAM_CHARS: Final = 8


def queue_stream(options: Mapping[str, str]) -> QueueStream:
    """The reader of ``readStream.format("penstock").option("queue", …)``; checks the options."""
    return QueueStream(consumer_options(options))


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims in a process next to the driver that runs as long as the query; reads in workers."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        self._remote: Remote | None = None
        self._claiming: Claiming | None = None
        self._running: Running | None = None
        #: The stream's own part of the consumer's name, once it is known.
        self._stream = ""
        #: The number of the last acked batch.
        self._acked = 0
        #: How many more an availableNow query may claim.
        self._left: int | None = None
        #: Whether Spark has ended this process, rather than been killed itself.
        self._is_ended = False

    # -- planning ----------------------------------------------------------------------

    def initialOffset(self) -> SparkOffset:  # noqa: N802
        """The offset before the first batch."""
        stream = random_prefix()[:_STREAM_CHARS]
        return Batch(0, [], [], self._store(), stream).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit from ``maxOffsetsPerTrigger``."""
        return ReadMaxRows(self._options.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query when the queue is empty, or after as many deliveries as it has now."""
        stats = self._open().ask(lambda q: q.stats(self._options.queue))
        self._left = stats.available + stats.delayed + stats.in_flight

    def latestOffset(self, start: SparkOffset, limit: ReadLimit) -> SparkOffset:  # noqa: N802
        """Claim the next batch; returns ``start`` if there is nothing to claim."""
        last = Batch.from_offset(start)
        claiming = self._take_up(last)
        if last.number > self._acked:
            # Spark asks for the next batch when this one is committed, but does not repeat the
            # commit for a reader that was restarted.
            self.commit(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.per_trigger
        # A query that ends with the queue does not wait for more messages.
        wait_ms = _WAIT_MS if self._left is None else 0
        most = most if self._left is None else min(most, self._left)
        deliveries = claiming.next(most, wait_ms)
        if not deliveries:
            return start
        if self._left is not None:
            self._left -= len(deliveries)
        deliveries, slices = self._cut(deliveries)
        claiming.forget_ended()
        batch = Batch(
            last.number + 1,
            [claim_of(delivery) for delivery in deliveries],
            slices,
            self._store(),
            self._stream,
            min(delivery.claimed_at for delivery in deliveries),
            dict(claiming.unacked),
        )
        self._running = Running(batch, rows_of(deliveries, claiming), deliveries)
        return batch.to_offset()

    def _cut(self, deliveries: list[Delivery]) -> tuple[list[Delivery], list[int]]:
        most = self._options.per_partition
        if self._planner().is_ordered:
            return cut_at_keys(deliveries, most, _SLICE_BYTES)
        return deliveries, cut([one.message.size for one in deliveries], most, _SLICE_BYTES)

    def partitions(self, start: SparkOffset, end: SparkOffset) -> Sequence[InputPartition]:
        """The slices of a batch; one that was claimed before a restart is read from the log."""
        if start == end:
            return []
        batch = Batch.from_offset(end)
        self._take_up(batch)
        if not self._is_ours(batch):
            return []
        running = self._running
        if running is None or running.batch.number != batch.number:
            running = self._running = resumed(self._open(), self._planner(), batch)
        running.is_planned = True
        return list(slices_of(running)) if running.rows else []

    def commit(self, end: SparkOffset) -> None:
        """Ack the batch: the sink has it."""
        batch = Batch.from_offset(end)
        if batch.number <= self._acked:
            return
        claiming = self._take_up(batch)
        if not self._is_ours(batch):
            return
        running = self._running
        if running is None or running.batch.number != batch.number:
            # It ran in an earlier process.
            running = recovered(self._open(), claiming, batch)
        lost = claiming.ack(
            {message_id: row.receipt for message_id, row in running.rows.items()},
            dict.fromkeys(running.rows, batch.claimed_at),
        )
        self._acked, self._running = batch.number, None
        if lost:
            _log.warning(
                "Batch %d: %d of %d claims in %r were lost before the ack. The rows are not "
                "processed again.",
                *(batch.number, len(lost), len(batch.claims), self._options.queue),
            )

    def stop(self) -> None:
        """End the query, and give claims back that no sink has."""
        unused: list[Receipt] = [] if self._claiming is None else self._claiming.close()
        running, self._running = self._running, None
        if self._remote is None:
            return
        remote, self._remote = self._remote, None
        queue = self._options.queue
        try:
            if running is not None and not running.is_planned:
                unused += running.receipts
            elif running is not None and self._is_ended:
                give_back(remote, self._planner(), running)
            if unused:
                remote.ask(lambda q: settle(q, queue, releases(unused)))
        except PenstockError as error:
            _log.warning("Claims in %r are available again when they lapse: %s", queue, error)
        finally:
            remote.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

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

    # -- parts -------------------------------------------------------------------------

    def _take_up(self, batch: Batch) -> Claiming:
        """Continue the stream that made the batch, under its name."""
        claiming = self._planner()
        if not self._stream:
            self._stream = batch.stream or random_prefix()[:_STREAM_CHARS]
            claiming.consumer = f"{self._options.consumer}-{self._stream}"
            if batch.store == self._store():
                claiming.unacked.update(batch.unacked)
        return claiming

    def _planner(self) -> Claiming:
        if self._claiming is None:
            self._claiming = Claiming(self._options, self._open)
        return self._claiming

    def _store(self) -> StoreIdentity:
        return self._open().ask(lambda q: q.identity())

    def _open(self) -> Remote:
        """The planner's connection. Spark copies the reader for workers before this is opened."""
        if self._remote is None:
            self._remote = self._options.server.open()
            # Spark sends this process SIGTERM; ``stop`` only runs if that raises an exception.
            signal.signal(signal.SIGTERM, self._end)
        return self._remote

    def _end(self, number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG002
        # Spark may send it twice, and the second one must not interrupt ``stop``.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._is_ended = True
        raise SystemExit

    # -- reading -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in claim order."""
        assert isinstance(partition, Slice)
        return read_slice(self._options, partition)
