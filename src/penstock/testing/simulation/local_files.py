"""Simulates the key-value engine over a store in files.

The thread that writes message files works in steps between commits, and checkpoints run
synchronously.

- A power loss keeps of the newest journal everything up to its last sync, and any sectors of the
  rest. Message files that no checkpoint has synced are missing, empty or zero, and the directories
  of queues are gone.
- A failed sync and a full disk fail a real system call, the latter in the middle of a write.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes
from penstock.storage.keyvalue.adapters.files import adapter as files_adapter
from penstock.storage.keyvalue.adapters.files import checkpoint
from penstock.storage.keyvalue.adapters.files.adapter import FilesAdapter
from penstock.testing.simulation.keyvalue import FAULT_KINDS, run
from penstock.testing.simulation.local_stores import LocalStore
from penstock.testing.simulation.report import Simulation

__all__ = ["SIMULATION", "LocalFiles"]

_SECTOR: Final = 512


class _NoThread:
    """Stands for a thread that is not needed."""

    def start(self) -> None:
        return

    def is_alive(self) -> bool:
        return False

    def join(self) -> None:
        return


class _SteppedFiles(FilesAdapter):
    """Writes message files in ``step`` only, and runs checkpoints synchronously."""

    checkpoint_bytes: int

    def _open(self, salvaging: bool) -> None:
        self._behind._thread = _NoThread()  # type: ignore[assignment]
        super()._open(salvaging)

    def step(self) -> bool:
        """Write the files of one commit, and show one record. Returns whether there is more."""
        behind = self._behind
        if behind._work:
            behind._do_next()
        behind._show_next()
        return bool(behind._work or behind._unshown or behind._rebuild is not None)

    def _is_checkpoint_due(self) -> bool:
        return self._journal.size >= self.checkpoint_bytes

    def _begin_checkpoint(self) -> None:
        while self.step():
            pass
        super()._begin_checkpoint()
        assert self._checkpoint is not None
        self._checkpoint.wait()

    def close(self) -> None:
        while not self._journal.is_broken and self.step():
            pass
        super().close()


class LocalFiles(LocalStore):
    """A store in files."""

    _inner: _SteppedFiles

    def __init__(self, seed: int, folder: Path | None = None, synced: Any = None) -> None:
        #: How many bytes of each file are certainly on the disk, by its path.
        self._synced: dict[str, int] = synced or {}
        self._is_abandoned = False
        super().__init__(seed, folder)

    def _survivor(self) -> LocalFiles:
        return LocalFiles(self._seed + 1, self.folder, self._synced)

    def _open(self) -> _SteppedFiles:
        with self._disk():
            inner = _SteppedFiles(self.folder / "store")
        inner.checkpoint_bytes = self._random.choice((10_000, 40_000, 10**9))
        return inner

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        with self._disk():
            super().write(writes, removed, sync)
            for _ in range(self._random.choice((0, 1, 3, 20))):
                if not self._inner.step():
                    break

    def mark(self, mark: Mark) -> None:
        with self._disk():
            super().mark(mark)

    def close(self) -> None:
        self._is_abandoned = True
        with self._disk():
            super().close()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Notes what is synced, instead of syncing it."""

        def sync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self._synced[path] = os.fstat(descriptor).st_size

        def sync_all(_: Path) -> None:
            for path in (self.folder / "store" / "messages").glob("*/*"):
                self._synced[str(path)] = path.stat().st_size

        changes: tuple[tuple[Any, str, Any], ...] = (
            (os, "fsync", sync),
            (os, "fdatasync", sync),
            (files_adapter, "sync_file_system", sync_all),
            (checkpoint, "sync_file_system", sync_all),
        )
        # By hand: patch.object takes longer than a write.
        originals = [getattr(module, name) for module, name, _ in changes]
        for module, name, replacement in changes:
            setattr(module, name, replacement)
        try:
            yield
        finally:
            for (module, name, _), original in zip(changes, originals, strict=True):
                setattr(module, name, original)

    def _refuse(self, error: int, write: Callable[[], None]) -> None:
        if error == errno.EIO:

            def fail(_: int) -> None:
                raise OSError(error, os.strerror(error))

            with patch.object(os, "fdatasync", fail):
                write()
            raise AssertionError("the write did not sync")
        real, begun = os.write, False

        def fill(descriptor: int, data: Any) -> int:
            nonlocal begun
            if begun:
                raise OSError(error, os.strerror(error))
            begun = True
            return real(descriptor, data[: self._random.randrange(len(data))])

        with patch.object(os, "write", fill):
            write()
        raise AssertionError("the write wrote nothing")

    def _abandon(self) -> None:
        if not self._is_abandoned:
            self._is_abandoned = True
            self._inner._journal.close()
            os.close(self._inner._lock)

    def _lose_unsynced(self) -> None:
        store, random = self.folder / "store", self._random
        last = max((store / "journal").glob("*.journal"))
        content, synced = bytearray(last.read_bytes()), self._synced.get(str(last), 0)
        for sector in range(synced // _SECTOR * _SECTOR, len(content), _SECTOR):
            begin, end = max(sector, synced), min(sector + _SECTOR, len(content))
            if random.random() < 0.3:
                content[begin:end] = bytes(end - begin)
        # The size of a file may survive although sectors before its end do not.
        size = random.choice((len(content), random.randint(synced, len(content))))
        last.write_bytes(content[:size])
        for path in sorted((store / "messages").glob("*/*")):
            if str(path) not in self._synced:
                size = path.stat().st_size
                path.unlink()  # Not truncated in place: a queue may have a link to it.
                if (fate := random.randrange(3)) > 0:
                    path.write_bytes(bytes(size) if fate == 1 else b"")
        shutil.rmtree(store / "queues", ignore_errors=True)


SIMULATION: Final = Simulation(partial(run, adapter=LocalFiles), FAULT_KINDS)
