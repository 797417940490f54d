"""Keeps message files for the readers of a store, such as backups, while its server goes on.

A reader holds a shared lock on the directory of the message files. As long as one does, files of
messages that retention removes are kept, and removed with the next ones. The locks of a process
that is killed are gone with it.
"""

from __future__ import annotations

import fcntl
import os
from array import array
from contextlib import suppress
from pathlib import Path

from penstock.storage.keyvalue.adapters.files.message_files import MessageFiles

__all__ = ["HeldFiles", "hold_files"]


def hold_files(root: Path) -> int:
    """Keep every message file of a store until the returned descriptor is closed."""
    descriptor = os.open(root / "messages", os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):  # Without locks the reader notices that a file is gone.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


class HeldFiles:
    """Removes message files that no reader needs."""

    def __init__(self, root: Path, files: MessageFiles) -> None:
        self._folder = root / "messages"
        self._files = files
        self._kept: list[array[int]] = []

    def remove(self, offsets: array[int]) -> None:
        """Remove the files now, or with the next ones if a reader may need them."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._kept.append(offsets)
                return
            except OSError:
                pass  # The file system has no such locks.
            self.remove_kept()
            self._files.remove(offsets)
        finally:
            os.close(descriptor)

    def remove_kept(self) -> None:
        """Remove the files that were kept, even if a reader needs them."""
        while self._kept:
            self._files.remove(self._kept[-1])
            self._kept.pop()
