"""Claims with a selector: take the waiting deliveries that match, and leave the others alone.

A claim that needs more than one slice takes nothing before its last one, so that no delivery has
to be given back, which would wake consumers that wait.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, nsmallest

from penstock.errors import StoreCorrupt
from penstock.model.decisions import is_expired
from penstock.model.limits import MAX_CLAIM_BYTES, MAX_CLAIM_SCAN
from penstock.storage.claim_selector import ClaimSelector
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.moves import exhaust, expire_available, is_exhausted
from penstock.storage.keyvalue.partition import Partition
from penstock.storage.keyvalue.queue import Queue

__all__ = ["take_selected"]


def take_selected(
    queue: Queue,
    consumer: str,
    limit: int,
    now: int,
    taken: list[Entry],
    selector: ClaimSelector,
    most_moves: int,
) -> int | None:
    """Take the first available entries that match off the shelf.

    Entries past ``expires_at`` expire, and matching ones without attempts left fail, up to
    ``most_moves``. Returns how many did, or ``most_moves`` if the commit is full of dead-letter
    copies; None if the claim has to continue in another slice.
    """
    selector.begin_slice()
    if queue.partitions is not None:
        heads = queue.partitions.all_ready(consumer)
        if not _decide_heads(queue, heads, limit, selector):
            return None
        try:
            return _take_from_heads(queue, heads, limit, now, taken, selector, most_moves)
        finally:
            queue.partitions.claim_ended()
    found: list[Entry] = []
    moved = _find(queue, limit, now, found, selector, most_moves)
    if moved is not None:
        taken += [queue.take_available(entry.claim_id) for entry in found]
    return moved


def _find(
    queue: Queue,
    limit: int,
    now: int,
    found: list[Entry],
    selector: ClaimSelector,
    most_moves: int,
) -> int | None:
    """Find the first matching entries, in order; they stay on the shelf."""
    moved = 0
    remaining = MAX_CLAIM_BYTES
    for bucket in queue.shelf.in_order():
        for entry in tuple(bucket.available.values()):
            if len(found) == limit or moved == most_moves:
                return moved
            message = entry.message
            if not queue.is_dead_letter and is_expired(message.expires_at, now):
                if queue.must_wait:
                    return most_moves
                expire_available(queue, entry, now)
                moved += 1
                continue
            if not selector.knows(message):
                if selector.is_spent:
                    return moved
                if selector.is_slice_over:
                    return None
            if not selector.takes(message):
                continue
            if is_exhausted(queue, entry):
                if queue.must_wait:
                    return most_moves
                exhaust(queue, entry, now)
                moved += 1
                continue
            remaining -= message.size
            if remaining < 0 and found:
                queue.ready()  # Consumers that wait claim the rest.
                return moved
            found.append(entry)
    return moved


def _decide_heads(
    queue: Queue, heads: list[tuple[int, Partition]], limit: int, selector: ClaimSelector
) -> bool:
    """Decide the first entries of the partitions, until enough match.

    Returns whether that is done; if not, another slice has to continue.
    """
    matching = 0
    for claim_id, partition in nsmallest(MAX_CLAIM_SCAN, heads):
        message = _entry(queue, claim_id, partition).message
        if not selector.knows(message):
            if selector.is_spent:
                break
            if selector.is_slice_over:
                return False
        matching += selector.takes(message)
        if matching == limit:
            break
    return True


def _take_from_heads(
    queue: Queue,
    heads: list[tuple[int, Partition]],
    limit: int,
    now: int,
    taken: list[Entry],
    selector: ClaimSelector,
    most_moves: int,
) -> int:
    """Take matching entries; a partition ends with its first entry that does not match."""
    partitions = queue.partitions
    assert partitions is not None
    moved = 0
    remaining = MAX_CLAIM_BYTES
    heapify(heads)
    while heads and len(taken) < limit and moved < most_moves:
        claim_id, partition = heappop(heads)
        entry = _entry(queue, claim_id, partition)
        message = entry.message
        if is_expired(message.expires_at, now):
            if queue.must_wait:
                return most_moves
            expire_available(queue, entry, now)
            moved += 1
        elif not selector.knows(message) and selector.is_spent:
            break
        elif not selector.takes(message):
            continue
        elif is_exhausted(queue, entry):
            if queue.must_wait:
                return most_moves
            exhaust(queue, entry, now)
            moved += 1
        else:
            remaining -= message.size
            if remaining < 0 and taken:
                queue.ready()
                break
            entry = queue.take_available(claim_id)
            partitions.take(entry, partition)
            taken.append(entry)
        following = partitions.next_of(partition) if partition.unsettled else None
        if following is not None:
            heappush(heads, (following, partition))
    return moved


def _entry(queue: Queue, claim_id: int, partition: Partition) -> Entry:
    entry = queue.shelf.find(claim_id)
    if entry is None:
        raise StoreCorrupt(f"Partition {partition.name!r} names a missing delivery.")
    return entry
