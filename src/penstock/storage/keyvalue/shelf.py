"""The shelf: a queue's waiting and in-flight deliveries, in buckets, in claim order.

Only some buckets are in memory. An invariant keeps claims exact at any depth: every bucket with
available entries that is not loaded is inside the *spill* of its lane, a range of bucket ids.
Loading raises the low end of the spill; evicting extends the range over the evicted bucket. A
loaded bucket is authoritative; its record on disk may be older. Buckets with in-flight entries or
uncommitted changes stay loaded.

A dead-letter shelf stores its waiting entries as the parent's failed records (D1).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from sortedcontainers import SortedDict

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.bucket import Bucket, PriorityLane, read_leases
from penstock.storage.keyvalue.bucket_ranges import InBucket, stored_in
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import (
    EXPONENT_SHIFT,
    LANE_SPAN,
    LANES,
    NUMBER_MASK,
    QueueKeys,
    bucket_of,
    check_claim_id,
    claim_ranges,
    message_id_of,
)
from penstock.storage.keyvalue.receipts import Receipts
from penstock.storage.keyvalue.records import (
    array,
    read_available,
    read_available_encoded,
    read_in_flight,
    read_settled,
)
from penstock.storage.keyvalue.stage import Stage

__all__ = ["Shelf"]

#: Buckets read from disk together when the claim head reaches the spill, until they have this many
#: bytes.
_READ_AHEAD: Final = 4
_READ_AHEAD_BYTES: Final = 1024 * 1024
#: Above every claim id.
_NO_END: Final = 2**64 - 1
#: The most entries, counted by capacity, that a queue may have loaded; claims need far fewer.
_MAX_LOADED_ENTRIES: Final = 100_000
_MIN_LOADED: Final = 16


class Shelf:
    """All buckets of one queue."""

    def __init__(self, stage: Stage, keys: QueueKeys, *, dead_letters: bool) -> None:
        self._stage = stage
        self._keys = keys
        self._dead_letters = dead_letters
        self._waiting_prefix = keys.failed if dead_letters else keys.active
        self._buckets: SortedDict[int, Bucket] = SortedDict()
        self._lanes = [PriorityLane() for _ in range(LANES)]
        self._last: Bucket | None = None

    # -- moving entries ----------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Insert an entry among the available ones."""
        claim_id = entry.claim_id
        bucket = self._last
        bucket_id = bucket_of(claim_id)
        if bucket is None or bucket.bucket_id != bucket_id:
            self._last = bucket = self.bucket(bucket_id)
        available = bucket.available
        if not available:
            insort(self._lane(bucket_id).heads, bucket_id)
        elif bucket.in_order and claim_id < next(reversed(available)):
            bucket.in_order = False
        available[claim_id] = entry
        self.touch(bucket)

    def add_many(self, entries: Iterable[Entry]) -> None:
        """``add`` for many entries: a third of the time per entry if they are consecutive."""
        end = 0
        last = -1
        bucket: Bucket | None = None
        available: dict[int, Entry] = {}
        for entry in entries:
            claim_id = entry.claim_id
            if bucket is None or not bucket.bucket_id <= claim_id < end:
                bucket_id = bucket_of(claim_id)
                bucket = self.bucket(bucket_id)
                end = bucket_id + 10 ** (bucket_id >> EXPONENT_SHIFT)
                self.touch(bucket)
                available = bucket.available
                if available:
                    last = next(reversed(available))
                else:
                    insort(self._lane(bucket_id).heads, bucket_id)
                    last = -1
            if claim_id < last:
                bucket.in_order = False
            last = claim_id
            available[claim_id] = entry
        self._last = bucket

    def find(self, claim_id: int) -> Entry | None:
        """The available entry with that claim id, or None."""
        return self.bucket(bucket_of(claim_id)).available.get(claim_id)

    def remove(self, claim_id: int) -> Entry:
        """Take an available entry off the shelf."""
        bucket = self.bucket(bucket_of(claim_id))
        entry = bucket.available.pop(claim_id)
        self.took_from(bucket)
        return entry

    def get(self, claim_id: int) -> Entry:
        """The available entry with that claim id, which must exist."""
        return self.bucket(bucket_of(claim_id)).available[claim_id]

    def load(self, claim_id: int) -> None:
        """Read the bucket that ``add`` will need, so that ``add`` cannot fail."""
        self.bucket(bucket_of(claim_id))

    def took_from(self, bucket: Bucket) -> None:
        """Update the shelf after available entries were taken out of ``bucket``."""
        self.touch(bucket)
        if not bucket.available:
            heads = self._lane(bucket.bucket_id).heads
            index = bisect_left(heads, bucket.bucket_id)
            if index < len(heads) and heads[index] == bucket.bucket_id:
                del heads[index]
            bucket.in_order = True

    def hold(self, entry: Entry) -> None:
        """Add an entry to the in-flight ones of its bucket."""
        bucket = self.bucket(bucket_of(entry.claim_id))
        bucket.in_flight[entry.claim_id] = entry
        self.touch(bucket)

    def hold_many(self, entries: list[Entry]) -> None:
        """``hold`` for entries of one claim."""
        for bucket, run in self._runs(entries):
            held = bucket.in_flight
            for entry in run:
                held[entry.claim_id] = entry
            self.touch(bucket)

    def let_go_many(self, entries: list[Entry]) -> None:
        """``let_go`` for entries of one settle."""
        for bucket, run in self._runs(entries):
            held = bucket.in_flight
            for entry in run:
                del held[entry.claim_id]
            self.touch(bucket)

    def _runs(self, entries: list[Entry]) -> Iterator[tuple[Bucket, list[Entry]]]:
        """Group consecutive entries of the same bucket."""
        begin = 0
        while begin < len(entries):
            bucket_id = bucket_of(entries[begin].claim_id)
            end_id = bucket_id + 10 ** (bucket_id >> EXPONENT_SHIFT)
            end = begin + 1
            while end < len(entries) and bucket_id <= entries[end].claim_id < end_id:
                end += 1
            yield self.bucket(bucket_id), entries[begin:end]
            begin = end

    def let_go(self, entry: Entry) -> None:
        """Remove an entry from the in-flight ones of its bucket."""
        bucket_id = bucket_of(entry.claim_id)
        bucket = self._buckets[bucket_id]
        del bucket.in_flight[entry.claim_id]
        self.touch(bucket)

    def touch(self, bucket: Bucket) -> None:
        """Mark the bucket as changed, to be written by the next commit."""
        if bucket.number != self._stage.number:
            bucket.number = self._stage.number
            self._stage.mark(bucket)

    # -- in claim order ----------------------------------------------------------------

    def head(self) -> Bucket | None:
        """The bucket with the first available entry, or None."""
        for number, lane in enumerate(self._lanes):
            # Most queues use one lane.
            if lane.heads or lane.spill_low <= lane.spill_high:
                bucket = self.lane_head(number)
                if bucket is not None:
                    return bucket
        return None

    def lane_head(self, number: int) -> Bucket | None:
        """The bucket with the lane's first available entry, in order, or None."""
        lane = self._lanes[number]
        while lane.spill_low <= lane.spill_high:
            if lane.heads and lane.heads[0] <= lane.spill_low:
                break
            self._load_ahead(lane)
        if not lane.heads:
            return None
        bucket: Bucket = self._buckets[lane.heads[0]]
        bucket.sort()
        return bucket

    def in_order(self) -> Iterator[Bucket]:
        """The buckets with available entries, in claim order; loads them as they are reached.

        The caller may take entries out of the buckets meanwhile.
        """
        for number in range(LANES):
            passed = -1
            while (bucket := self._next_bucket(self._lanes[number], passed)) is not None:
                passed = bucket.bucket_id
                bucket.sort()
                yield bucket

    def _next_bucket(self, lane: PriorityLane, passed: int) -> Bucket | None:
        """The lane's first bucket with available entries after that id, or None."""
        while True:
            index = bisect_right(lane.heads, passed)
            is_last = index == len(lane.heads)
            if lane.spill_low > lane.spill_high or not (
                is_last or lane.heads[index] > lane.spill_low
            ):
                break
            self._load_ahead(lane)
        return None if is_last else self._buckets[lane.heads[index]]

    def walk(self, after: int, end: int = _NO_END) -> Iterator[Entry]:
        """Available entries with after < claim id < end, in order, without loading buckets."""
        low = bucket_of(after) if after >= 0 else 0
        ids = self._buckets.irange(low, end, (True, False))
        loaded = [item for item in ids if self._buckets[item].available]
        position = 0
        # Bounded: reading a bucket only to find that it is beyond the end may cost megabytes.
        for key, value in self._stage.scan(
            self._waiting_prefix + low.to_bytes(8, "big"),
            self._waiting_prefix + end.to_bytes(8, "big"),
        ):
            bucket_id = int.from_bytes(key[-8:], "big")
            while position < len(loaded) and loaded[position] <= bucket_id:
                yield from self._available_of(loaded[position], after, end)
                position += 1
            if bucket_id not in self._buckets:
                for entry in self._waiting_entries(value):
                    if after < entry.claim_id < end:
                        yield entry
        for bucket_id in loaded[position:]:
            yield from self._available_of(bucket_id, after, end)

    def walk_held(self, after: int, end: int) -> Iterator[Entry]:
        """In-flight entries with after < claim id < end, in order."""
        low = bucket_of(after) if after >= 0 else 0
        for bucket_id in list(self._buckets.irange(low, end, (True, False))):
            for claim_id, entry in sorted(self._buckets[bucket_id].in_flight.items()):
                if after < claim_id < end:
                    yield entry

    def _available_of(self, bucket_id: int, after: int, end: int) -> list[Entry]:
        bucket = self._buckets[bucket_id]
        bucket.sort()
        return [entry for entry in bucket.available.values() if after < entry.claim_id < end]

    def find_any(self, low: int, high: int, exponent: int) -> InBucket | None:
        """The bucket of a live message with low <= id < high, or None if there is none."""
        ranges = list(claim_ranges(low, high, (exponent,)))
        for first, end in ranges:
            for bucket_id in self._buckets.irange(bucket_of(first), end, (True, False)):
                found = InBucket(bucket_id, first, end)
                if self.holds(found):
                    return found
        for found in stored_in(self._stage, self._waiting_prefix, ranges):
            if found.bucket_id not in self._buckets and self.holds(found):
                return found
        return None

    def holds(self, asked: InBucket) -> bool:
        """Whether any of the claim ids is in the bucket, available or in flight."""
        bucket = self._buckets.get(asked.bucket_id)
        if bucket is not None:
            if asked.is_whole:
                return bool(bucket.available or bucket.in_flight)
            held = chain(bucket.available, bucket.in_flight)
            return any(asked.first <= claim_id < asked.end for claim_id in held)
        value = self._stage.get(self._waiting_prefix + asked.bucket_id.to_bytes(8, "big"))
        if value is None or asked.is_whole:
            return value is not None  # An empty bucket has no record.
        entries = self._waiting_entries(value)
        return any(asked.first <= entry.claim_id < asked.end for entry in entries)

    def held(self, claim_id: int) -> Entry | None:
        """The in-flight entry with that claim id, or None. Its bucket is always loaded."""
        bucket = self._buckets.get(bucket_of(claim_id))
        return None if bucket is None else bucket.in_flight.get(claim_id)

    # -- between memory and disk -------------------------------------------------------

    def bucket(self, bucket_id: int) -> Bucket:
        """The bucket, loaded from disk if it may be stored."""
        bucket: Bucket | None = self._buckets.get(bucket_id)
        if bucket is None:
            bucket = Bucket(self, bucket_id)
            # Commits evict buckets; readers load buckets without committing.
            most = max(_MIN_LOADED, _MAX_LOADED_ENTRIES // 10 ** (bucket_id >> EXPONENT_SHIFT))
            if len(self._buckets) >= most:
                self.evict(most // 2, self._stage.completed)
            if self._lane(bucket_id).is_spilled(bucket_id):
                value = self._stage.get(self._waiting_prefix + bucket_id.to_bytes(8, "big"))
                if value is not None:
                    self._fill(bucket, value)
            self._buckets[bucket_id] = bucket
        return bucket

    def start(self, exponent: int, last_offset: int) -> None:
        """After opening: every bucket up to ``last_offset`` may be on disk."""
        if last_offset < 0:
            return
        for number, lane in enumerate(self._lanes):
            base = exponent << EXPONENT_SHIFT | number * LANE_SPAN
            lane.spill_low = base
            lane.spill_high = bucket_of(base + last_offset)

    def load_leases(self, queue_number: int, receipts: Receipts) -> list[Entry]:
        """After opening: load every bucket with in-flight entries, and return the entries."""
        out: list[Entry] = []
        for key, value in self._stage.prefix(self._keys.leases):
            bucket_id = int.from_bytes(key[-8:], "big")
            bucket = self.bucket(bucket_id)
            active = self._stage.get(self._keys.active + key[-8:])
            if active is None:
                raise StoreCorrupt("A lease record has no bucket.")
            _, position = read_available(active)
            held, end = read_in_flight(active, position)
            if end != len(active):
                raise StoreCorrupt("An active bucket has trailing bytes.")
            for message_id, claim_id, claimed_at, deadline, attempts, metadata in held:
                check_claim_id(claim_id, message_id)
                entry = Entry.waiting(message_id, claim_id, attempts, metadata)
                entry.claimed_at = claimed_at
                entry.hold(deadline)
                bucket.in_flight[claim_id] = entry
            out += read_leases(bucket, value, queue_number, receipts)
        return out

    def evict(self, keep: int, completed: int) -> None:
        """Evict clean buckets, farthest from the claim head first, down to ``keep``."""
        if len(self._buckets) <= keep:
            return
        keep -= keep // 4  # Evict some more, so that not every commit has to.
        for bucket_id in list(reversed(self._buckets)):
            bucket = self._buckets[bucket_id]
            if bucket.in_flight or bucket.number > completed or bucket is self._last:
                continue
            del self._buckets[bucket_id]
            if bucket.available:
                lane = self._lane(bucket_id)
                del lane.heads[bisect_left(lane.heads, bucket_id)]
                lane.spill(bucket_id)
            if len(self._buckets) <= keep:
                return

    def discard(self) -> None:
        """The queue is being deleted: nothing of it may be written any more."""
        for bucket in self._buckets.values():
            self._stage.unmark(bucket)

    def write_bucket(self, stage: Stage, bucket: Bucket) -> int:
        """Put the records of a bucket; returns about how many bytes."""
        suffix = bucket.bucket_id.to_bytes(8, "big")
        writes = stage.writes
        bucket.sort()  # Records are always sorted.
        waiting = [entry.encoded for entry in bucket.available.values()]
        held = [entry.encoded for entry in bucket.in_flight.values()]
        if self._dead_letters:
            value = writes[self._keys.failed + suffix] = array(waiting) if waiting else None
            if held or bucket.leased:
                writes[self._keys.active + suffix] = array([], held) if held else None
        else:
            full = waiting or held
            value = writes[self._keys.active + suffix] = array(waiting, held) if full else None
        if bucket.in_flight:
            leases = [entry.lease for entry in bucket.in_flight.values()]
            writes[self._keys.leases + suffix] = seal(array(leases))
        elif bucket.leased:
            writes[self._keys.leases + suffix] = None
        bucket.leased = bool(bucket.in_flight)
        return 0 if value is None else len(value)

    def _load_ahead(self, lane: PriorityLane) -> None:
        prefix = self._waiting_prefix
        pairs = self._stage.scan(
            prefix + lane.spill_low.to_bytes(8, "big"),
            prefix + (lane.spill_high + 1).to_bytes(8, "big"),
        )
        loaded = size = 0
        for key, value in pairs:
            bucket_id = int.from_bytes(key[-8:], "big")
            if bucket_id not in self._buckets:
                # Filled before it is added, so that the next claim reports a damaged bucket again.
                bucket = Bucket(self, bucket_id)
                self._fill(bucket, value)
                self._buckets[bucket_id] = bucket
                loaded += 1
                size += len(value)
            lane.spill_low = bucket_id + 1
            if loaded == _READ_AHEAD or size > _READ_AHEAD_BYTES:
                return
        lane.spill_low, lane.spill_high = 1, 0

    def _fill(self, bucket: Bucket, value: bytes) -> None:
        entries = self._waiting_entries(value)
        first = bucket.bucket_id
        lane, end = first - message_id_of(first), first + 10 ** (first >> EXPONENT_SHIFT)
        for entry in entries:
            # The checks of the common case, inlined: half of the time of a claim head's bucket.
            if entry.claim_id - entry.message_id != lane and not self._is_moved(entry):
                check_claim_id(entry.claim_id, entry.message_id)
            if not first <= entry.claim_id < end:
                raise StoreCorrupt("A bucket holds an entry of another bucket.")
        bucket.available = {entry.claim_id: entry for entry in entries}
        if bucket.available:
            ids = list(bucket.available)
            bucket.in_order = ids == sorted(ids)
            insort(self._lane(bucket.bucket_id).heads, bucket.bucket_id)

    def _is_moved(self, entry: Entry) -> bool:
        """Whether a position record has the entry's claim id."""
        if message_id_of(entry.claim_id) == entry.message_id:
            return False
        value = self._stage.get(self._keys.position + entry.message_id.to_bytes(8, "big"))
        return value is not None and value == seal(entry.claim_id.to_bytes(8, "little"))

    def _waiting_entries(self, value: bytes) -> list[Entry]:
        if not self._dead_letters:
            # Not Entry.waiting, which packs again what is in the record: half of the time.
            return [Entry(*fields) for fields in read_available_encoded(value)]
        out = []
        for message_id, claim_id, at, attempts, metadata in read_settled(value):
            entry = Entry.waiting(message_id, claim_id, attempts, metadata)
            entry.at = at
            entry.rest_failed()
            out.append(entry)
        return out

    def _lane(self, bucket_id: int) -> PriorityLane:
        return self._lanes[(bucket_id & NUMBER_MASK) // LANE_SPAN]
