"""Claim: lease deliveries in order (C1, C2, C3, C4).

Time takes effect first: due, lapsed and expired deliveries move before anything is handed out.
Every grant is a new receipt, one more attempt and one more item in the attempts record, all in the
commit that the reply waits for. A waiting delivery without attempts left, because ``max_attempts``
was lowered, fails when a claim reaches it.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Final

from penstock.errors import StoreCorrupt, StoreError
from penstock.model.decisions import is_expired, lease_for
from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_CLAIM_BYTES
from penstock.storage.claim_selector import ClaimSelector
from penstock.storage.keyvalue.entry import Entry, messages_of
from penstock.storage.keyvalue.grant import GrantReads, grant
from penstock.storage.keyvalue.moves import exhaust, expire_available, is_exhausted
from penstock.storage.keyvalue.partitions import Partitions
from penstock.storage.keyvalue.passing_time import heartbeat, let_time_pass
from penstock.storage.keyvalue.payloads import payloads_of
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.selected_claim import take_selected

__all__ = ["CLAIM_TURNS", "claim"]

#: Moves of each kind (due, lapsed, expired, out of attempts) that one claim makes before it hands
#: anything out, in total and per turn of the event loop. Later claims and the sweep do the rest, so
#: that the time of a claim is bounded.
MAX_MOVES: Final = 2_000
_MOVES_A_TURN: Final = 40
CLAIM_TURNS: Final = MAX_MOVES // _MOVES_A_TURN
#: Bytes of metadata that a claim decodes per turn: some milliseconds, if it is headers.
_DECODED_A_TURN: Final = 512 * 1024


def claim(
    queue: Queue,
    consumer: str,
    limit: int,
    lease_ms: int | None,
    now: int,
    *,
    last_turn: bool = False,
    selector: ClaimSelector | None = None,
) -> list[Delivery] | None:
    """Lease up to ``limit`` deliveries to ``consumer``.

    Returns None if the caller should let other calls run and then claim again: more partitions have
    to move, or, unless this is the ``last_turn``, more deliveries have to become due, lapse,
    expire, fail or be decoded than one turn allows.
    """
    if let_time_pass(queue, now, _MOVES_A_TURN) and not last_turn:
        return None
    if queue.partitions is not None and heartbeat(queue, queue.partitions, consumer, now):
        return None
    if queue.paused:
        return []
    entries: list[Entry] = []
    decode = math.inf if last_turn else _DECODED_A_TURN
    try:
        if selector is not None:
            moved = take_selected(queue, consumer, limit, now, entries, selector, _MOVES_A_TURN)
        elif queue.partitions is not None:
            try:
                moved = _take_from_partitions(
                    queue, queue.partitions, consumer, limit, now, entries, decode
                )
            finally:
                queue.partitions.claim_ended()
        else:
            moved = _take_in_order(queue, limit, now, entries, decode)
            if not entries and not moved:
                return []  # Before each wait of a consumer.
        if moved is None:
            _give_back(queue, entries)
            return None
        messages = messages_of(entries)
        payloads = payloads_of(queue.stage, messages)
        reads = GrantReads(queue, entries)
    except StoreError:
        _give_back(queue, entries)  # A record cannot be read.
        raise
    if moved == _MOVES_A_TURN:
        if not entries and not last_turn:
            return None
        queue.ready()  # The queue may hold more: waiters claim again.
    if not entries:
        return []
    deadline = now + lease_for(queue.policy, lease_ms)
    return grant(queue, entries, reads, messages, payloads, consumer, deadline, now)


def _give_back(queue: Queue, entries: list[Entry]) -> None:
    """Undo the taking of entries."""
    for entry in entries:
        if queue.partitions is not None:
            queue.partitions.let_go(entry)
        queue.make_available(entry)


def _take_in_order(
    queue: Queue, limit: int, now: int, taken: list[Entry], decode: float
) -> int | None:
    """Take the first available entries off the shelf.

    Entries past ``expires_at`` expire, and those without attempts left fail, up to the limit of one
    turn. Returns how many did, or that limit if the commit is full of dead-letter copies; None if
    more than ``decode`` bytes have to be decoded.
    """
    shelf = queue.shelf
    expires = not queue.is_dead_letter
    max_attempts = queue.policy.max_attempts
    moved = 0
    remaining = MAX_CLAIM_BYTES
    while len(taken) < limit and moved < _MOVES_A_TURN and remaining >= 0 and queue.available_count:
        bucket = shelf.head()
        if bucket is None:
            break
        available = bucket.available
        for claim_id in list(islice(available, limit - len(taken))):
            entry = available[claim_id]
            message = entry.loaded
            if message is None:
                if decode <= 0:
                    shelf.took_from(bucket)
                    return None
                decode -= len(entry.metadata)
                message = entry.message
            expires_at = message.expires_at
            if expires_at is not None and expires and is_expired(expires_at, now):
                end = expire_available
            elif entry.attempts >= (message.max_attempts or max_attempts) and is_exhausted(
                queue, entry
            ):
                end = exhaust
            else:
                remaining -= message.size
                if remaining < 0 and taken:
                    queue.ready()  # Consumers that wait claim the rest.
                    break
                del available[claim_id]
                queue.available_count -= 1
                taken.append(entry)
                continue
            if queue.must_wait:
                moved = _MOVES_A_TURN
                break
            end(queue, entry, now)
            moved += 1
            if moved == _MOVES_A_TURN:
                break
        shelf.took_from(bucket)
        queue.touch()
    return moved


def _take_from_partitions(
    queue: Queue,
    partitions: Partitions,
    consumer: str,
    limit: int,
    now: int,
    taken: list[Entry],
    decode: float,
) -> int | None:
    """As ``_take_in_order``, of the consumer's partitions, never skipping an entry."""
    moved = 0
    remaining = MAX_CLAIM_BYTES
    while len(taken) < limit and moved < _MOVES_A_TURN:
        first = partitions.first_ready(consumer)
        if first is None:
            break
        claim_id, partition = first
        found = queue.shelf.find(claim_id)
        if found is None:
            raise StoreCorrupt(f"Partition {partition.name!r} names a missing delivery.")
        if found.loaded is None:
            if decode <= 0:
                return None
            decode -= len(found.metadata)
        expired = is_expired(found.message.expires_at, now)
        if expired or is_exhausted(queue, found):
            if queue.must_wait:
                return _MOVES_A_TURN
            (expire_available if expired else exhaust)(queue, found, now)
            moved += 1
        else:
            remaining -= found.message.size
            if remaining < 0 and taken:
                queue.ready()
                break
            entry = queue.take_available(claim_id)
            partitions.take(entry, partition)
            taken.append(entry)
    return moved
