"""Sweep: time takes effect in every queue, and retention removes what may go (G1, A1)."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.storage.keyvalue.keys import claim_ranges
from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.moves import drop_available
from penstock.storage.keyvalue.queue import DONE_SLOT, EXPIRED_SLOT, FAILED_SLOT, Queue
from penstock.storage.keyvalue.settled import SLOT_MS, SettledShelf

__all__ = ["remove_settled", "remove_unreferenced"]


def remove_settled(queue: Queue, now: int, limit: int) -> int:
    """Remove done, expired and failed deliveries past their retention."""
    keep_ms = queue.policy.done_retention_s * 1000
    removed = 0
    if keep_ms:
        removed += _remove_from(queue, queue.done, DONE_SLOT, now - keep_ms, limit)
        removed += _remove_from(queue, queue.expired, EXPIRED_SLOT, now - keep_ms, limit)
    failed_ms = queue.policy.failed_retention_s * 1000
    if failed_ms and queue.dead is not None:
        removed += _remove_failed(queue, queue.dead, now - failed_ms, limit)
    return removed


def _old_slots(queue: Queue, kind: int, until: int) -> Iterable[tuple[bytes, int, int]]:
    """(key, slot, bucket id) of slots that began at or before ``until``."""
    if until < 0:
        return
    prefix = queue.keys.retention + bytes((kind,))
    end = prefix + (until // SLOT_MS + 1).to_bytes(8, "big")
    for key, _ in queue.stage.scan(prefix, end):
        slot = int.from_bytes(key[-16:-8], "big")
        yield key, slot, int.from_bytes(key[-8:], "big")


def _is_over(slot: int, until: int) -> bool:
    """Whether everything in the slot is at or before ``until``."""
    return (slot + 1) * SLOT_MS - 1 <= until


def _remove_from(queue: Queue, shelf: SettledShelf, kind: int, until: int, limit: int) -> int:
    removed = 0
    for key, slot, bucket_id in list(_old_slots(queue, kind, until)):
        for item in shelf.of_bucket(bucket_id):
            if item.at <= until:
                shelf.remove(item.claim_id)
                queue.forget(item.message_id)
                removed += 1
        if _is_over(slot, until):
            queue.stage.delete(key)
        if removed >= limit:
            break
    if kind == DONE_SLOT:
        queue.done_count -= removed
    else:
        queue.expired_count -= removed
    if removed:
        queue.touch()
    return removed


def _remove_failed(queue: Queue, dead: Queue, until: int, limit: int) -> int:
    removed = 0
    for key, slot, bucket_id in list(_old_slots(queue, FAILED_SLOT, until)):
        for claim_id, entry in list(dead.shelf.bucket(bucket_id).available.items()):
            if entry.at <= until:
                drop_available(dead, claim_id)
                removed += 1
        if _is_over(slot, until):
            queue.stage.delete(key)
        if removed >= limit:
            break
    return removed


def remove_unreferenced(
    log: Log, queues: Iterable[Queue], now: int, retention_ms: int, *, archive: bool
) -> int:
    """Remove log segments, with their payloads, that nothing needs any more."""
    queues = list(queues)
    removed = 0
    index = 0
    while index < len(log.segments):
        if _may_go(log, index, queues, now, retention_ms, archive=archive):
            if index == len(log.segments) - 1:
                if log.next_offset == log.segments[index].start:
                    break
                log.open_segment(log.next_offset, now)
            removed += log.remove_segment(index)
        else:
            index += 1
    return removed


def _may_go(
    log: Log, index: int, queues: list[Queue], now: int, retention_ms: int, *, archive: bool
) -> bool:
    low, high = log.segments[index].start, log.segment_end(index)
    if log.segments[index].started_at + retention_ms > now:
        # Nothing in it is older than itself: most segments need not be read.
        return False
    last = log.last_entries(index)
    if not last and index == len(log.segments) - 1:
        return False
    for tenant, message in last:
        if message.published_at + retention_ms > now or message.offset >= tenant.committed_end:
            return False
        if archive and tenant.archived < message.offset:
            return False
    ids = log.replacements(low, high)
    return not any(
        (queue.cursor is not None and queue.cursor < high)
        or _refers(queue, low, high)
        or any(_refers(queue, message_id, message_id + 1) for message_id in ids)
        for queue in queues
    )


def _refers(queue: Queue, low: int, high: int) -> bool:
    """Whether a delivery, in any state, is of a message with low <= id < high."""
    exponent = queue.policy.bucket_size
    held = queue.available_count or queue.in_flight_count
    if held and queue.shelf.refers(low, high, exponent):
        return True
    if queue.delayed_count:
        for first, end in claim_ranges(low, high, (exponent,)):
            place = queue.keys.place
            for _ in queue.stage.scan(
                place + first.to_bytes(8, "big"), place + end.to_bytes(8, "big")
            ):
                return True
    if queue.done_count and queue.done.refers(low, high):
        return True
    if queue.expired_count and queue.expired.refers(low, high):
        return True
    return queue.dead is not None and _refers(queue.dead, low, high)
