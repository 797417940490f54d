"""The stage: what verbs have changed since the last commit, and a view that includes it.

Verbs run on one event loop and never await in the middle, so everything staged between two commits
is a whole number of verbs (S3). ``get`` and ``scan`` read the staged changes first, then the commit
in progress, then the store.

A *dirty* object (a bucket, a queue's state …) is encoded once when the commit begins, no matter how
many verbs changed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby
from typing import Final, Protocol

from penstock.model.dead_letter_copies import EndedDelivery
from penstock.storage.copy_limit import CopyLimit
from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.batch import Batch
from penstock.storage.keyvalue.encoding import prefix_end
from penstock.storage.keyvalue.recent_payloads import RECENT_BYTES, RecentPayloads

__all__ = ["ENCODE_STEP", "STEP_BYTES", "Dirty", "Stage"]


class Dirty(Protocol):
    """An object that writes its records when the commit begins."""

    def write_to(self, stage: Stage) -> int:
        """Put and delete records through ``stage``; returns about how many bytes.

        An object with many records may write some of them and mark itself again.
        """
        ...


_EMPTY = Batch()
#: Dirty objects encoded per step: a full bucket takes about 20 µs.
ENCODE_STEP: Final = 32
#: Bytes encoded per step: half a millisecond. With all headers, 100 messages have 1.6 MB.
STEP_BYTES: Final = 1024 * 1024


class Stage:
    """Collects the next batch, and reads through it."""

    __slots__ = (
        "_adapter",
        "_committing",
        "_dirty",
        "_encoded",
        "_next",
        "_step_size",
        "copies",
        "ended",
        "number",
        "recent_payloads",
        "written",
        "writes",
    )

    def __init__(
        self,
        adapter: Adapter,
        step_size: int = ENCODE_STEP,
        recent_payload_bytes: int = RECENT_BYTES,
    ) -> None:
        self._adapter = adapter
        self._step_size = step_size
        self._dirty: dict[Dirty, None] = {}
        self._encoded: dict[Dirty, None] = {}
        self._next = Batch()
        self._committing = _EMPTY
        self.recent_payloads = RecentPayloads(recent_payload_bytes)
        #: The next batch's writes, for hot paths that put many records directly.
        self.writes = self._next.writes
        #: The dirty objects that the last taken batch encoded.
        self.written: Iterable[Dirty] = ()
        #: The number of the next commit.
        self.number = 1
        #: Ended deliveries that the current verb has to copy to a topic, with tenant and topic.
        self.ended: list[tuple[str, str, EndedDelivery]] = []
        #: How much the next commit copies, including ``ended``.
        self.copies = CopyLimit()

    @property
    def has_work(self) -> bool:
        # Tests the dict first, to save a call: this is read several times per commit.
        return bool(self._dirty or self.writes or self._next)

    @property
    def wants_sync(self) -> bool:
        """Whether the next commit is to be synced."""
        return self._next.sync

    @property
    def completed(self) -> int:
        """The number of the last completed commit."""
        return self.number - (1 if self._committing is _EMPTY else 2)

    # -- writing -----------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> None:
        self.writes[key] = value

    def delete(self, key: bytes) -> None:
        self.writes[key] = None

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Remove the current contents of the range; later puts into it stay."""
        self._next.remove_range(start, end)

    def mark(self, dirty: Dirty) -> None:
        """Encode ``dirty`` when the commit begins."""
        self._dirty[dirty] = None

    def unmark(self, dirty: Dirty) -> None:
        self._dirty.pop(dirty, None)

    def ask_sync(self) -> None:
        self._next.sync = True

    # -- committing --------------------------------------------------------------------

    def encode(self) -> Iterator[None]:
        """Encode dirty objects, in steps. Nothing may change until ``take``, which must follow."""
        while self._dirty:
            items, self._dirty = self._dirty, {}
            self._encoded |= items
            left, remaining = self._step_size, STEP_BYTES
            for item in items:
                left -= 1
                remaining -= item.write_to(self)
                if left == 0 or remaining <= 0:
                    left, remaining = self._step_size, STEP_BYTES
                    yield

    def take(self) -> Batch:
        """Close the batch and begin the next one."""
        assert not self.ended, "a delivery ends in the commit of its copy"
        deque(self.encode(), 0)
        self.written, self._encoded = self._encoded, {}
        batch = self._committing = self._next
        self._next = Batch()
        self.writes = self._next.writes
        self.number += 1
        self.copies.clear()
        return batch

    def committed(self) -> None:
        """Record that the last taken batch is in the store."""
        self._committing = _EMPTY
        self.written = ()

    # -- reading -----------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        for batch in (self._next, self._committing):
            if key in batch.writes:
                return batch.writes[key]
            if batch.removes(key):
                return None
        return self._adapter.get(key)

    def is_uncommitted(self, key: bytes) -> bool:
        """Whether an uncommitted change puts or deletes the record."""
        return key in self.writes or key in self._committing.writes

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys. None of the keys may be in a removed range."""
        upper, lower = self.writes, self._committing.writes
        if upper.keys().isdisjoint(keys) and lower.keys().isdisjoint(keys):
            return self._adapter.get_many(keys)
        return [self.get(key) for key in keys]

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        """The values with start <= key < end, as of the last commit."""
        return self._adapter.values(start, end)

    def prefix(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every pair whose key begins with ``prefix``, in order."""
        return self.scan(prefix, prefix_end(prefix))

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < end as they will be after the next commit.

        The cost depends on what it yields and on deletes in the range, not on all that is staged.
        """
        upper, lower = self._next, self._committing
        parts = [kept for part in upper.kept(start, end) for kept in lower.kept(*part)]
        if reverse:
            parts.reverse()
        stored = chain.from_iterable(self._adapter.scan(*part, reverse=reverse) for part in parts)
        if not upper.has_between(start, end) and not lower.has_between(start, end):
            yield from stored
            return
        staged = _staged(upper, lower, start, end, reverse=reverse)
        above = next(staged, None)
        for key, value in stored:
            while above is not None and (above[0] > key if reverse else above[0] < key):
                if above[1] is not None:
                    yield above[0], above[1]
                above = next(staged, None)
            if above is None or above[0] != key:
                yield key, value
        while above is not None:
            if above[1] is not None:
                yield above[0], above[1]
            above = next(staged, None)


def _staged(
    upper: Batch, lower: Batch, start: bytes, end: bytes, *, reverse: bool
) -> Iterator[tuple[bytes, bytes | None]]:
    """Every staged key of a range once, with its value, or None if it is deleted."""
    keys = merge(
        upper.keys(start, end, reverse=reverse),
        lower.keys(start, end, reverse=reverse),
        reverse=reverse,
    )
    for key, _ in groupby(keys):
        if key in upper.writes:
            yield key, upper.writes[key]
        else:
            yield key, None if upper.removes(key) else lower.writes.get(key)
