"""The stage: what verbs have changed since the last commit, and a view that includes it.

Verbs run on one event loop and never wait in the middle, so whatever is staged between
two commits is a whole number of verbs (S3). ``get`` and ``scan`` look through what is
staged, then through what is being committed, then into the store.

A *dirty* object (a bucket, a queue's state …) is encoded once when the commit begins,
however many verbs changed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby
from typing import Final, Protocol

from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.batch import Batch
from penstock.storage.keyvalue.encoding import prefix_end

__all__ = ["Dirty", "Stage"]


class Dirty(Protocol):
    """Something that knows how to write itself when the commit begins."""

    def write_to(self, stage: Stage) -> None:
        """Put and delete records through ``stage``."""
        ...


_EMPTY = Batch()
#: Dirty objects that are encoded between two looks at the clock: a full bucket takes some 20 µs.
_ENCODED_A_STEP: Final = 32


class Stage:
    """Collects the next batch and reads through it."""

    __slots__ = (
        "_adapter",
        "_committing",
        "_dirty",
        "_encoded",
        "_next",
        "number",
        "written",
        "writes",
    )

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._dirty: dict[Dirty, None] = {}
        self._encoded: dict[Dirty, None] = {}
        self._next = Batch()
        self._committing = _EMPTY
        #: The next batch's writes, for hot paths that put many records at once.
        self.writes = self._next.writes
        #: What the batch that was taken last had to encode.
        self.written: Iterable[Dirty] = ()
        #: The number of the commit that is being collected.
        self.number = 1

    @property
    def has_work(self) -> bool:
        # Not the batch itself, whose truth is a call: this is asked several times a commit.
        return bool(self._dirty or self.writes or self._next.removed)

    @property
    def completed(self) -> int:
        """The number of the last commit that is in the store."""
        return self.number - (1 if self._committing is _EMPTY else 2)

    # -- writing -----------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> None:
        self.writes[key] = value

    def delete(self, key: bytes) -> None:
        self.writes[key] = None

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Remove what is in the range now; later puts into it stay."""
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
        """Encode what is dirty, in steps; nothing may change until ``take``, which comes next."""
        self._encoded, self._dirty = self._dirty, {}
        for position, item in enumerate(self._encoded, 1):
            item.write_to(self)
            if not position % _ENCODED_A_STEP:
                yield

    def take(self) -> Batch:
        """Close the batch and begin the next one."""
        if self._dirty:
            deque(self.encode(), 0)
        self.written, self._encoded = self._encoded, {}
        batch = self._committing = self._next
        self._next = Batch()
        self.writes = self._next.writes
        self.number += 1
        return batch

    def committed(self) -> None:
        """The batch taken last is in the store."""
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
        """Whether the record was put or deleted by what is not in the store yet."""
        return key in self.writes or key in self._committing.writes

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys; only hot paths without removed ranges use it."""
        upper, lower = self.writes, self._committing.writes
        if upper.keys().isdisjoint(keys) and lower.keys().isdisjoint(keys):
            return self._adapter.get_many(keys)
        return [self.get(key) for key in keys]

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        """The values with start <= key < end, as the last commit left them."""
        return self._adapter.values(start, end)

    def prefix(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every pair whose key begins with ``prefix``, in order."""
        return self.scan(prefix, prefix_end(prefix))

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < end as they will be after the next commit.

        Costs what it yields and what is staged to be deleted in between, not what is staged.
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
