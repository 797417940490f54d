"""Retention of deliveries: removes done, expired and failed ones after their retention time.

A slot lists the buckets with deliveries of one minute (see ``settled``). Many sweeps see a slot
that is not over yet, so the earliest settle time in its bucket is cached and the bucket is not read
until that is past its retention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from penstock.model.decisions import retained_after
from penstock.model.states import State
from penstock.storage.keyvalue.moves import drop_available, drop_done, drop_expired
from penstock.storage.keyvalue.queue import DONE_SLOT, EXPIRED_SLOT, FAILED_SLOT, Queue
from penstock.storage.keyvalue.settled import SLOT_MS

__all__ = ["Removal", "removals"]

#: The costs of skipping a slot and of reading a bucket, in removed deliveries.
_PASS: Final = 0.1
_READ: Final = 4.0
#: No delivery is as old as that.
_NEVER: Final = -1

_STATES: Final = {
    DONE_SLOT: State.DONE,
    EXPIRED_SLOT: State.EXPIRED,
    FAILED_SLOT: State.FAILED,
}


class Removal:
    """Removes one kind of a queue's deliveries, a few at a time."""

    __slots__ = ("_cursor", "_kind", "_now", "_until", "queue")

    def __init__(self, queue: Queue, kind: int, now: int) -> None:
        self.queue = queue
        self._kind = kind
        self._now = now
        self._until = _NEVER
        self._cursor = queue.keys.retention + bytes((kind,))

    def run(self, most: int) -> tuple[float, int, bool]:
        """Remove up to ``most`` deliveries.

        Returns the cost in deliveries, how many were removed, and whether there are more.
        """
        cost, removed, more = 0.0, 0, False
        # Read in every call: the policy may have changed since the last.
        until = retained_after(self.queue.policy, _STATES[self._kind], self._now)
        self._until = _NEVER if until is None else until
        for slot in self._slots():
            if self.queue.slot_times.get(slot.key, 0) > self._until:
                cost += _PASS
            else:
                cost += _READ
                items = self._bucket(slot)
                old = [item for item in items if item.at <= self._until]
                count = min(len(old), most - removed)
                for item in old[:count]:
                    self._remove(item)
                removed += count
                if count < len(old):
                    more = True
                    break
                self._finish(slot, items)
            self._cursor = slot.key + b"\x00"
            if removed + cost >= most:
                more = True
                break
        return removed + cost, removed, more

    def _slots(self) -> Iterator[_Slot]:
        """Slots that began before the limit, from the cursor on."""
        first = self.queue.keys.retention + bytes((self._kind,))
        end = first + (self._until // SLOT_MS + 1).to_bytes(8, "big")
        if self._until >= 0 and self._cursor < end:
            for key, _ in self.queue.stage.scan(self._cursor, end):
                minute = int.from_bytes(key[-16:-8], "big")
                yield _Slot(key, minute, int.from_bytes(key[-8:], "big"))

    def _bucket(self, slot: _Slot) -> list[_Item]:
        """The deliveries in the bucket."""
        queue = self.queue
        if self._kind == FAILED_SLOT:
            assert queue.dead is not None
            entries = queue.dead.shelf.bucket(slot.bucket_id).available.values()
            return [_Item(item.at, item.claim_id, item.message_id) for item in entries]
        shelf = queue.done if self._kind == DONE_SLOT else queue.expired
        settled = shelf.of_bucket(slot.bucket_id)
        return [_Item(item.at, item.claim_id, item.message_id) for item in settled]

    def _remove(self, item: _Item) -> None:
        queue = self.queue
        if self._kind == FAILED_SLOT:
            assert queue.dead is not None
            drop_available(queue.dead, item.claim_id)
        elif self._kind == DONE_SLOT:
            drop_done(queue, item.claim_id, item.message_id)
        else:
            drop_expired(queue, item.claim_id, item.message_id)

    def _finish(self, slot: _Slot, items: list[_Item]) -> None:
        """Nothing in the bucket is old enough any more: cache when something will be."""
        end = (slot.minute + 1) * SLOT_MS
        times = [item.at for item in items if self._until < item.at < end]
        if times:
            self.queue.slot_times[slot.key] = min(times)
        else:
            self.queue.slot_times.pop(slot.key, None)
            self.queue.stage.delete(slot.key)


class _Slot(Struct, frozen=True):
    key: bytes
    minute: int
    bucket_id: int


class _Item(Struct, frozen=True):
    at: int
    claim_id: int
    message_id: int


def removals(queue: Queue, now: int) -> list[Removal]:
    """The removals to run for a queue and its dead-letter queue."""
    out = []
    if queue.done_count:
        out.append(Removal(queue, DONE_SLOT, now))
    if queue.expired_count:
        out.append(Removal(queue, EXPIRED_SLOT, now))
    if queue.dead is not None and queue.dead.available_count:
        out.append(Removal(queue, FAILED_SLOT, now))
    return out
