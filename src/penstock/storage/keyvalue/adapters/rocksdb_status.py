"""Interprets the text of RocksDB's errors.

rocksdict raises plain exceptions whose text is a RocksDB status: ``code: [reason: ]message``.
The message usually contains a path that the operator chose, such as ``/srv/install/000012.log``,
so only the code and the reason at the front decide what an error means.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from penstock.errors import CommitsMissing, StoreCorrupt, StoreLocked, StoreUnavailable

__all__ = ["is_stall", "opening_error", "reading_error", "writing_error"]

_STALL: Final = "Result incomplete: Write stall"
#: A manifest that lost records may also lack column families.
_DAMAGE: Final = ("Corruption: ", "Invalid argument: Column family not found: ")
#: A log that the manifest tracks is missing, or is shorter than its synced size.
_MISSING_LOG: Final = ("Corruption: Missing WAL", "Corruption: Size mismatch: WAL")
_IO_ERROR: Final = "IO error: "
#: The reasons that follow "IO error: " when the device is full or a quota is exceeded.
_NO_SPACE: Final = ("No space left on device", "Space limit reached", "Disk quota exceeded")
_LOCKED: Final = ("While lock file: ", "lock hold by current process")


def is_stall(error: Exception) -> bool:
    """Whether a write without slowdown was refused because compaction is behind."""
    return str(error).startswith(_STALL)


def writing_error(error: Exception) -> OSError:
    """The error of a write or a sync: ``ENOSPC`` if the disk is full, otherwise ``EIO``."""
    text = str(error)
    full = _io_reason(text).startswith(_NO_SPACE)
    return OSError(errno.ENOSPC if full else errno.EIO, text)


def reading_error(error: Exception) -> StoreCorrupt | StoreUnavailable:
    """The error of a read from an open store."""
    text = str(error)
    if text.startswith(_DAMAGE):
        return StoreCorrupt(f"The store is damaged: {text}.")
    return StoreUnavailable(f"The store cannot be read: {text}.")


def opening_error(path: Path, error: Exception) -> StoreLocked | StoreCorrupt | StoreUnavailable:
    """The error of opening the store in ``path``."""
    text = str(error)
    if text.startswith(_MISSING_LOG):
        return CommitsMissing(f"A write-ahead log of {path} is missing or truncated: {text}.")
    if text.startswith(_DAMAGE):
        return StoreCorrupt(f"The store {path} is damaged: {text}.")
    if _io_reason(text).startswith(_LOCKED):
        return StoreLocked(f"The store {path} is already open.", field="url")
    return StoreUnavailable(f"The store {path} cannot be opened: {text}.", field="url")


def _io_reason(text: str) -> str:
    """The text after the code of an I/O error; empty for any other status."""
    return text.removeprefix(_IO_ERROR) if text.startswith(_IO_ERROR) else ""
