"""Checkpoints: replace old journals by a snapshot and synced message files.

The order makes every crash harmless. The next journal exists before; then all message files of the
old journals are written and synced, the snapshot is written, synced and renamed, and only then the
old journals and snapshots are removed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.storage.keyvalue.adapters.files.journal import fsync_folder

__all__ = ["Checkpoint", "sync_file_system"]

_log = logging.getLogger("penstock.storage")


class Checkpoint:
    """One checkpoint, on a thread of its own."""

    def __init__(
        self, path: Path, number: int, wait_for_files: Callable[[], None], write: Callable[[], int]
    ) -> None:
        self._path = path
        self._number = number
        self._wait_for_files = wait_for_files
        self._write = write
        self._size: int | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-checkpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> int | None:
        """The size of the snapshot; None if the checkpoint failed."""
        self._thread.join()
        return self._size

    def _run(self) -> None:
        try:
            self._wait_for_files()
            sync_file_system(self._path)
            self._size = self._write()
            self.remove_older(self._path / "journal", self._number)
        except OSError as error:
            # The old journals are kept, and the next checkpoint covers them too.
            _log.warning("A checkpoint of %s failed: %s", self._path, error)

    @staticmethod
    def remove_older(folder: Path, number: int) -> None:
        """Remove the journals and snapshots that the snapshot ``number`` replaces."""
        for path in (*folder.glob("*.journal"), *folder.glob("*.snapshot"), *folder.glob("*.tmp")):
            if path.stem.isdecimal() and (int(path.stem) < number or path.suffix == ".tmp"):
                path.unlink(missing_ok=True)
        fsync_folder(folder)


def sync_file_system(path: Path) -> None:
    """Sync the file system that holds ``path``: syncfs(2), or sync(2) where it does not exist."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
