"""Stats: the counters of a queue (Q2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from penstock.model.counts import QueueCounts
from penstock.model.delivery import PartitionStats, QueueStats
from penstock.model.message import Offset
from penstock.storage.keyvalue.keys import EXPONENT_SHIFT, LANE_SPAN, LANES, message_id_of
from penstock.storage.keyvalue.partitions import Partition, Partitions
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["partition_stats", "queue_counts", "queue_stats"]


def queue_stats(queue: Queue, tenant: Tenant, unrouted: int, now: int) -> QueueStats:
    """The statistics of a queue. Moves maintain the counts; the rest is read from the heads.

    The caller counts the unrouted entries, and adds the partitions.
    """
    oldest = min(_available_since(queue), default=None)
    dead = queue.dead
    return QueueStats(
        delayed=queue.delayed_count,
        available=queue.available_count,
        in_flight=queue.in_flight_count,
        done=queue.done_count,
        failed=0 if dead is None else dead.depth,
        expired=queue.expired_count,
        oldest_available_ms=None if oldest is None else now - oldest,
        in_flight_by_consumer=dict(
            sorted(Counter(entry.consumer for entry in queue.claims.values()).items())
        ),
        grants=queue.grants,
        acks=queue.acks,
        nacks=queue.nacks,
        failures=queue.failures,
        watermark=Offset(_watermark(queue, tenant)),
        lag=queue.depth + unrouted,
    )


def _available_since(queue: Queue) -> Iterator[int]:
    for lane in range(LANES):
        bucket = queue.shelf.lane_head(lane)
        if bucket is not None:
            yield next(iter(bucket.available.values())).message.published_at


def _watermark(queue: Queue, tenant: Tenant) -> int:
    lowest = min(_unsettled_ids(queue), default=tenant.log.end)
    if queue.cursor is not None:
        lowest = min(lowest, queue.cursor)
    return lowest - 1


def _unsettled_ids(queue: Queue) -> Iterator[int]:
    """The lowest unsettled ids of each state and lane; the lowest of all is among them."""
    for lane in range(LANES):
        bucket = queue.shelf.lane_head(lane)
        if bucket is not None:
            yield next(iter(bucket.available.values())).message_id
    for entry in queue.claims.values():
        yield entry.message_id
    moved = None if queue.positions is None else queue.positions.lowest()
    if moved is not None:
        yield moved
    if queue.delayed_count:
        base = queue.policy.bucket_size << EXPONENT_SHIFT
        for lane in range(LANES):
            first = base + lane * LANE_SPAN
            place = queue.keys.place
            for key, _ in queue.stage.scan(
                place + first.to_bytes(8, "big"),
                place + (first + LANE_SPAN).to_bytes(8, "big"),
            ):
                yield message_id_of(int.from_bytes(key[-8:], "big"))
                break


def queue_counts(queue: Queue) -> QueueCounts:
    """The counts of a queue, without what takes time in proportion to anything."""
    dead = queue.dead
    oldest = min(_available_since(queue), default=None) if queue.available_count else None
    return QueueCounts(
        paused=queue.paused,
        ordered=queue.partitions is not None,
        behind=queue.cursor is not None,
        delayed=queue.delayed_count,
        available=queue.available_count,
        in_flight=queue.in_flight_count,
        done=queue.done_count,
        failed=0 if dead is None else dead.depth,
        expired=queue.expired_count,
        oldest_at=oldest,
        grants=queue.grants,
        acks=queue.acks,
        nacks=queue.nacks,
        failures=queue.failures,
    )


def partition_stats(queue: Queue, after: str | None, most: int) -> list[PartitionStats]:
    """Up to ``most`` partitions of an ordered queue whose names follow ``after``, by name."""
    partitions = queue.partitions
    if partitions is None:
        return []
    names = partitions.by_name.irange(after, None, (False, True))
    return [_partition_stats(partitions, partitions.by_name[name]) for name in islice(names, most)]


def _partition_stats(partitions: Partitions, partition: Partition) -> PartitionStats:
    return PartitionStats(
        partition.name,
        partition.owner,
        partition.epoch,
        partition.unsettled,
        partition.in_flight_count,
        Offset(partitions.first_unsettled(partition) - 1),
    )
