"""Buckets and lanes: the parts of a shelf.

A bucket is the decoded form of one bucket record, with the leases that the record format does not
include. A lane orders the buckets of one priority, loaded or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.encoding import Reader, pack_utf8, unseal
from penstock.storage.keyvalue.entry import LEASE, Entry
from penstock.storage.keyvalue.receipts import Receipts
from penstock.storage.keyvalue.stage import Stage

if TYPE_CHECKING:
    from penstock.storage.keyvalue.shelf import Shelf

__all__ = ["Bucket", "PriorityLane", "read_leases"]


class Bucket:
    """The entries of one bucket record."""

    __slots__ = ("available", "bucket_id", "in_flight", "in_order", "leased", "number", "shelf")

    def __init__(self, shelf: Shelf, bucket_id: int) -> None:
        self.shelf = shelf
        self.bucket_id = bucket_id
        self.available: dict[int, Entry] = {}
        self.in_flight: dict[int, Entry] = {}
        #: Whether ``available`` is in claim order; returning entries may break it.
        self.in_order = True
        #: Whether a lease record may be on disk.
        self.leased = False
        #: The number of the commit with the newest change.
        self.number = 0

    def write_to(self, stage: Stage) -> int:
        return self.shelf.write_bucket(stage, self)

    def sort(self) -> None:
        if not self.in_order:
            self.available = dict(sorted(self.available.items()))
            self.in_order = True


class PriorityLane:
    """The buckets of one priority."""

    __slots__ = ("heads", "spill_high", "spill_low")

    def __init__(self) -> None:
        #: Loaded buckets with available entries, in order.
        self.heads: list[int] = []
        #: The spill is empty when low > high.
        self.spill_low = 1
        self.spill_high = 0

    def spill(self, bucket_id: int) -> None:
        """Extend the spill over a bucket that leaves memory."""
        if self.spill_low > self.spill_high:
            self.spill_low = self.spill_high = bucket_id
        else:
            self.spill_low = min(self.spill_low, bucket_id)
            self.spill_high = max(self.spill_high, bucket_id)

    def is_spilled(self, bucket_id: int) -> bool:
        return self.spill_low <= bucket_id <= self.spill_high


def _lease(entry: Entry) -> bytes:
    head = LEASE.pack(entry.claim_id, entry.grant, entry.epoch, entry.at)
    return head + pack_utf8(entry.consumer)


def read_leases(bucket: Bucket, value: bytes, queue_number: int, receipts: Receipts) -> list[Entry]:
    """Add the fields of the lease record to the in-flight entries of a bucket."""
    reader = Reader(unseal(value, "lease"), "lease")
    out: list[Entry] = []
    for _ in range(reader.u16()):
        entry = bucket.in_flight.get(reader.u64())
        if entry is None:
            raise StoreCorrupt("A lease belongs to a delivery that is not in flight.")
        entry.grant, entry.epoch, entry.at = reader.u64(), reader.u64(), reader.i64()
        entry.consumer = reader.utf8()
        entry.lease = _lease(entry)
        entry.receipt = receipts.of(queue_number, entry.claim_id, entry.grant, entry.attempts)
        out.append(entry)
    if len(out) != len(bucket.in_flight):
        raise StoreCorrupt("A delivery is in flight without a lease.")
    bucket.leased = True
    return out
