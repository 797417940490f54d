"""The in-memory state of one partition of an ordered queue, and of one owner.

An ``Owner`` keeps its partitions by name, for balancing, and by the next delivery of each, for
claims. A partition whose next delivery may have changed is noted and re-evaluated when the owner
claims, or a few at a time when many are noted. So the cost of a claim depends on what it returns
and what has changed, not on the number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedSet

from penstock.storage.keyvalue.encoding import pack_utf8, seal
from penstock.storage.keyvalue.entry import Entry

if TYPE_CHECKING:
    from penstock.storage.keyvalue.partitions import Partitions
    from penstock.storage.keyvalue.stage import Stage

__all__ = ["Owner", "Partition"]

#: Above this, noting one partition re-evaluates two, so that no claim has to catch up on many.
_MANY_CHANGED: Final = 64
#: Stale numbers that the heap may hold in excess of the live ones before it is rebuilt.
_OUTDATED: Final = 64


class Partition:
    """One partition with unsettled deliveries: its owner and its next delivery."""

    __slots__ = (
        "epoch",
        "head",
        "holder",
        "in_flight",
        "name",
        "partial",
        "partitions",
        "taken",
        "unsettled",
        "window",
    )

    def __init__(self, partitions: Partitions, name: str) -> None:
        self.partitions = partitions
        self.name = name
        self.holder: Owner | None = None
        self.epoch = 0
        self.unsettled = 0
        #: By claim id; None if there are none, which is the usual case.
        self.in_flight: dict[int, Entry] | None = None
        #: How many of them the current claim has taken, if it may take several.
        self.taken = 0
        #: (message id, claim id) of the first unsettled deliveries, in order; None if not loaded.
        self.window: list[tuple[int, int]] | None = None
        #: Whether more may be stored beyond the window.
        self.partial = False
        #: The partition's number in the owner's ``_ready``; None if it has nothing to hand out.
        self.head: int | None = None

    @property
    def owner(self) -> str | None:
        return None if self.holder is None else self.holder.name

    @property
    def in_flight_count(self) -> int:
        return 0 if self.in_flight is None else len(self.in_flight)

    def write_to(self, stage: Stage) -> int:
        queue = self.partitions.queue
        if queue.deleted:
            return 0
        key = queue.keys.partition + self.name.encode()
        if self.unsettled == 0:
            stage.writes[key] = None
            return 0
        owner = self.owner
        tail = b"\x00" if owner is None else b"\x01" + pack_utf8(owner)
        head = self.epoch.to_bytes(8, "little") + self.unsettled.to_bytes(8, "little")
        value = stage.writes[key] = seal(head + tail)
        return len(value)


class Owner:
    """The partitions of one consumer."""

    __slots__ = ("_changed", "_heap", "_ready", "busy", "left", "name", "names")

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether the consumer left by itself: its grants then do not count as attempts.
        self.left = False
        #: The names of all its partitions, and of those with deliveries in flight.
        self.names: SortedSet[str] = SortedSet()
        self.busy: set[str] = set()
        #: Partitions with something to hand out, by the claim number of their next delivery.
        self._ready: dict[int, Partition] = {}
        #: These numbers as a heap, some of them stale. Every delivery enters and leaves it; a
        #: sorted dict would take ten times as long.
        self._heap: list[int] = []
        #: Partitions whose key in ``_ready`` may be out of date.
        self._changed: dict[Partition, None] = {}

    def __len__(self) -> int:
        return len(self.names)

    def names_after(self, name: str | None, most: int) -> list[str]:
        """Up to ``most`` names after ``name``, in order; None starts at the first."""
        return list(islice(self.names.irange(name, None, (False, True)), most))

    def first_to_release(self, most: int) -> list[str]:
        """Up to ``most`` names to release: idle partitions first, each group from the last name.

        The cost depends on the busy partitions, which the consumer has claimed one by one.
        """
        busy = self.busy
        found = list(islice((name for name in reversed(self.names) if name not in busy), most))
        if len(found) < most:
            found += sorted(busy, reverse=True)[: most - len(found)]
        return found

    def add(self, partition: Partition) -> None:
        partition.holder = self
        self.names.add(partition.name)
        if partition.in_flight:
            self.busy.add(partition.name)
        self._changed[partition] = None

    def remove(self, partition: Partition) -> None:
        partition.holder = None
        self.names.remove(partition.name)
        self.busy.discard(partition.name)
        self._changed.pop(partition, None)
        if partition.head is not None:
            del self._ready[partition.head]
            partition.head = None

    # -- the next delivery -------------------------------------------------------------

    def note(self, partition: Partition, next_of: Callable[[Partition], int | None]) -> None:
        """Note that the partition's next delivery may have changed, or will in this move."""
        if partition not in self._changed:
            if len(self._changed) >= _MANY_CHANGED:
                self.look(next_of, 2)
            self._changed[partition] = None

    def note_all(self, by_name: Mapping[str, Partition]) -> None:
        """Note that the next delivery of every partition may have changed."""
        self._changed = dict.fromkeys(map(by_name.__getitem__, self.names))

    def look(self, next_of: Callable[[Partition], int | None], most: int) -> bool:
        """Re-evaluate up to ``most`` noted partitions. Returns whether some are left.

        ``next_of`` returns a partition's next claim number. A partition that cannot be read stays
        noted, so that every claim reports the error (X1).
        """
        while self._changed and most:
            most -= 1
            partition, _ = self._changed.popitem()
            try:
                number = next_of(partition)
            except BaseException:
                self._changed[partition] = None
                raise
            if number != partition.head:
                if partition.head is not None:
                    del self._ready[partition.head]
                partition.head = number
                if number is not None:
                    self._ready[number] = partition
                    heappush(self._heap, number)
        if len(self._heap) > 2 * len(self._ready) + _OUTDATED:
            self._heap = list(self._ready)
            heapify(self._heap)
        return bool(self._changed)

    def all_ready(self) -> list[tuple[int, Partition]]:
        """All ready claim numbers with their partitions. No partition may be noted."""
        return list(self._ready.items())

    def first_ready(self) -> tuple[int, Partition] | None:
        """The lowest ready claim number with its partition. No partition may be noted."""
        heap, ready = self._heap, self._ready
        while heap:
            partition = ready.get(heap[0])
            if partition is not None:
                return heap[0], partition
            heappop(heap)
        return None
