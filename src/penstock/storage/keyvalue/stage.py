"""The stage: what verbs have changed since the last commit, and a view that includes it.

Verbs run on one event loop and never wait in the middle, so whatever is staged between
two commits is a whole number of verbs (S3). ``get`` and ``scan`` look through what is
staged, then through what is being committed, then into the store.

A *dirty* object (a bucket, a queue's state …) is encoded once when the commit begins,
however many verbs changed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from penstock.storage.keyvalue.adapters import Adapter, KeyRange
from penstock.storage.keyvalue.encoding import prefix_end

__all__ = ["Batch", "Dirty", "Stage"]


class Dirty(Protocol):
    """Something that knows how to write itself when the commit begins."""

    def write_to(self, stage: Stage) -> None:
        """Put and delete records through ``stage``."""
        ...


class Batch:
    """What one commit writes."""

    __slots__ = ("removed", "sync", "writes")

    def __init__(self) -> None:
        self.writes: dict[bytes, bytes | None] = {}
        self.removed: list[KeyRange] = []
        self.sync = False

    def __bool__(self) -> bool:
        return bool(self.writes or self.removed)


_EMPTY = Batch()


class Stage:
    """Collects the next batch and reads through it."""

    __slots__ = ("_adapter", "_committing", "_dirty", "_next", "number", "written", "writes")

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._dirty: dict[Dirty, None] = {}
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
        return bool(self._dirty or self._next)

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
        for key in [key for key in self.writes if start <= key < end]:
            del self.writes[key]
        self._next.removed.append((start, end))

    def mark(self, dirty: Dirty) -> None:
        """Encode ``dirty`` when the commit begins."""
        self._dirty[dirty] = None

    def unmark(self, dirty: Dirty) -> None:
        self._dirty.pop(dirty, None)

    def ask_sync(self) -> None:
        self._next.sync = True

    # -- committing --------------------------------------------------------------------

    def take(self) -> Batch:
        """Close the batch and begin the next one."""
        dirty, self._dirty = self._dirty, {}
        for item in dirty:
            item.write_to(self)
        self.written = dirty
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
            if batch.removed and any(start <= key < end for start, end in batch.removed):
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
        """Pairs with start <= key < end as they will be after the next commit."""
        over: dict[bytes, bytes | None] = {}
        hidden: list[KeyRange] = []
        for batch in (self._committing, self._next):
            for low, high in batch.removed:
                hidden.append((low, high))
                over = {key: value for key, value in over.items() if not low <= key < high}
            for key, value in batch.writes.items():
                if start <= key < end:
                    over[key] = value
        below = self._adapter.scan(start, end, reverse=reverse)
        if not over and not hidden:
            yield from below
            return
        above = sorted(over, reverse=reverse)
        position = 0
        for key, value in below:
            while position < len(above) and (above[position] < key) is not reverse:
                if above[position] == key:
                    break
                new = over[above[position]]
                if new is not None:
                    yield above[position], new
                position += 1
            if key in over or any(low <= key < high for low, high in hidden):
                continue
            yield key, value
        for key in above[position:]:
            new = over[key]
            if new is not None:
                yield key, new
