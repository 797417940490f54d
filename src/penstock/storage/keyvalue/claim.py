"""Claim: lease deliveries in order (C1, C2, C3, C4).

Time takes effect first: due, lapsed and expired deliveries move before anything is handed out.
Every grant is a new receipt, one more attempt and one more item in the attempts record, all in the
commit that the reply waits for. A waiting delivery without attempts left, because ``max_attempts``
was lowered, fails when a claim reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from penstock.errors import StoreCorrupt, StoreError
from penstock.model.checksum import checksum
from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_ATTEMPTS, MAX_CLAIM_BYTES
from penstock.model.message import Message
from penstock.storage.keyvalue.encoding import pack_utf8
from penstock.storage.keyvalue.entry import LEASE, Entry
from penstock.storage.keyvalue.keys import payload_key
from penstock.storage.keyvalue.moves import (
    exhaust,
    expire_available,
    heartbeat,
    is_exhausted,
    is_expired,
    key_to_close,
    let_time_pass,
)
from penstock.storage.keyvalue.partitions import Partitions
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.receipts import receipt_of
from penstock.storage.keyvalue.records import append_attempt, first_attempt
from penstock.storage.keyvalue.stage import Stage

__all__ = ["CLAIM_TURNS", "claim", "read_payload", "read_payloads"]

#: Moves of each kind (due, lapsed, expired, out of attempts) that one claim makes before it hands
#: anything out, in total and per turn of the event loop. Later claims and the sweep do the rest, so
#: that the time of a claim is bounded.
MAX_MOVES: Final = 2_000
_MOVES_A_TURN: Final = 40
CLAIM_TURNS: Final = MAX_MOVES // _MOVES_A_TURN


def claim(
    queue: Queue,
    consumer: str,
    limit: int,
    lease_ms: int | None,
    now: int,
    *,
    last_turn: bool = False,
) -> list[Delivery] | None:
    """Lease up to ``limit`` deliveries to ``consumer``.

    Returns None if the caller should let other calls run and then claim again: more partitions have
    to move, or, unless this is the ``last_turn``, more deliveries have to become due, lapse, expire
    or fail than one turn allows.
    """
    if let_time_pass(queue, now, _MOVES_A_TURN) and not last_turn:
        return None
    if queue.partitions is not None and heartbeat(queue, queue.partitions, consumer, now):
        return None
    if queue.paused:
        return []
    entries: list[Entry] = []
    try:
        if queue.partitions is not None:
            moved = _take_from_partitions(queue, queue.partitions, consumer, limit, now, entries)
        else:
            moved = _take_in_order(queue, limit, now, entries)
        reads = _Reads(queue, entries)
    except StoreError:
        # A record cannot be read: undo everything.
        for entry in entries:
            if queue.partitions is not None:
                queue.partitions.let_go(entry)
            queue.make_available(entry)
        raise
    if moved == _MOVES_A_TURN:
        if not entries and not last_turn:
            return None
        queue.ready()  # The queue may hold more: waiters claim again.
    if not entries:
        return []
    return _grant(queue, entries, reads, consumer, now + queue.policy.lease_for(lease_ms), now)


class _Reads:
    """The records that granting needs, read before anything is granted."""

    __slots__ = ("attempts", "keys", "payloads")

    def __init__(self, queue: Queue, entries: list[Entry]) -> None:
        get = queue.stage.get
        self.payloads = read_payloads(queue.stage, entries)
        self.attempts: dict[int, bytes | None] = {}
        self.keys: list[bytes] = []
        replays = queue.home.replays
        for entry in entries:
            if entry.attempts or replays:
                key = queue.keys.attempts + entry.message_id.to_bytes(8, "big")
                self.attempts[entry.message_id] = get(key)
            if not entry.attempts and entry.message.key is not None:
                closing = key_to_close(queue, entry.message)
                if closing is not None:
                    self.keys.append(closing)


def _take_in_order(queue: Queue, limit: int, now: int, taken: list[Entry]) -> int:
    """Take the first available entries off the shelf.

    Entries past ``expires_at`` expire, and those without attempts left fail, up to the limit of one
    turn. Returns how many did.
    """
    shelf = queue.shelf
    expires = not queue.is_dead_letter
    max_attempts = queue.policy.max_attempts
    moved = 0
    room = MAX_CLAIM_BYTES
    while len(taken) < limit and moved < _MOVES_A_TURN and room >= 0:
        bucket = shelf.head()
        if bucket is None:
            break
        available = bucket.available
        for claim_id in list(islice(available, limit - len(taken))):
            entry = available[claim_id]
            message = entry.message
            expires_at = message.expires_at
            if expires_at is not None and expires_at <= now and expires:
                expire_available(queue, entry, now)
            elif entry.attempts >= max_attempts and is_exhausted(queue, entry):
                exhaust(queue, entry, now)
            else:
                room -= message.size
                if room < 0 and taken:
                    queue.ready()  # Consumers that wait claim the rest.
                    break
                del available[claim_id]
                queue.available_count -= 1
                taken.append(entry)
                continue
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
) -> int:
    """Take the first entries of the consumer's partitions, never skipping one.

    Entries past ``expires_at`` expire, and those without attempts left fail, up to the limit of one
    turn. Returns how many did.
    """
    moved = 0
    room = MAX_CLAIM_BYTES
    while len(taken) < limit and moved < _MOVES_A_TURN:
        first = partitions.first_ready(consumer)
        if first is None:
            break
        claim_id, partition = first
        found = queue.shelf.find(claim_id)
        if found is None:
            raise StoreCorrupt(f"Partition {partition.name!r} names a missing delivery.")
        if is_expired(found, now):
            expire_available(queue, found, now)
            moved += 1
        elif is_exhausted(queue, found):
            exhaust(queue, found, now)
            moved += 1
        else:
            room -= found.message.size
            if room < 0 and taken:
                queue.ready()
                break
            entry = queue.take_available(claim_id)
            entry.epoch = partition.epoch
            partitions.held(entry)
            taken.append(entry)
    return moved


def _grant(
    queue: Queue,
    entries: list[Entry],
    reads: _Reads,
    consumer: str,
    deadline: int,
    now: int,
) -> list[Delivery]:
    """Give every entry a new receipt, one more attempt and an item in its attempts record."""
    consumer_utf8 = pack_utf8(consumer)
    first = first_attempt(now, consumer_utf8)
    writes = queue.stage.writes
    attempts_key = queue.keys.attempts
    name, number, home = queue.name, queue.number, queue.home
    grant = home.last_grant
    ordered = queue.partitions is not None
    known = reads.attempts
    for key in reads.keys:
        writes[key] = None
    out: list[Delivery] = []
    tags = queue.receipts.tags(number, grant + 1, len(entries)) if entries else []
    for entry, payload, tag in zip(entries, reads.payloads, tags, strict=True):
        grant += 1
        message_id = entry.message_id
        writes[attempts_key + message_id.to_bytes(8, "big")] = (
            append_attempt(known[message_id], now, consumer_utf8) if message_id in known else first
        )
        attempts = entry.attempts
        if attempts < MAX_ATTEMPTS:
            attempts += 1
        entry.attempts = attempts
        entry.claimed_at = now
        entry.consumer = consumer
        entry.grant = grant
        if not ordered:
            entry.epoch = 0
        claim_id = entry.claim_id
        entry.lease = LEASE.pack(claim_id, grant, entry.epoch, entry.at) + consumer_utf8
        entry.hold(deadline)
        receipt = entry.receipt = receipt_of(number, claim_id, grant, attempts, tag)
        out.append(Delivery(name, receipt, entry.message, payload, attempts, now, deadline))
    queue.make_many_in_flight(entries, deadline)
    home.last_grant = grant
    queue.grants += len(out)
    queue.touch()
    home.touch()
    return out


def read_payloads(stage: Stage, entries: list[Entry]) -> list[bytes]:
    """The payloads, with verified checksums (P3, X1)."""
    values = stage.get_many([payload_key(entry.message.offset) for entry in entries])
    return [_checked(value, entry.message) for entry, value in zip(entries, values, strict=True)]


def read_payload(get: Callable[[bytes], bytes | None], message: Message) -> bytes:
    """One payload, with a verified checksum."""
    return _checked(get(payload_key(message.offset)), message)


def _checked(value: bytes | None, message: Message) -> bytes:
    if value is None:
        raise StoreCorrupt(f"The payload of message {message.id} is missing.")
    if checksum(value) != message.checksum:
        raise StoreCorrupt(f"The checksum of the payload of message {message.id} is wrong.")
    return value
