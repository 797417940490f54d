"""Real adapters under the simulation, on real files below a temporary directory.

They have the faults of ``FaultyAdapter``, so what a crash leaves is what the adapter itself
recovers from. Threads would make runs differ, so they do not run.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes

__all__ = ["LocalStore"]

#: A file system in memory, where it exists: no run depends on what a disk keeps.
_MEMORY: Final = Path("/dev/shm")  # noqa: S108  (mkdtemp creates a directory below it)
_END: Final = b"\xff" * 16


class LocalStore(ABC):
    """An adapter on real files that fails on request. Like ``FaultyAdapter``, it has survivors."""

    name = "local"
    durability: Durability
    unsynced: Durability
    persistent = True
    has_marks: bool
    commit_interval_s = 0.0
    inline = False

    def __init__(self, seed: int, folder: Path | None = None) -> None:
        self._seed = seed
        self._random = Random(f"local {seed}")
        parent = str(_MEMORY) if _MEMORY.is_dir() else None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="penstock-", dir=parent))
        #: Calls of ``write``, and the errors of those to come.
        self._calls = 0
        self._refusals: dict[int, int] = {}
        self.failed = False
        """Whether a write was refused."""
        self._contents: dict[bytes, bytes] | None = None
        try:
            self._inner: Any = self._open()
        except BaseException:
            if folder is None:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.durability, self.unsynced = self._inner.durability, self._inner.unsynced
        self.has_marks = self._inner.has_marks

    # -- faults and survivors ----------------------------------------------------------

    def fail_sync(self, nth: int = 1) -> None:
        """Fail the nth write from now, or the first later one that syncs."""
        self._refusals[self._calls + nth] = errno.EIO

    def fail_space(self, nth: int = 1) -> None:
        """Refuse the nth write from now with ENOSPC."""
        self._refusals[self._calls + nth] = errno.ENOSPC

    def process_loss(self) -> LocalStore:
        """The store after the process was killed, opened again."""
        self._abandon()
        return self._survivor()

    def power_loss(self) -> LocalStore:
        """The store after a power loss, opened again."""
        self._abandon()
        self._lose_unsynced()
        return self._survivor()

    def fence(self) -> None:
        """Another writer opens the store; this one does not know."""
        raise NotImplementedError(f"{type(self).__name__} has one writer")

    def contents(self) -> dict[bytes, bytes]:
        """Every pair but payloads."""
        return dict(self._inner.scan(b"", _END)) if self._contents is None else self._contents

    def remove(self) -> None:
        """Remove the files, when the run is over."""
        self._abandon()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _survivor(self) -> LocalStore:
        return type(self)(self._seed + 1, self.folder)

    @abstractmethod
    def _open(self) -> Any: ...

    @abstractmethod
    def _abandon(self) -> None:
        """End the threads and release the locks of the inner adapter, as a kill does."""

    def _lose_unsynced(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no power loss")

    @abstractmethod
    def _refuse(self, error: int, write: Callable[[], None]) -> None:
        """Fail a write: it raises ``OSError`` with ``error``."""

    # -- the adapter -------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._inner.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._inner.get_many(keys)
        return values

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        yield from self._inner.scan(start, end, reverse=reverse)

    def values(self, start: bytes, end: bytes) -> list[bytes]:
        values: list[bytes] = self._inner.values(start, end)
        return values

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        """Refuse, so that the writer uses its thread."""
        del writes, removed, sync
        return False

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        self._calls += 1
        refusal = self._refusals.pop(self._calls, None)
        if refusal == errno.EIO and not sync:
            self.fail_sync()
            refusal = None
        if refusal is None:
            try:
                self._inner.write(writes, removed, sync)
            except OSError:
                self.failed = True
                raise
        else:
            self.failed = True
            self._refuse(refusal, lambda: self._inner.write(writes, removed, sync))

    def check(self) -> None:
        self._inner.check()

    def place(self) -> str:
        return str(self._inner.place())

    def space(self) -> tuple[int, int] | None:
        return None

    def mark(self, mark: Mark) -> None:
        self._inner.mark(mark)

    def read_mark(self) -> Mark | None:
        mark: Mark | None = self._inner.read_mark()
        return mark

    def close(self) -> None:
        self._contents = self.contents()
        self._inner.close()
