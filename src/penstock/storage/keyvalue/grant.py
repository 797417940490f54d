"""Grant: from available to in flight, under a new receipt (C1, C2).

A grant is a move like those in ``moves``: it reads everything that it needs (``GrantReads``) before
it changes anything.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_ATTEMPTS
from penstock.model.message import Message
from penstock.storage.keyvalue.encoding import pack_utf8
from penstock.storage.keyvalue.entry import LEASE, Entry
from penstock.storage.keyvalue.keys import publish_claim_id
from penstock.storage.keyvalue.positions import Positions
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.receipts import receipt_of
from penstock.storage.keyvalue.records import IN_FLIGHT, append_attempt, first_attempt

__all__ = ["GrantReads", "grant"]


class GrantReads:
    """The records that ``grant`` needs, read before anything is granted."""

    __slots__ = ("attempts", "errors")

    def __init__(self, queue: Queue, entries: list[Entry]) -> None:
        get = queue.stage.get
        self.attempts: dict[int, bytes | None] = {}
        #: The last error of every dead letter.
        self.errors: list[str | None] = []
        if queue.is_dead_letter:
            self.errors = [queue.trail(entry.message_id).last_error for entry in entries]
        replays = queue.home.replays
        if queue.positions is not None:
            for entry in entries:
                queue.shelf.load(publish_claim_id(entry.claim_id, entry.message_id))
        for entry in entries:
            if entry.attempts or replays:
                key = queue.keys.attempts + entry.message_id.to_bytes(8, "big")
                self.attempts[entry.message_id] = get(key)


def grant(
    queue: Queue,
    entries: list[Entry],
    reads: GrantReads,
    messages: list[Message],
    payloads: list[bytes],
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
    last = home.last_grant
    ordered = queue.partitions is not None
    known = reads.attempts
    if queue.positions is not None:
        _bring_home(queue, queue.positions, entries)
    out: list[Delivery] = []
    append, pack, pack_lease = out.append, IN_FLIGHT.pack, LEASE.pack
    tags = queue.receipts.tags(number, last + 1, len(entries)) if entries else []
    for entry, message, payload, tag in zip(entries, messages, payloads, tags, strict=True):
        last += 1
        message_id = entry.message_id
        attempt = first
        if known and message_id in known:
            attempt = append_attempt(known[message_id], now, consumer_utf8)
        writes[attempts_key + message_id.to_bytes(8, "big")] = attempt
        attempts = entry.attempts
        if attempts < MAX_ATTEMPTS:
            attempts += 1
        entry.attempts = attempts
        entry.claimed_at = now
        entry.consumer = consumer
        entry.grant = last
        if not ordered:
            entry.epoch = 0
        claim_id, metadata = entry.claim_id, entry.metadata
        entry.lease = pack_lease(claim_id, last, entry.epoch, entry.at) + consumer_utf8
        # Entry.hold inlined: a tenth of the time of a grant.
        entry.deadline = deadline
        entry.encoded = (
            pack(message_id, claim_id, now, deadline, attempts, len(metadata)) + metadata
        )
        receipt = entry.receipt = receipt_of(number, claim_id, last, attempts, tag)
        append(Delivery(name, receipt, message, payload, attempts, now, deadline))
    queue.make_many_in_flight(entries, deadline)
    if reads.errors:
        out = [
            replace(one, error=error, failed_at=entry.at, original_queue=home.name)
            for one, entry, error in zip(out, entries, reads.errors, strict=True)
        ]
    home.last_grant = last
    queue.grants += len(out)
    queue.touch()
    home.touch()
    return out


def _bring_home(queue: Queue, positions: Positions, entries: list[Entry]) -> None:
    """Give taken entries their publish positions, which deliveries in flight have."""
    for entry in entries:
        queue.unwatch_expiry(entry)
        positions.bring_home(entry)
        queue.watch_expiry(entry)
