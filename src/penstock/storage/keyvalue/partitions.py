"""Partition order: who owns which partition of an ordered queue, and what it may hand out.

Laws: O1 (one owner a partition an epoch; an older epoch is fenced) and C4 (inside a
partition strictly publish order).

Every unsettled delivery of an ordered queue has a *sequence* record, keyed by partition and
message id, so that the first one of a partition is one seek away. In memory a partition
keeps a window of the lowest ids only; the rest stays on disk, however deep it is.

A partition exists while it has unsettled deliveries. Epochs come from one counter a queue
and never repeat, so a partition that comes back is not mistaken for its former self.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import islice
from typing import Final

from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.storage.keyvalue.encoding import Reader, pack_utf8, prefix_end, seal, unseal
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.stage import Stage

__all__ = ["Partition", "Partitions", "fair_share"]

#: Ids kept in memory a partition.
_WINDOW: Final = 128
_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")


def fair_share(partitions: int, consumers: int, rank: int) -> int:
    """How many of P partitions the consumer of that rank (by name, from 0) may hold."""
    share, rest = divmod(partitions, consumers)
    return max(1, share + (rank < rest))


class Partition:
    """One partition: its owner and the ids that come next."""

    __slots__ = (
        "epoch",
        "in_flight",
        "name",
        "owner",
        "partitions",
        "partial",
        "unsettled",
        "window",
    )

    def __init__(self, partitions: Partitions, name: str) -> None:
        self.partitions = partitions
        self.name = name
        self.owner: str | None = None
        self.epoch = 0
        self.unsettled = 0
        self.in_flight: set[int] = set()
        #: (message id, claim id) of the first unsettled deliveries, in order.
        self.window: list[tuple[int, int]] = []
        #: Whether there may be more on disk behind the window.
        self.partial = False

    def write_to(self, stage: Stage) -> None:
        key = self.partitions.queue.keys.partition + self.name.encode()
        if self.unsettled == 0:
            stage.writes[key] = None
            return
        owner = b"\x00" if self.owner is None else b"\x01" + pack_utf8(self.owner)
        stage.writes[key] = seal(_U64.pack(self.epoch) + _U64.pack(self.unsettled) + owner)


class Partitions:
    """Every partition and consumer of one ordered queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._stage = queue.stage
        self.by_name: dict[str, Partition] = {}
        #: Consumer to the deadline of its lease.
        self.consumers: dict[str, int] = {}

    def load(self) -> None:
        """After opening: owners and consumers, and what is in flight where."""
        keys = self.queue.keys
        for key, value in self._stage.prefix(keys.partition):
            partition = Partition(self, key[len(keys.partition) :].decode())
            reader = Reader(unseal(value, "partition"), "partition")
            partition.epoch, partition.unsettled = reader.u64(), reader.u64()
            partition.owner = reader.utf8() if reader.u8() else None
            partition.partial = True
            self.by_name[partition.name] = partition
        for key, value in self._stage.prefix(keys.consumer):
            name = key[len(keys.consumer) :].decode()
            (self.consumers[name],) = _I64.unpack(unseal(value, "consumer"))
        for entry in self.queue.claims.values():
            self._of(entry).in_flight.add(entry.claim_id)

    def discard(self) -> None:
        for partition in self.by_name.values():
            self._stage.unmark(partition)

    # -- what the queue tells ----------------------------------------------------------

    def added(self, entry: Entry) -> None:
        """A delivery has become unsettled."""
        name = entry.message.partition_key or ""
        partition = self.by_name.get(name)
        if partition is None:
            partition = self.by_name[name] = Partition(self, name)
        partition.unsettled += 1
        self.queue.ready()
        key = self.queue.keys.partition_sequence(name) + entry.message_id.to_bytes(8, "big")
        self._stage.put(key, seal(_U64.pack(entry.claim_id)))
        place = (entry.message_id, entry.claim_id)
        if not partition.partial or (partition.window and place < partition.window[-1]):
            insort(partition.window, place)
            if len(partition.window) > 2 * _WINDOW:
                del partition.window[_WINDOW:]
                partition.partial = True
        self._stage.mark(partition)

    def removed(self, entry: Entry) -> None:
        """A delivery is settled, or gone."""
        partition = self._of(entry)
        partition.unsettled -= 1
        key = self.queue.keys.partition_sequence(partition.name)
        self._stage.delete(key + entry.message_id.to_bytes(8, "big"))
        place = (entry.message_id, entry.claim_id)
        index = bisect_left(partition.window, place)
        if index < len(partition.window) and partition.window[index] == place:
            del partition.window[index]
        if partition.unsettled == 0:
            del self.by_name[partition.name]
        self._stage.mark(partition)
        self.queue.ready()

    def held(self, entry: Entry) -> None:
        self._of(entry).in_flight.add(entry.claim_id)

    def let_go(self, entry: Entry) -> None:
        self._of(entry).in_flight.discard(entry.claim_id)
        self.queue.ready()

    # -- what may be handed out --------------------------------------------------------

    def next_of(self, partition: Partition) -> int | None:
        """The claim id that the partition may hand out next, or None."""
        concurrency = self.queue.policy.partition_concurrency
        if len(partition.in_flight) >= concurrency:
            return None
        index = 0
        while self._reach(partition, index):
            claim_id = partition.window[index][1]
            if claim_id not in partition.in_flight and self.queue.due_of(claim_id) is None:
                return claim_id
            if concurrency == 1:
                return None
            index += 1
        return None

    def first_unsettled(self, partition: Partition) -> int:
        """The lowest unsettled message id of the partition."""
        self._reach(partition, 0)
        return partition.window[0][0]

    def owned_by(self, consumer: str) -> list[Partition]:
        return [item for item in self.by_name.values() if item.owner == consumer]

    # -- who owns what -----------------------------------------------------------------

    def drop_dead(self, now: int, lapse: Callable[[Entry], object]) -> int:
        """Forget consumers without a heartbeat; ``lapse`` takes their deliveries back.

        Returns how many deliveries that were.
        """
        dead = [name for name, deadline in self.consumers.items() if deadline <= now]
        return sum(self.leave(name, lapse) for name in dead)

    def join(
        self,
        consumer: str,
        now: int,
        lapse: Callable[[Entry], object],
        release: Callable[[Entry], object],
    ) -> int:
        """Heartbeat: renew, let go of the excess, take what is free.

        Returns how many deliveries dead consumers lost.
        """
        lapsed = self.drop_dead(now, lapse)
        deadline = now + CONSUMER_LEASE_MS
        if self.consumers.get(consumer) != deadline:
            self.consumers[consumer] = deadline
            self._stage.put(self.queue.keys.consumer + consumer.encode(), seal(_I64.pack(deadline)))
        rank = sorted(self.consumers).index(consumer)
        share = fair_share(len(self.by_name), len(self.consumers), rank)
        owned = self.owned_by(consumer)
        if len(owned) > share:
            owned.sort(key=lambda item: item.name, reverse=True)
            owned.sort(key=lambda item: bool(item.in_flight))
            for partition in owned[: len(owned) - share]:
                self._free(partition, release)
        elif len(owned) < share:
            free = sorted(name for name, item in self.by_name.items() if item.owner is None)
            for name in free[: share - len(owned)]:
                self._give(self.by_name[name], consumer)
        return lapsed

    def leave(self, consumer: str, take_back: Callable[[Entry], object]) -> int:
        """Release everything the consumer owns; returns how many deliveries came back."""
        if self.consumers.pop(consumer, None) is not None:
            self._stage.delete(self.queue.keys.consumer + consumer.encode())
            self.queue.ready()  # The share of the others is larger now.
        return sum(self._free(partition, take_back) for partition in self.owned_by(consumer))

    def _give(self, partition: Partition, consumer: str) -> None:
        self.queue.epoch += 1
        self.queue.touch()
        partition.owner = consumer
        partition.epoch = self.queue.epoch
        self._stage.mark(partition)
        # It is the first free one no longer: others would take the next, which may have more.
        self.queue.ready()

    def _free(self, partition: Partition, take_back: Callable[[Entry], object]) -> int:
        partition.owner = None
        self._stage.mark(partition)
        self.queue.ready()
        held = self._in_flight_of(partition)
        for entry in held:
            take_back(entry)
        return len(held)

    def _in_flight_of(self, partition: Partition) -> list[Entry]:
        if not partition.in_flight:
            return []
        held = [e for e in self.queue.claims.values() if e.claim_id in partition.in_flight]
        return sorted(held, key=lambda entry: entry.message_id)

    def _of(self, entry: Entry) -> Partition:
        return self.by_name[entry.message.partition_key or ""]

    def _reach(self, partition: Partition, index: int) -> bool:
        """Make ``window[index]`` there, reading more of the sequence if need be."""
        if index < len(partition.window):
            return True
        if not partition.partial:
            return False
        prefix = self.queue.keys.partition_sequence(partition.name)
        start = prefix
        if partition.window:
            start = prefix + (partition.window[-1][0] + 1).to_bytes(8, "big")
        pairs = list(islice(self._stage.scan(start, prefix_end(prefix)), _WINDOW))
        for key, value in pairs:
            (claim_id,) = _U64.unpack(unseal(value, "partition sequence"))
            place = (int.from_bytes(key[-8:], "big"), claim_id)
            partition.window.append(place)
        if len(pairs) == _WINDOW:
            return True
        partition.partial = False
        return index < len(partition.window)
