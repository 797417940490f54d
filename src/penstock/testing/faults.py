"""A disk that fails on demand: an adapter that distinguishes synced from written data.

What it models, and which law each fault tries to break:

- Power loss (P1, P2, S3): writes reach the disk in order and whole, like the batches of a
  write-ahead log. A synced write survives with everything before it; of the others a
  prefix survives, chosen by the seed. ``survivor`` returns any such disk.
- A failed fsync (P2): the write raises ``EIO``, and may or may not be on the disk.
- A full disk (P2): the write raises ``ENOSPC``, and nothing of it is on the disk.
- A mark survives as soon as it is stored. A power loss loses unsynced writes, so a mark that
  names a commit beyond that makes the store refuse to open, which fails the test.
- An unreadable sector: a read of a matching key raises ``StoreUnavailable``, as the RocksDB
  adapter does for an I/O error.
- A flipped bit (X1): the value of a matching key is read with one bit flipped.

It does not model a store that notices the flipped bit itself. RocksDB's own checksums
are tested on real files, in tests/crash.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.errors import StoreUnavailable
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter

__all__ = ["Damage", "FaultyAdapter", "KeyMatch", "Written"]

_DISK_BYTES: Final = 1 << 40
KeyMatch: TypeAlias = Callable[[bytes], bool]


class Written(Struct, frozen=True):
    """One batch as it was written."""

    writes: dict[bytes, bytes | None]
    removed: tuple[KeyRange, ...]
    sync: bool


class Damage(Struct, frozen=True):
    """One flipped bit, in every value whose key matches."""

    match: KeyMatch
    bit: int
    """Counted from the first byte's lowest; taken modulo the value's size."""

    def apply(self, key: bytes, value: bytes) -> bytes:
        if not value or not self.match(key):
            return value
        place, bit = divmod(self.bit % (8 * len(value)), 8)
        return value[:place] + bytes((value[place] ^ 1 << bit,)) + value[place + 1 :]


class FaultyAdapter:
    """An ordered map whose disk can lose power, fill up, or become damaged."""

    name = "faulty"
    durability: Durability = "fsync"
    unsynced: Durability = "os"
    persistent = True
    has_marks = True
    commit_interval_s = 0.0

    def __init__(
        self,
        *,
        seed: int = 0,
        inline: bool = True,
        base: dict[bytes, bytes] | None = None,
        mark: Mark | None = None,
    ) -> None:
        self.inline = inline
        self.seed = seed
        self._random = Random(seed)
        #: The contents of the disk before the first write in ``journal``.
        self._base = dict(base or {})
        self._map = MemoryAdapter()
        self._map.write(self._base, (), False)
        #: Every batch that reached the operating system, in order.
        self.journal: list[Written] = []
        #: How many of them are certainly on the disk.
        self.synced = 0
        #: Marks in the order they were stored, each with the number of batches synced at that time.
        self.marks: list[tuple[int, Mark]] = [] if mark is None else [(0, mark)]
        #: The batch whose fsync failed: it may or may not be on the disk.
        self.doubtful: Written | None = None
        #: Calls of ``write``, including refused ones.
        self.calls = 0
        #: Whether a write was refused.
        self.failed = False
        self.closed = False
        #: The free space that ``space`` reports.
        self.free_bytes = _DISK_BYTES
        self._refusals: dict[int, int] = {}
        self._unreadable: KeyMatch | None = None
        self._damage: Damage | None = None

    # -- faults ------------------------------------------------------------------------

    def fail_sync(self, nth: int = 1) -> None:
        """Fail the fsync of the nth write from now, or of the first later one that syncs."""
        self._refusals[self.calls + nth] = errno.EIO

    def fail_space(self, nth: int = 1) -> None:
        """Refuse the nth write from now with ENOSPC."""
        self._refusals[self.calls + nth] = errno.ENOSPC

    def fail_reads(self, match: KeyMatch | None) -> None:
        """Fail reads of matching keys, until called with None."""
        self._unreadable = match

    def damage(self, match: KeyMatch | None, bit: int = 0) -> None:
        """Flip one bit of the values of matching keys, until called with None."""
        self._damage = None if match is None else Damage(match, bit)

    # -- surviving disks ---------------------------------------------------------------

    def power_loss(self) -> FaultyAdapter:
        """The disk after a power loss: synced writes, and perhaps some later ones."""
        return self.survivor(self._random.randint(self.synced, len(self._attempted)))

    def process_loss(self) -> FaultyAdapter:
        """The disk after the process was killed: everything that was written.

        Only a batch whose fsync failed may or may not be there.
        """
        return self.survivor(self._random.randint(len(self.journal), len(self._attempted)))

    def survivor(self, writes: int) -> FaultyAdapter:
        """The disk on which exactly the first ``writes`` batches survive."""
        disk = MemoryAdapter()
        disk.write(self._base, (), False)
        for batch in self._attempted[:writes]:
            disk.write(batch.writes, batch.removed, False)
        base = dict(disk.scan(b"", b"\xff" * 16))
        marks = [mark for synced, mark in self.marks if synced <= writes]
        return FaultyAdapter(
            seed=self.seed + writes + 1,
            inline=self.inline,
            base=base,
            mark=marks[-1] if marks else None,
        )

    def contents(self) -> dict[bytes, bytes]:
        """Every pair as it was written, ignoring faults."""
        return dict(self._map.scan(b"", b"\xff" * 16))

    def fence(self) -> None:
        """This disk has one writer."""
        raise NotImplementedError

    def remove(self) -> None:
        """Nothing is left of it."""

    @property
    def _attempted(self) -> list[Written]:
        return self.journal if self.doubtful is None else [*self.journal, self.doubtful]

    # -- the adapter -------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        self._check_readable(key)
        value = self._map.get(key)
        return value if value is None or self._damage is None else self._damage.apply(key, value)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._map.scan(start, end, reverse=reverse):
            self._check_readable(key)
            yield key, value if self._damage is None else self._damage.apply(key, value)

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        return [value for _, value in self.scan(start, end)]

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        """Refuse, so that the writer uses its thread."""
        del writes, removed, sync
        return False

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        self.calls += 1
        refusal = self._refusals.pop(self.calls, None)
        if refusal == errno.ENOSPC:
            self.failed = True
            raise OSError(refusal, os.strerror(refusal))
        batch = Written(dict(writes), tuple(removed), sync)
        if refusal is not None and not sync:
            self.fail_sync()
        elif refusal is not None:
            # Like RocksDB, which makes a batch visible only after its write-ahead log is synced.
            self.doubtful = batch
            self.failed = True
            raise OSError(refusal, os.strerror(refusal))
        self.journal.append(batch)
        self._map.write(batch.writes, batch.removed, sync)
        if sync:
            self.synced = len(self.journal)

    def check(self) -> None:
        """No other process has the disk."""

    def place(self) -> str:
        return ""

    def space(self) -> tuple[int, int] | None:
        return self.free_bytes, max(self.free_bytes, _DISK_BYTES)

    def mark(self, mark: Mark) -> None:
        self.marks.append((self.synced, mark))

    def read_mark(self) -> Mark | None:
        return self.marks[-1][1] if self.marks else None

    def close(self) -> None:
        self.closed = True

    def _check_readable(self, key: bytes) -> None:
        if self._unreadable is not None and self._unreadable(key):
            error = OSError(errno.EIO, os.strerror(errno.EIO))
            raise StoreUnavailable(f"The store cannot be read: {error}.") from error
