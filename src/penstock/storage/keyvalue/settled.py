"""Done and expired deliveries: buckets that only retention, replay and purge remove from.

Every bucket that gets an entry also gets a *slot*: a key that begins with the minute of the entry's
time. Retention reads the slots that are old enough, so its cost depends on what it removes and not
on all settled deliveries. A changed retention time only moves the limit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import Final, TypeAlias

from penstock.storage.keyvalue.bucket_ranges import InBucket, stored_in
from penstock.storage.keyvalue.encoding import seal, unseal
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import (
    EXPONENT_SHIFT,
    NUMBER_MASK,
    QueueKeys,
    bucket_of,
    check_claim_id,
    claim_id_of,
    claim_ranges,
)
from penstock.storage.keyvalue.records import SETTLED, array, read_settled
from penstock.storage.keyvalue.stage import Stage

__all__ = ["SLOT_MS", "Settled", "SettledShelf"]

#: The resolution of slots; deliveries inside a slot are still compared exactly.
SLOT_MS: Final = 60_000
#: Settled buckets cached per queue; acks cluster, so a few suffice.
_KEEP: Final = 8
#: Message id, claim id, when it was settled, attempts, metadata.
_Row: TypeAlias = tuple[int, int, int, int, bytes]


class Settled:
    """One settled delivery."""

    __slots__ = ("at", "attempts", "claim_id", "message_id", "metadata")

    def __init__(
        self, message_id: int, claim_id: int, at: int, attempts: int, metadata: bytes
    ) -> None:
        self.message_id = message_id
        self.claim_id = claim_id
        self.at = at
        self.attempts = attempts
        self.metadata = metadata


class _Bucket:
    __slots__ = ("bucket_id", "entries", "number", "shelf")

    def __init__(self, shelf: SettledShelf, bucket_id: int) -> None:
        self.shelf = shelf
        self.bucket_id = bucket_id
        self.entries: dict[int, bytes] = {}
        self.number = 0

    def write_to(self, stage: Stage) -> int:
        return self.shelf.write_bucket(stage, self)


class SettledShelf:
    """All done, or all expired, deliveries of one queue."""

    def __init__(
        self, stage: Stage, keys: QueueKeys, prefix: bytes, slot_kind: int, *, sealed: bool
    ) -> None:
        self._stage = stage
        self._keys = keys
        self.prefix = prefix
        self._kind = slot_kind
        #: Whether the records are sealed; done buckets have the RFC's format, which has no seal.
        self._sealed = sealed
        self._buckets: dict[int, _Bucket] = {}
        #: The bucket on disk that was read last, as rows by claim id: repeated acks of a bucket
        #: come together.
        self._last_read: tuple[int, dict[int, _Row]] = (-1, {})

    def load(self, claim_id: int) -> None:
        """Read the bucket that ``add`` will need, so that ``add`` cannot fail."""
        self._bucket(bucket_of(claim_id))

    def load_many(self, entries: list[Entry]) -> None:
        """``load`` for the entries of one settle."""
        first = end = 0
        for entry in entries:
            if not first <= entry.claim_id < end:
                first = bucket_of(entry.claim_id)
                end = first + 10 ** (first >> EXPONENT_SHIFT)
                self._bucket(first)

    def add(self, claim_id: int, at: int, encoded: bytes) -> None:
        """Add an entry, encoded by ``Entry.settled``."""
        bucket = self._bucket(bucket_of(claim_id))
        bucket.entries[claim_id] = encoded
        self._touch(bucket)
        self._stage.writes[self._keys.slot(self._kind, at // SLOT_MS, bucket.bucket_id)] = b""

    def add_many(self, entries: list[Entry], at: int) -> None:
        """``add`` for the entries of one settle; their buckets must be loaded."""
        bucket: _Bucket | None = None
        end, pack = 0, SETTLED.pack
        for entry in entries:
            claim_id = entry.claim_id
            if bucket is None or not bucket.bucket_id <= claim_id < end:
                bucket_id = bucket_of(claim_id)
                bucket = self._bucket(bucket_id)
                end = bucket_id + 10 ** (bucket_id >> EXPONENT_SHIFT)
                self._touch(bucket)
                self._stage.writes[self._keys.slot(self._kind, at // SLOT_MS, bucket_id)] = b""
            metadata = entry.metadata
            # Entry.settled inlined: a third of the time.
            bucket.entries[claim_id] = (
                pack(entry.message_id, claim_id, at, entry.attempts, len(metadata)) + metadata
            )

    def find(self, priority: int, message_id: int) -> Settled | None:
        """The entry of a message; tries every bucket exponent."""
        for exponent in range(5):
            claim_id = claim_id_of(exponent, priority, message_id)
            found = self.get(claim_id)
            if found is not None:
                return found
        return None

    def get(self, claim_id: int) -> Settled | None:
        bucket_id = bucket_of(claim_id)
        bucket = self._buckets.get(bucket_id)
        if bucket is not None:
            encoded = bucket.entries.get(claim_id)
            return None if encoded is None else _decode(encoded)
        if self._last_read[0] != bucket_id:
            value = self._stage.get(self.prefix + bucket_id.to_bytes(8, "big"))
            rows = () if value is None else self._rows(value)
            self._last_read = bucket_id, {row[1]: row for row in rows}
        row = self._last_read[1].get(claim_id)
        return None if row is None else Settled(*row)

    def remove(self, claim_id: int) -> None:
        bucket = self._bucket(bucket_of(claim_id))
        del bucket.entries[claim_id]
        self._touch(bucket)

    def of_bucket(self, bucket_id: int) -> list[Settled]:
        """Everything in one bucket."""
        return [_decode(encoded) for encoded in self._bucket(bucket_id).entries.values()]

    def walk(self, after: int, end: int = NUMBER_MASK) -> Iterator[Settled]:
        """Entries with after < number < end, in claim order over all exponents."""
        return merge(
            *(self._walk_exponent(exponent, after, end) for exponent in range(5)),
            key=lambda item: item.claim_id & NUMBER_MASK,
        )

    def find_any(self, low: int, high: int) -> InBucket | None:
        """The bucket of a message with low <= id < high, or None."""
        ranges = list(claim_ranges(low, high, range(5)))
        for bucket_id in self._buckets:
            index = bisect_right(ranges, bucket_id, key=itemgetter(1))
            if index < len(ranges):
                found = InBucket(bucket_id, *ranges[index])
                if self.holds(found):
                    return found
        for found in stored_in(self._stage, self.prefix, ranges):
            if found.bucket_id not in self._buckets and self.holds(found):
                return found
        return None

    def holds(self, asked: InBucket) -> bool:
        """Whether any of the claim ids is in the bucket."""
        bucket = self._buckets.get(asked.bucket_id)
        if bucket is not None:
            if asked.is_whole:
                return bool(bucket.entries)
            return any(asked.first <= claim_id < asked.end for claim_id in bucket.entries)
        value = self._stage.get(self.prefix + asked.bucket_id.to_bytes(8, "big"))
        if value is None or asked.is_whole:
            return value is not None  # An empty bucket has no record.
        return any(asked.first <= row[1] < asked.end for row in self._rows(value))

    def write_bucket(self, stage: Stage, bucket: _Bucket) -> int:
        key = self.prefix + bucket.bucket_id.to_bytes(8, "big")
        if not bucket.entries:
            stage.writes[key] = None
            return 0
        value = array(list(bucket.entries.values()))
        stage.writes[key] = seal(value) if self._sealed else value
        return len(value)

    def _rows(self, value: bytes) -> list[_Row]:
        rows = read_settled(unseal(value, "expired bucket") if self._sealed else value)
        for row in rows:
            check_claim_id(row[1], row[0])
        return rows

    def evict(self, completed: int) -> None:
        """Evict clean buckets, oldest first."""
        if len(self._buckets) <= _KEEP:
            return
        for bucket_id in list(self._buckets)[: len(self._buckets) - _KEEP]:
            if self._buckets[bucket_id].number <= completed:
                del self._buckets[bucket_id]

    def discard(self) -> None:
        for bucket in self._buckets.values():
            self._stage.unmark(bucket)

    def _walk_exponent(self, exponent: int, after: int, end: int) -> Iterator[Settled]:
        base = exponent << EXPONENT_SHIFT
        low, high = bucket_of(base + max(after, 0)), base + end
        loaded = sorted(item for item in self._buckets if low <= item < high)
        position = 0
        # Bounded: reading a bucket only to find that it is beyond the end may cost megabytes.
        pairs = self._stage.scan(
            self.prefix + low.to_bytes(8, "big"), self.prefix + high.to_bytes(8, "big")
        )
        for key, value in pairs:
            bucket_id = int.from_bytes(key[-8:], "big")
            while position < len(loaded) and loaded[position] <= bucket_id:
                yield from _between(self.of_bucket(loaded[position]), after, end)
                position += 1
            if bucket_id not in self._buckets:
                rows = (Settled(*row) for row in self._rows(value))
                yield from _between(rows, after, end)
        for bucket_id in loaded[position:]:
            yield from _between(self.of_bucket(bucket_id), after, end)

    def _bucket(self, bucket_id: int) -> _Bucket:
        bucket = self._buckets.get(bucket_id)
        if bucket is None:
            bucket = _Bucket(self, bucket_id)
            self._last_read = (-1, {})  # The bucket may change from here on.
            value = self._stage.get(self.prefix + bucket_id.to_bytes(8, "big"))
            if value is not None:
                for row in self._rows(value):
                    message_id, claim_id, at, attempts, metadata = row
                    head = SETTLED.pack(message_id, claim_id, at, attempts, len(metadata))
                    bucket.entries[claim_id] = head + metadata
            self._buckets[bucket_id] = bucket
        return bucket

    def _touch(self, bucket: _Bucket) -> None:
        if bucket.number != self._stage.number:
            bucket.number = self._stage.number
            self._stage.mark(bucket)


def _between(items: Iterable[Settled], after: int, end: int) -> list[Settled]:
    kept = [item for item in items if after < item.claim_id & NUMBER_MASK < end]
    kept.sort(key=lambda item: item.claim_id)
    return kept


def _decode(encoded: bytes) -> Settled:
    message_id, claim_id, at, attempts, _ = SETTLED.unpack_from(encoded)
    return Settled(message_id, claim_id, at, attempts, encoded[SETTLED.size :])
