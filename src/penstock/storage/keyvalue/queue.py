"""One queue in memory: its policy, its counts, and its deliveries.

A ``Queue`` moves deliveries between the shelf, the delayed index and the settled shelves, and
updates the counts with each, so that the counts equal a full scan (Q2). ``moves`` decides which
move a verb makes.

A queue Q has a dead-letter queue, itself a ``Queue``, whose waiting deliveries are Q's failed ones
(D1). It shares Q's attempts and trails, and has no dead-letter queue itself.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.errors import StoreCorrupt, UnknownQueue
from penstock.filters import Filter
from penstock.model.decisions import dead_letter_policy
from penstock.model.delivery import Receipt
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.message import Message, Offset
from penstock.model.queue import QueueInfo, QueuePolicy
from penstock.storage.copy_limit import appends
from penstock.storage.keyvalue.deadlines import Deadlines
from penstock.storage.keyvalue.encoding import seal, unseal
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import QueueKeys, bucket_of, claim_id_of
from penstock.storage.keyvalue.metadata import expires_at_of
from penstock.storage.keyvalue.notifications import Notifier
from penstock.storage.keyvalue.positions import Positions
from penstock.storage.keyvalue.queue_state import decode_state, encode_state
from penstock.storage.keyvalue.receipts import Receipts
from penstock.storage.keyvalue.records import (
    KEYED_BY_NUMBER,
    array,
    encode_spec,
    read_available,
    read_settled,
)
from penstock.storage.keyvalue.settled import SLOT_MS, SettledShelf
from penstock.storage.keyvalue.shelf import Shelf
from penstock.storage.keyvalue.stage import Stage
from penstock.storage.keyvalue.time_index import TimeIndex
from penstock.storage.keyvalue.trail import Trail

if TYPE_CHECKING:
    from penstock.storage.keyvalue.partitions import Partitions

__all__ = ["DONE_SLOT", "EXPIRED_SLOT", "FAILED_SLOT", "Queue"]

DONE_SLOT: Final = 1
EXPIRED_SLOT: Final = 2
FAILED_SLOT: Final = 3

_U64 = struct.Struct("<Q")


class Queue:
    """The state of one queue or dead-letter queue."""

    def __init__(
        self,
        stage: Stage,
        tenant: str,
        name: str,
        number: int,
        policy: QueuePolicy,
        filter_: Filter,
        *,
        notifier: Notifier,
        receipts: Receipts,
        keyed_by_number: bool = False,
        home: Queue | None = None,
    ) -> None:
        self.stage = stage
        self.notifier = notifier
        self.receipts = receipts
        self._told = 0
        self.tenant = tenant
        self.name = name
        #: Part of receipts, so that a queue rejects others'. The dead-letter queue has the next.
        self.number = number
        self.policy = policy
        self.filter = filter_
        self.filter_version = 1
        self.created_at = 0
        #: The next offset to route; None when caught up.
        self.cursor: int | None = None
        #: The parent of a dead-letter queue; itself for an ordinary queue.
        self.home = home or self
        #: Whether the number is part of every key, so that no earlier queue of the name shares one.
        self.keyed_by_number = keyed_by_number
        self.keys = QueueKeys(tenant, name, self.home.number if keyed_by_number else None)
        #: A verb must check this after every await before it continues with the queue.
        self.deleted = False
        self.is_dead_letter = home is not None
        self.shelf = Shelf(stage, self.keys, dead_letters=self.is_dead_letter)
        self.done = SettledShelf(stage, self.keys, self.keys.done, DONE_SLOT, sealed=False)
        self.expired = SettledShelf(stage, self.keys, self.keys.expired, EXPIRED_SLOT, sealed=True)
        self.claims: dict[Receipt, Entry] = {}
        self.deadlines = Deadlines()
        self.next_due: int | None = None
        self.next_expiry: int | None = None
        self.due_index = TimeIndex(stage, self.keys.delayed)
        self.expiry_index = TimeIndex(stage, self.keys.expiry)
        #: Retention slot key to the earliest settle time in its bucket, where that is known.
        self.slot_times: dict[bytes, int] = {}
        self.partitions: Partitions | None = None
        #: None unless deliveries that are pending again go behind those that wait.
        self.positions: Positions | None = None
        self._count_from_zero()
        self.epoch = 0
        #: The number of the newest grant, shared with the dead-letter queue.
        self.last_grant = 0
        #: Replayed deliveries; while there are none, a first grant has no earlier attempts.
        self.replays = 0
        self.paused_apart = False
        self._marked = 0
        self.dead = self._dead_letter_queue() if home is None else None

    def _dead_letter_queue(self) -> Queue:
        return Queue(
            self.stage,
            self.tenant,
            self.name + DLQ_SUFFIX,
            self.number + 1,
            self.policy,
            self.filter,
            notifier=self.notifier,
            receipts=self.receipts,
            keyed_by_number=self.keyed_by_number,
            home=self,
        )

    def _count_from_zero(self) -> None:
        self.delayed_count = self.available_count = self.in_flight_count = 0
        self.done_count = self.expired_count = 0
        self.grants = self.acks = self.nacks = self.failures = 0

    # -- describing --------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        return self.paused_apart if self.is_dead_letter else self.policy.paused

    @property
    def depth(self) -> int:
        return self.delayed_count + self.available_count + self.in_flight_count

    @property
    def info(self) -> QueueInfo:
        policy = self.policy
        if self.is_dead_letter:
            policy = dead_letter_policy(policy, paused=self.paused_apart)
        return QueueInfo(
            tenant=self.tenant,
            name=self.name,
            policy=policy,
            filter_version=self.home.filter_version,
            created_at=self.home.created_at,
            cursor=None if self.cursor is None else Offset(self.cursor),
        )

    def check_exists(self) -> None:
        """Raise ``UnknownQueue`` if the queue was deleted, even if another has its name now."""
        if self.deleted:
            raise UnknownQueue(f"Queue {self.name!r} was deleted meanwhile.", field="queue")

    @property
    def must_wait(self) -> bool:
        """Whether its deliveries may end only after the next commit, which is full of copies."""
        return self.stage.copies.is_full and appends(self.policy)

    def change_policy(self, policy: QueuePolicy, filter_: Filter) -> None:
        self.policy = policy
        self.filter = filter_
        if self.dead is not None:
            self.dead.change_policy(policy, filter_)

    def pause(self, paused: bool) -> None:
        """Pause or resume. A dead-letter queue is paused separately from its parent."""
        if self.is_dead_letter:
            self.paused_apart = paused
            self.touch()
        else:
            self.change_policy(replace(self.policy, paused=paused), self.filter)
            self.write_spec()

    # -- records -----------------------------------------------------------------------

    def write_spec(self) -> None:
        facts = {"queue_number": self.number, "filter_version": self.filter_version}
        facts["created_at"] = self.created_at
        if self.keyed_by_number:
            facts[KEYED_BY_NUMBER] = 1
        self.stage.put(self.keys.spec, encode_spec(self.policy, facts))
        self.notifier.counted(self.tenant, self.name)

    def touch(self) -> None:
        """Mark the counts or the cursor as changed; the next commit writes the state record."""
        if self._marked != self.stage.number:
            self._marked = self.stage.number
            self.stage.mark(self)
            self.notifier.counted(self.tenant, self.home.name)

    def write_to(self, stage: Stage) -> int:
        value = stage.writes[self.keys.state] = encode_state(
            self.cursor,
            (
                self.delayed_count,
                self.available_count,
                self.in_flight_count,
                self.done_count,
                self.expired_count,
                self.grants,
                self.acks,
                self.nacks,
                self.failures,
                self.epoch,
                self.last_grant,
                self.replays,
            ),
            paused=self.paused_apart,
        )
        return len(value)

    def load(self, last_offset: int) -> None:
        """Load the counts, the in-flight deliveries and the next timers after opening."""
        value = self.stage.get(self.keys.state)
        if value is not None:
            self.cursor, numbers, self.paused_apart = decode_state(value)
            (
                self.delayed_count,
                self.available_count,
                self.in_flight_count,
                self.done_count,
                self.expired_count,
                self.grants,
                self.acks,
                self.nacks,
                self.failures,
                self.epoch,
                self.last_grant,
                self.replays,
            ) = numbers
        self.shelf.start(self.policy.bucket_size, last_offset)
        for entry in self.shelf.load_leases(self.number, self.receipts):
            self.claims[entry.receipt] = entry
            self.deadlines.add(entry)
        self.refresh_timers()
        if self.dead is not None:
            self.dead.load(last_offset)

    def discard(self) -> None:
        """Remove the records of a deleted queue and write none any more."""
        self.deleted = True
        self.shelf.discard()
        self.done.discard()
        self.expired.discard()
        self.stage.unmark(self)
        for start, end in self.keys.ranges():
            self.stage.remove_range(start, end)
        if self.dead is not None:
            self.dead.discard()
            self.stage.delete(self.keys.spec)
            self.notifier.counted(self.tenant, self.name)

    def evict(self, keep: int, completed: int) -> None:
        self.shelf.evict(keep, completed)
        self.done.evict(completed)
        self.expired.evict(completed)

    # -- notifications -----------------------------------------------------------------

    def ready(self) -> None:
        """Notify, once per turn, that a claim may return more or that ``next_due`` is earlier."""
        notifier = self.notifier
        if self._told != notifier.turn:
            self._told = notifier.turn
            notifier.ready(self.tenant, self.name)

    def lapsed(self, count: int) -> None:
        """Notify that deliveries with lapsed leases were taken back."""
        if count:
            self.notifier.lapsed(self.tenant, self.name, count)

    # -- moving entries ----------------------------------------------------------------

    def make_available(self, entry: Entry) -> None:
        """Add an entry to the shelf."""
        if self.is_dead_letter:
            entry.rest_failed()
            slot = self.home.keys.slot(FAILED_SLOT, entry.at // SLOT_MS, bucket_of(entry.claim_id))
            self.stage.writes[slot] = b""
            self.home.slot_times.pop(slot, None)  # The entry may be older than the slot's others.
        self.shelf.add(entry)
        self.available_count += 1
        self.touch()
        self.ready()
        if self.partitions is not None:
            self.partitions.moved(entry)

    def make_many_available(self, entries: list[Entry]) -> None:
        """Add new entries to the shelf; not for dead letters, which are added one by one."""
        self.shelf.add_many(entries)
        self.available_count += len(entries)
        self.touch()
        self.ready()

    def take_available(self, claim_id: int) -> Entry:
        entry = self.shelf.remove(claim_id)
        self.available_count -= 1
        self.touch()
        return entry

    def make_delayed(self, entry: Entry, due_at: int) -> None:
        """Add an entry to the delayed index, where claims do not see it, until it is due."""
        if self.is_dead_letter:
            entry.rest_failed()
        suffix = entry.claim_id.to_bytes(8, "big")
        key = self.keys.delayed_at(due_at, entry.claim_id)
        self.due_index.put(key, seal(array([entry.encoded])))
        self.stage.writes[self.keys.place + suffix] = seal(_U64.pack(due_at))
        if self.next_due is None or due_at < self.next_due:
            self.next_due = due_at
            self.ready()
        self.delayed_count += 1
        self.touch()
        if self.partitions is not None:
            self.partitions.moved(entry)

    def replace_waiting(self, message: Message, metadata: bytes) -> None:
        """Replace the metadata of an unclaimed delivery, keeping its position."""
        claim_id = self.claim_id(message.priority, message.id)
        delayed = self.find_delayed(claim_id)
        if delayed is not None:
            due_at, entry = delayed
            self.unwatch_expiry(entry)
            entry.replace(metadata, message)
            value = seal(array([entry.encoded]))
            self.stage.put(self.keys.delayed_at(due_at, claim_id), value)
        else:
            entry = self.shelf.remove(claim_id)
            self.unwatch_expiry(entry)
            entry.replace(metadata, message)
            self.shelf.add(entry)
        self.watch_expiry(entry)
        self.ready()  # An expired one that was not swept yet may be claimable again.

    def claim_id(self, priority: int, message_id: int) -> int:
        """The claim id of a message's delivery, if the queue has one."""
        moved = None if self.positions is None else self.positions.find(message_id)
        return moved or claim_id_of(self.policy.bucket_size, priority, message_id)

    def due_of(self, claim_id: int) -> int | None:
        """The due time of a delayed delivery; None if it is not delayed."""
        if not self.delayed_count:
            return None
        value = self.stage.get(self.keys.place + claim_id.to_bytes(8, "big"))
        return None if value is None else int(_U64.unpack(unseal(value, "place"))[0])

    def find_delayed(self, claim_id: int) -> tuple[int, Entry] | None:
        due_at = self.due_of(claim_id)
        if due_at is None:
            return None
        value = self.stage.get(self.keys.delayed_at(due_at, claim_id))
        if value is None:
            raise StoreCorrupt(f"A delayed delivery of queue {self.name!r} is missing.")
        return due_at, self.delayed_entry(value)

    def delayed_entry(self, value: bytes) -> Entry:
        """The entry of a delayed record."""
        value = unseal(value, "delayed")
        if not self.is_dead_letter:
            ((message_id, claim_id, attempts, metadata),), _ = read_available(value)
            return Entry.waiting(message_id, claim_id, attempts, metadata)
        ((message_id, claim_id, at, attempts, metadata),) = read_settled(value)
        entry = Entry.waiting(message_id, claim_id, attempts, metadata)
        entry.at = at
        return entry

    def take_delayed(self, due_at: int, claim_id: int) -> None:
        self.stage.delete(self.keys.delayed_at(due_at, claim_id))
        self.stage.delete(self.keys.place + claim_id.to_bytes(8, "big"))
        self.delayed_count -= 1
        self.touch()

    def make_many_in_flight(self, entries: list[Entry], deadline: int) -> None:
        """Record the entries of one claim as in flight."""
        self.shelf.hold_many(entries)
        self._watch_lease(deadline)
        claims, group = self.claims, self.deadlines.group(deadline)
        for entry in entries:
            claims[entry.receipt] = entry
            group[entry.claim_id] = entry
        self.in_flight_count += len(entries)

    def take_many_in_flight(self, entries: list[Entry]) -> None:
        """Remove the entries of one settle from flight; not for ordered queues."""
        self.shelf.let_go_many(entries)
        claims, discard = self.claims, self.deadlines.discard
        for entry in entries:
            del claims[entry.receipt]
            discard(entry)
        self.in_flight_count -= len(entries)
        self.touch()

    def extend(self, entry: Entry, deadline: int) -> None:
        """Move the deadline of an in-flight entry."""
        self._watch_lease(deadline)
        self.deadlines.discard(entry)
        entry.hold(deadline)
        self.deadlines.add(entry)
        self.shelf.hold(entry)

    def take_in_flight(self, entry: Entry) -> None:
        del self.claims[entry.receipt]
        self.deadlines.discard(entry)
        self.shelf.let_go(entry)
        self.in_flight_count -= 1
        self.touch()
        if self.partitions is not None:
            self.partitions.let_go(entry)

    def remove_done(self, claim_id: int) -> None:
        self.done.remove(claim_id)
        self.done_count -= 1
        self.touch()

    def remove_expired(self, claim_id: int) -> None:
        self.expired.remove(claim_id)
        self.expired_count -= 1
        self.touch()

    # -- timers ------------------------------------------------------------------------

    def _watch_lease(self, deadline: int) -> None:
        """Notify waiters that sleep until a later time than this new deadline."""
        first, due = self.deadlines.next, self.next_due
        if (first is None or deadline < first) and (due is None or deadline < due):
            self.ready()

    def watch_expiry(self, entry: Entry) -> None:
        """Index a live delivery that can expire."""
        expires_at = expires_at_of(entry.metadata)
        if expires_at is None or self.is_dead_letter:
            return
        self.expiry_index.put(self.keys.expires_at(expires_at, entry.claim_id), b"")
        if self.next_expiry is None or expires_at < self.next_expiry:
            self.next_expiry = expires_at
            if self.partitions is not None:
                self.ready()  # It may block later deliveries of its partition until then.

    def unwatch_expiry(self, entry: Entry) -> None:
        """Remove a delivery that is no longer live from the expiry index."""
        expires_at = expires_at_of(entry.metadata)
        if expires_at is not None and not self.is_dead_letter:
            self.stage.delete(self.keys.expires_at(expires_at, entry.claim_id))

    def refresh_timers(self) -> None:
        """Update the times of the next due and the next expiring delivery."""
        self.next_due = self.due_index.first()
        self.next_expiry = self.expiry_index.first()

    # -- the trail ---------------------------------------------------------------------

    def trail(self, message_id: int) -> Trail:
        return Trail.decode(self.stage.get(self.keys.trail + message_id.to_bytes(8, "big")))

    def write_trail(self, message_id: int, trail: Trail) -> None:
        self.stage.put(self.keys.trail + message_id.to_bytes(8, "big"), trail.encode())

    def write_result(self, message_id: int, result: bytes) -> None:
        self.stage.put(self.keys.result + message_id.to_bytes(8, "big"), seal(result))

    def result(self, message_id: int) -> bytes | None:
        value = self.stage.get(self.keys.result + message_id.to_bytes(8, "big"))
        return None if value is None else unseal(value, "result")

    def forget(self, message_id: int) -> None:
        """Remove the other records of a delivery that leaves the queue permanently."""
        suffix = message_id.to_bytes(8, "big")
        self.stage.delete(self.keys.attempts + suffix)
        self.stage.delete(self.keys.trail + suffix)
        self.home.forget_results(message_id)

    def forget_results(self, message_id: int) -> None:
        """Remove the results of acks in the queue and in its dead-letter queue."""
        for queue in (self, self.dead):
            if queue is not None:
                self.stage.delete(queue.keys.result + message_id.to_bytes(8, "big"))
