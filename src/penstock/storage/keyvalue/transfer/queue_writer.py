"""Makes the records of one queue from its deliveries."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from penstock.model.limits import DLQ_SUFFIX
from penstock.model.queue import Ordering
from penstock.model.states import State, Transition
from penstock.storage import dump
from penstock.storage.copied_receipts import RECEIPT_KIND, encode_claim
from penstock.storage.keyvalue.encoding import pack_utf8, seal
from penstock.storage.keyvalue.entry import LEASE, Entry
from penstock.storage.keyvalue.keys import QueueKeys, bucket_of, claim_id_of, document_key
from penstock.storage.keyvalue.metadata import encode_metadata
from penstock.storage.keyvalue.queue import DONE_SLOT, EXPIRED_SLOT, FAILED_SLOT
from penstock.storage.keyvalue.queue_state import encode_state
from penstock.storage.keyvalue.records import append_attempt, array, encode_spec
from penstock.storage.keyvalue.settled import SLOT_MS
from penstock.storage.keyvalue.trail import Mark, Trail

__all__ = ["QueueWriter"]

_U64: Final = struct.Struct("<Q")
_I64: Final = struct.Struct("<q")


class _Side:
    """A queue, or its dead letters: the bucket that is being filled, and its counts."""

    def __init__(self, keys: QueueKeys, home: QueueKeys, counters: dump.Counters) -> None:
        self.keys = keys
        self.home = home
        self.counters = counters
        self.counts: Counter[State] = Counter()
        self.bucket: tuple[State, int] | None = None
        self.elements: list[bytes] = []
        self.held: list[bytes] = []
        self.leases: list[bytes] = []
        self.slots: set[bytes] = set()


class QueueWriter:
    """The records of a queue and its dead letters."""

    def __init__(self, info: dump.QueueInfo, number: int) -> None:
        self._info = info
        self._number = number
        home = QueueKeys(info.tenant, info.name)
        dead = QueueKeys(info.tenant, info.name + DLQ_SUFFIX)
        self._own = _Side(home, home, info.counters)
        self._dead = _Side(dead, home, info.dead_counters)
        self._ordered = info.policy.ordering is Ordering.PARTITION
        self._partitions: dict[str, dump.Partition] = {}
        self._unsettled: Counter[str] = Counter()
        self._grants = 0
        self._replays = 0

    def spec(self) -> tuple[bytes, bytes]:
        """The specification."""
        info = self._info
        facts = {
            "queue_number": self._number,
            "filter_version": info.filter_version,
            "created_at": info.created_at,
        }
        return self._own.keys.spec, encode_spec(info.policy, facts)

    def consumer(self, record: dump.Consumer) -> tuple[bytes, bytes]:
        """The record of a consumer."""
        return self._own.keys.consumer + record.name.encode(), seal(_I64.pack(record.deadline))

    def partition(self, record: dump.Partition) -> None:
        """Note the owner of a partition, whose record has the number of its deliveries."""
        self._partitions[record.name] = record

    def replay_mark(self, record: dump.ReplayMark) -> bytes:
        """The key of a replay mark."""
        side = self._dead if record.dead else self._own
        return side.keys.replay_mark(record.message_id, record.replay_id)

    # -- deliveries --------------------------------------------------------------------

    def delivery(self, delivery: dump.Delivery) -> Iterator[tuple[bytes, bytes]]:
        """The records that are complete with this delivery."""
        side = self._dead if delivery.dead else self._own
        if delivery.dead:
            yield from self._flush(self._own)
        message = delivery.message
        metadata = encode_metadata(message)
        number = message.id if delivery.position is None else delivery.position
        claim_id = claim_id_of(self._info.policy.bucket_size, message.priority, number)
        entry = Entry.waiting(message.id, claim_id, delivery.attempts, metadata, message)
        entry.at = delivery.at or 0
        side.counts[delivery.state] += 1
        if delivery.state is State.DELAYED:
            yield from self._flush(side)
            yield from self._delayed(side, entry, delivery)
        else:
            yield from self._into_bucket(side, entry, delivery)
        if delivery.receipt is not None:
            number = self._number + delivery.dead
            claim = (number, entry.claim_id, self._grants, delivery.attempts)
            yield document_key(RECEIPT_KIND, delivery.receipt), seal(encode_claim(claim))
        yield from self._live(side, entry, delivery)
        yield from self._story(side, delivery)

    def _into_bucket(
        self, side: _Side, entry: Entry, delivery: dump.Delivery
    ) -> Iterator[tuple[bytes, bytes]]:
        live = delivery.state in (State.AVAILABLE, State.IN_FLIGHT)
        bucket_id = bucket_of(entry.claim_id)
        bucket = (State.AVAILABLE if live else delivery.state, bucket_id)
        if side.bucket != bucket:
            yield from self._flush(side)
            side.bucket = bucket
        match delivery.state:
            case State.IN_FLIGHT:
                self._hold(side, entry, delivery)
            case State.AVAILABLE if side is self._own:
                side.elements.append(entry.encoded)
            case _:
                side.elements.append(entry.settled(entry.at))
                slot = entry.at // SLOT_MS
                match delivery.state:
                    case State.DONE:
                        side.slots.add(side.keys.slot(DONE_SLOT, slot, bucket_id))
                    case State.EXPIRED:
                        side.slots.add(side.keys.slot(EXPIRED_SLOT, slot, bucket_id))
                    case _:
                        side.slots.add(side.home.slot(FAILED_SLOT, slot, bucket_id))

    def _hold(self, side: _Side, entry: Entry, delivery: dump.Delivery) -> None:
        """Add a delivery in flight, under a new grant."""
        self._grants += 1
        consumer = delivery.consumer or ""
        partition = self._partitions.get(delivery.message.partition_key or "")
        owned = self._ordered and side is self._own and partition is not None
        epoch = partition.epoch if owned and partition is not None else 0
        entry.claimed_at = delivery.claimed_at or 0
        entry.hold(delivery.deadline or 0)
        side.held.append(entry.encoded)
        head = LEASE.pack(entry.claim_id, self._grants, epoch, entry.at)
        side.leases.append(head + pack_utf8(consumer))

    def _delayed(
        self, side: _Side, entry: Entry, delivery: dump.Delivery
    ) -> Iterator[tuple[bytes, bytes]]:
        assert delivery.due_at is not None
        if side is self._dead:
            entry.rest_failed()
        suffix = entry.claim_id.to_bytes(8, "big")
        yield side.keys.delayed_at(delivery.due_at, entry.claim_id), seal(array([entry.encoded]))
        yield side.keys.place + suffix, seal(_U64.pack(delivery.due_at))

    def _live(
        self, side: _Side, entry: Entry, delivery: dump.Delivery
    ) -> Iterator[tuple[bytes, bytes]]:
        """The indexes of a delivery that is still to be settled."""
        message = delivery.message
        if delivery.position is not None:
            yield (
                side.keys.position + message.id.to_bytes(8, "big"),
                seal(_U64.pack(entry.claim_id)),
            )
        if side is self._dead or delivery.state in (State.DONE, State.EXPIRED):
            return
        if message.expires_at is not None:
            yield side.keys.expires_at(message.expires_at, entry.claim_id), b""
        if self._ordered:
            name = message.partition_key or ""
            self._unsettled[name] += 1
            key = side.keys.partition_sequence(name) + message.id.to_bytes(8, "big")
            yield key, seal(_U64.pack(entry.claim_id))

    def _story(self, side: _Side, delivery: dump.Delivery) -> Iterator[tuple[bytes, bytes]]:
        """The attempts, the trail and the result."""
        suffix = delivery.message.id.to_bytes(8, "big")
        attempts: bytes | None = None
        for step in delivery.history:
            if step.transition is Transition.CLAIM:
                attempts = append_attempt(attempts, step.at, pack_utf8(step.consumer or ""))
            self._replays += step.transition is Transition.REPLAY
        if attempts is not None:
            yield side.home.attempts + suffix, attempts
        trail = Trail(delivery.released, 0, _marks(delivery))
        if trail != Trail():
            yield side.home.trail + suffix, trail.encode()
        if delivery.result is not None:
            yield side.keys.result + suffix, seal(delivery.result)

    # -- the end -----------------------------------------------------------------------

    def flush(self) -> Iterator[tuple[bytes, bytes]]:
        """The records of the buckets that were being filled."""
        yield from self._flush(self._own)
        yield from self._flush(self._dead)

    def _flush(self, side: _Side) -> Iterator[tuple[bytes, bytes]]:
        if side.bucket is None:
            return
        (state, bucket_id), keys = side.bucket, side.keys
        suffix = bucket_id.to_bytes(8, "big")
        match state:
            case State.DONE:
                yield keys.done + suffix, array(side.elements)
            case State.EXPIRED:
                yield keys.expired + suffix, seal(array(side.elements))
            case _:
                waiting = side.elements if side is self._own else []
                if side.elements and not waiting:
                    yield side.home.failed + suffix, array(side.elements)
                if waiting or side.held:
                    yield keys.active + suffix, array(waiting, side.held)
                if side.held:
                    yield keys.leases + suffix, seal(array(side.leases))
        for slot in sorted(side.slots):
            yield slot, b""
        side.bucket, side.elements, side.held, side.leases = None, [], [], []
        side.slots = set()

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """The records that count all deliveries."""
        info = self._info
        for name, unsettled in sorted(self._unsettled.items()):
            known = self._partitions.get(name)
            owner = None if known is None else known.owner
            epoch = 0 if known is None else known.epoch
            tail = b"\x00" if owner is None else b"\x01" + pack_utf8(owner)
            head = epoch.to_bytes(8, "little") + unsettled.to_bytes(8, "little")
            yield self._own.keys.partition + name.encode(), seal(head + tail)
        grants = max(self._grants, info.counters.grants + info.dead_counters.grants)
        yield self._state(self._own, (info.epoch, grants, self._replays), info.cursor, paused=False)
        yield self._state(self._dead, (0, 0, 0), None, paused=info.dead_paused)

    def _state(
        self, side: _Side, last: tuple[int, int, int], cursor: int | None, *, paused: bool
    ) -> tuple[bytes, bytes]:
        counts, total = side.counts, side.counters
        states = (State.DELAYED, State.AVAILABLE, State.IN_FLIGHT, State.DONE, State.EXPIRED)
        numbers = (
            *(counts[state] for state in states),
            *(total.grants, total.acks, total.nacks, total.failures),
            *last,
        )
        return side.keys.state, encode_state(cursor, numbers, paused=paused)


def _marks(delivery: dump.Delivery) -> tuple[Mark, ...]:
    """The history without what other records say: claims, and the ack of a done delivery."""
    steps = list(delivery.history)
    if delivery.state is State.DONE and steps and steps[-1].transition is Transition.ACK:
        del steps[-1]
    marks = [
        Mark(step.at, step.transition, step.state, step.error, step.dead)
        for step in steps
        if step.transition is not Transition.CLAIM
    ]
    if delivery.error is None:
        return tuple(marks)
    for index in range(len(marks) - 1, -1, -1):
        if marks[index].error is not None:
            # Histories show the beginning of a long error.
            marks[index] = replace(marks[index], error=delivery.error)
            return tuple(marks)
    lost = Mark(delivery.at or 0, Transition.NACK, State.AVAILABLE, delivery.error, delivery.dead)
    return (lost, *marks)
