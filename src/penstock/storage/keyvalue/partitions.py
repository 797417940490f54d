"""Partition order: which consumer owns which partition, and what a partition may hand out.

Laws: O1 (one owner per partition and epoch; an older epoch is fenced) and C4 (strict publish order
inside a partition).

Every unsettled delivery of an ordered queue has a *sequence* record, keyed by partition and message
id, so the first one of a partition is one seek away. Some partitions keep a window of their lowest
ids in memory; the rest stays on disk.

A partition exists while it has unsettled deliveries. Epochs come from one counter per queue and
never repeat, so receipts of an earlier partition with the same name stay stale.

An operation on all partitions moves ``most_moves`` of them and returns whether there are more; its
caller continues in the next turn of the event loop.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeAlias

from sortedcontainers import SortedDict, SortedSet

from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.model.states import Transition
from penstock.storage.keyvalue.encoding import Reader, prefix_end, seal, unseal
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import EXPONENT_SHIFT, NUMBER_MASK
from penstock.storage.keyvalue.partition import Owner, Partition
from penstock.storage.keyvalue.queue import Queue

__all__ = ["MOST_MOVES", "Partition", "Partitions", "fair_share"]

#: Ids kept in memory: per partition, and for all partitions of a queue.
_WINDOW: Final = 128
_MAX_WINDOWS: Final = 16_384
#: Partitions that are moved or re-evaluated per turn of the event loop: about 40 µs each, under
#: three milliseconds in total.
MOST_MOVES: Final = 32
_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")

#: Ends the claim of an entry by a lapse or a release.
_TakeBack: TypeAlias = Callable[[Entry, Transition], object]


def fair_share(partitions: int, consumers: int, rank: int) -> int:
    """How many of P partitions the consumer of that rank (by name, from 0) may own."""
    share, rest = divmod(partitions, consumers)
    return max(1, share + (rank < rest))


class Partitions:
    """Every partition and consumer of one ordered queue."""

    def __init__(self, queue: Queue, most_moves: int = MOST_MOVES) -> None:
        self.queue = queue
        self._most = most_moves
        self._stage = queue.stage
        self.by_name: SortedDict[str, Partition] = SortedDict()
        #: Consumer to the deadline of its lease.
        self.consumers: SortedDict[str, int] = SortedDict()
        self._owners: dict[str, Owner] = {}
        #: Names of partitions without an owner.
        self._free: SortedSet[str] = SortedSet()
        #: Former consumers whose partitions are not all free yet.
        self._departed: list[Owner] = []
        #: No consumer's lease ends before this.
        self._first_deadline = 0
        #: Partitions with a loaded window, least recently used first, and their total ids.
        self._windows: OrderedDict[Partition, None] = OrderedDict()
        self._windowed = 0
        #: Partitions from which the current claim has taken part of a batch.
        self._taken_from: list[Partition] = []

    def load(self) -> None:
        """Load owners, consumers and in-flight deliveries after opening."""
        keys = self.queue.keys
        for key, value in self._stage.prefix(keys.partition):
            partition = Partition(self, key[len(keys.partition) :].decode())
            reader = Reader(unseal(value, "partition"), "partition")
            partition.epoch, partition.unsettled = reader.u64(), reader.u64()
            partition.partial = True
            self.by_name[partition.name] = partition
            if reader.u8():
                self._owner(reader.utf8()).add(partition)
            else:
                self._free.add(partition.name)
        for key, value in self._stage.prefix(keys.consumer):
            name = key[len(keys.consumer) :].decode()
            (self.consumers[name],) = _I64.unpack(unseal(value, "consumer"))
        for name in [name for name in self._owners if name not in self.consumers]:
            self._departed.append(self._owners.pop(name))
        for entry in self.queue.claims.values():
            self.held(entry)

    # -- notifications of the queue ----------------------------------------------------

    def added(self, entry: Entry) -> None:
        """Record a delivery that became unsettled."""
        name = entry.message.partition_key or ""
        partition = self.by_name.get(name)
        if partition is None:
            partition = self.by_name[name] = Partition(self, name)
            self._free.add(name)
        partition.unsettled += 1
        self.queue.ready()
        key = self.queue.keys.partition_sequence(name) + entry.message_id.to_bytes(8, "big")
        self._stage.put(key, seal(_U64.pack(entry.claim_id)))
        self._extend_window(partition, (entry.message_id, entry.claim_id))
        self._stage.mark(partition)
        self._note(partition)

    def removed(self, entry: Entry) -> None:
        """Record that a delivery was settled or removed."""
        partition = self._of(entry)
        partition.unsettled -= 1
        key = self.queue.keys.partition_sequence(partition.name)
        self._stage.delete(key + entry.message_id.to_bytes(8, "big"))
        place = (entry.message_id, entry.claim_id)
        window = partition.window
        if window:
            index = bisect_left(window, place)
            if index < len(window) and window[index] == place:
                del window[index]
                self._windowed -= 1
        if partition.unsettled == 0:
            self._forget(partition)
        else:
            self._note(partition)
        self._stage.mark(partition)
        self.queue.ready()

    def held(self, entry: Entry) -> None:
        """Record that a delivery is in flight."""
        partition = self._of(entry)
        if partition.in_flight is None:
            partition.in_flight = {}
            if partition.holder is not None:
                partition.holder.busy.add(partition.name)
        partition.in_flight[entry.claim_id] = entry
        self._note(partition)

    def take(self, entry: Entry, partition: Partition) -> None:
        """Record that the current claim takes a delivery; ``claim_ended`` must follow."""
        entry.epoch = partition.epoch
        if self.queue.policy.partition_batch > 1:
            if not partition.taken:
                self._taken_from.append(partition)
            partition.taken += 1
        self.held(entry)

    def claim_ended(self) -> None:
        """Record that the current claim takes no more deliveries."""
        for partition in self._taken_from:
            partition.taken = 0
            self._note(partition)
        self._taken_from.clear()

    def let_go(self, entry: Entry) -> None:
        """Record that a delivery is no longer in flight."""
        partition = self._of(entry)
        if partition.in_flight is not None:
            partition.in_flight.pop(entry.claim_id, None)
            if not partition.in_flight:
                partition.in_flight = None
                if partition.holder is not None:
                    partition.holder.busy.discard(partition.name)
        self._note(partition)
        self.queue.ready()

    def moved(self, entry: Entry) -> None:
        """Record that a delivery became available or delayed; ``added`` may follow."""
        partition = self.by_name.get(entry.message.partition_key or "")
        if partition is not None:
            self._note(partition)

    def policy_changed(self) -> None:
        """Note all partitions after ``partition_concurrency`` or ``partition_batch`` changed.

        The next claims of their owners re-evaluate them.
        """
        for owner in self._owners.values():
            owner.note_all(self.by_name)

    def _note(self, partition: Partition) -> None:
        if partition.holder is not None:
            partition.holder.note(partition, self._next_number)

    def _forget(self, partition: Partition) -> None:
        """Drop a partition that has nothing unsettled."""
        if partition.holder is None:
            self._free.remove(partition.name)
        else:
            partition.holder.remove(partition)
        self._drop_window(partition)
        del self.by_name[partition.name]

    # -- the next deliveries --- --------------------------------------------------------

    def look(self, consumer: str) -> bool:
        """Re-evaluate some of the consumer's noted partitions. Returns whether some are left."""
        return self._owners[consumer].look(self._next_number, self._most)

    def first_ready(self, consumer: str) -> tuple[int, Partition] | None:
        """The next claim id to hand out to the consumer, with its partition."""
        owner = self._owners[consumer]
        while owner.look(self._next_number, self._most):
            pass  # Only partitions that the claim itself has changed.
        found = owner.first_ready()
        if found is None:
            return None
        return self.queue.policy.bucket_size << EXPONENT_SHIFT | found[0], found[1]

    def all_ready(self, consumer: str) -> list[tuple[int, Partition]]:
        """The next claim id of each of the consumer's partitions that has one, in any order."""
        owner = self._owners[consumer]
        while owner.look(self._next_number, self._most):
            pass  # Only partitions that the claim itself has changed.
        base = self.queue.policy.bucket_size << EXPONENT_SHIFT
        return [(base | number, partition) for number, partition in owner.all_ready()]

    def next_of(self, partition: Partition) -> int | None:
        """The next claim id that the partition may hand out, or None."""
        policy = self.queue.policy
        concurrency = most = policy.partition_concurrency
        held = partition.in_flight or ()
        index = 0
        if concurrency == 1 and len(held) == partition.taken:
            # All in flight are in the current claim, and precede the next one.
            most, index = policy.partition_batch, partition.taken
        if len(held) >= most:
            return None
        while window := self._reach(partition, index):
            claim_id = window[index][1]
            if claim_id not in held and self.queue.due_of(claim_id) is None:
                return claim_id
            if concurrency == 1:
                return None
            index += 1
        return None

    def _next_number(self, partition: Partition) -> int | None:
        claim_id = self.next_of(partition)
        return None if claim_id is None else claim_id & NUMBER_MASK

    def first_unsettled(self, partition: Partition) -> int:
        """The lowest unsettled message id of the partition."""
        window = self._reach(partition, 0)
        assert window
        return window[0][0]

    def owned_by(self, consumer: str, after: str | None, most: int) -> list[Partition]:
        """Up to ``most`` of the consumer's partitions by name, after that name."""
        owner = self._owners.get(consumer)
        if owner is None:
            return []
        return [self.by_name[name] for name in owner.names_after(after, most)]

    # -- ownership ---------------------------------------------------------------------

    def drop_dead(self, now: int) -> None:
        """Remove consumers without a heartbeat; ``free_departed`` frees their partitions."""
        if self.consumers and self._first_deadline <= now:
            for name in [name for name, end in self.consumers.items() if end <= now]:
                self._depart(name, left=False)
            self._first_deadline = min(self.consumers.values(), default=0)

    def free_departed(self, take_back: _TakeBack) -> tuple[int, bool]:
        """Free the partitions of former consumers.

        Deliveries of dead consumers lapse; those of consumers that left are released. Returns how
        many deliveries lapsed, and whether more partitions are to be freed.
        """
        lapsed = 0
        most = self._most
        while self._departed and most:
            owner = self._departed[0]
            by = Transition.RELEASE if owner.left else Transition.LAPSE
            for name in owner.first_to_release(most):
                most -= 1
                back, is_free = self._free_from(owner, self.by_name[name], take_back, by)
                lapsed += 0 if owner.left else back
                if not is_free:
                    return lapsed, True
            if not len(owner):
                del self._departed[0]
        return lapsed, any(map(len, self._departed))

    def join(self, consumer: str, now: int, take_back: _TakeBack) -> tuple[int, bool]:
        """Heartbeat: renew the lease, release excess partitions, take free ones.

        Returns how many deliveries of dead consumers lapsed, and whether the caller must call again
        because the consumer does not have its share yet.
        """
        self.drop_dead(now)
        lapsed, more = self.free_departed(take_back)
        deadline = now + CONSUMER_LEASE_MS
        if self.consumers.get(consumer) != deadline:
            self.consumers[consumer] = deadline
            self._first_deadline = min(self._first_deadline or deadline, deadline)
            self._stage.put(self.queue.keys.consumer + consumer.encode(), seal(_I64.pack(deadline)))
        owner, most = self._owner(consumer), self._most
        if more:
            # Wait until all are free: the share depends on it, and free ones are taken by name.
            return lapsed, True
        rank = self.consumers.index(consumer)
        missing = fair_share(len(self.by_name), len(self.consumers), rank) - len(owner)
        for name in owner.first_to_release(min(-missing, most)) if missing < 0 else ():
            partition = self.by_name[name]
            if not self._free_from(owner, partition, take_back, Transition.RELEASE)[1]:
                return lapsed, True
        for _ in range(min(missing, most, len(self._free))):
            self._give(self.by_name[self._free[0]], owner)
        return lapsed, -missing > most or (missing > most and len(self._free) > 0)

    def leave(self, consumer: str) -> None:
        """Remove the consumer; ``free_departed`` frees its partitions."""
        if consumer in self.consumers:
            self._depart(consumer, left=True)

    def _depart(self, consumer: str, *, left: bool) -> None:
        del self.consumers[consumer]
        self._stage.delete(self.queue.keys.consumer + consumer.encode())
        owner = self._owners.pop(consumer, None)
        if owner is not None:
            owner.left = left
            self._departed.append(owner)
        self.queue.ready()  # The share of the other consumers has grown.

    def _owner(self, name: str) -> Owner:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = Owner(name)
        return owner

    def _give(self, partition: Partition, owner: Owner) -> None:
        self.queue.epoch += 1
        self.queue.touch()
        self._free.remove(partition.name)
        owner.add(partition)
        partition.epoch = self.queue.epoch
        self._stage.mark(partition)
        # Other consumers would now take the next free one, which may have more deliveries.
        self.queue.ready()

    def _free_from(
        self, owner: Owner, partition: Partition, take_back: _TakeBack, transition: Transition
    ) -> tuple[int, bool]:
        """Take a partition from its owner. Returns how many deliveries came back.

        Also returns whether those were all. If the commit is full of dead-letter copies before,
        the owner keeps the partition with the others.
        """
        owner.remove(partition)
        self._free.add(partition.name)
        self._stage.mark(partition)
        self.queue.ready()
        held = sorted((partition.in_flight or {}).values(), key=lambda entry: entry.message_id)
        for count, entry in enumerate(held):
            if self.queue.must_wait:
                self._free.remove(partition.name)
                owner.add(partition)
                return count, False
            take_back(entry, transition)
        return len(held), True

    def _of(self, entry: Entry) -> Partition:
        partition: Partition = self.by_name[entry.message.partition_key or ""]
        return partition

    # -- windows -----------------------------------------------------------------------

    def _reach(self, partition: Partition, index: int) -> list[tuple[int, int]] | None:
        """The window including ``window[index]``, reading more if needed; None at the end."""
        window = partition.window or []
        if index < len(window):
            return window
        if not partition.partial:
            return None
        prefix = self.queue.keys.partition_sequence(partition.name)
        start = prefix
        if window:
            start = prefix + (window[-1][0] + 1).to_bytes(8, "big")
        pairs = list(islice(self._stage.scan(start, prefix_end(prefix)), _WINDOW))
        more = []
        for key, value in pairs:
            (claim_id,) = _U64.unpack(unseal(value, "partition sequence"))
            more.append((int.from_bytes(key[-8:], "big"), claim_id))
        partition.partial = len(pairs) == _WINDOW
        window += more
        self._keep_window(partition, window, len(more))
        return window if index < len(window) else None

    def _extend_window(self, partition: Partition, place: tuple[int, int]) -> None:
        window = partition.window or []
        if partition.partial and not (window and place < window[-1]):
            return
        insort(window, place)
        added = 1
        if len(window) > 2 * _WINDOW:
            added -= len(window) - _WINDOW
            del window[_WINDOW:]
            partition.partial = True
        self._keep_window(partition, window, added)

    def _keep_window(self, partition: Partition, window: list[tuple[int, int]], added: int) -> None:
        """Account for the window; drop least recently used windows above the limit."""
        partition.window = window
        self._windowed += added
        self._windows[partition] = None
        self._windows.move_to_end(partition)
        while self._windowed > _MAX_WINDOWS and len(self._windows) > 1:
            self._drop_window(next(iter(self._windows)))

    def _drop_window(self, partition: Partition) -> None:
        if partition.window is not None:
            self._windowed -= len(partition.window)
            partition.window = None
            partition.partial = True
            self._windows.pop(partition, None)
