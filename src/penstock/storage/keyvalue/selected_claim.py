"""Claims with a selector: take the waiting deliveries that match, and leave the others alone.

A claim that needs more than one slice changes nothing before its last one, so that no delivery has
to be given back, which would wake consumers that wait, and those that end do so in one commit.
"""

from __future__ import annotations

from collections.abc import Callable
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

_End = Callable[[Queue, Entry, int], object]
#: Entries in order, each with how it ends, or None if the claim takes it.
_Plan = list[tuple[Entry, _End | None]]


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
    plan = _plan(queue, limit, now, selector, most_moves)
    return None if plan is None else _carry_out(queue, plan, now, taken, most_moves)


def _plan(
    queue: Queue, limit: int, now: int, selector: ClaimSelector, most_moves: int
) -> _Plan | None:
    """Decide what becomes of the first entries, in order, and change nothing."""
    plan: _Plan = []
    found = moves = 0
    remaining = MAX_CLAIM_BYTES
    for bucket in queue.shelf.in_order():
        for entry in bucket.available.values():
            if found == limit or moves == most_moves:
                return plan
            message = entry.message
            end: _End | None = None
            if not queue.is_dead_letter and is_expired(message.expires_at, now):
                end = expire_available
            elif not selector.knows(message) and selector.is_spent:
                return plan
            elif not selector.knows(message) and selector.is_slice_over:
                return None
            elif not selector.takes(message):
                continue
            elif is_exhausted(queue, entry):
                end = exhaust
            else:
                remaining -= message.size
                if remaining < 0 and found:
                    queue.ready()  # Consumers that wait claim the rest.
                    return plan
                found += 1
            moves += end is not None
            plan.append((entry, end))
    return plan


def _carry_out(queue: Queue, plan: _Plan, now: int, taken: list[Entry], most_moves: int) -> int:
    moved = 0
    for entry, end in plan:
        if end is None:
            taken.append(queue.take_available(entry.claim_id))
            continue
        if queue.must_wait:
            return most_moves
        end(queue, entry, now)
        moved += 1
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
