"""The location of a store directory: what distinguishes the directory from a copy of it.

A file in the directory, ``PLACE``, is written once and never changed. Its inode number and birth
time are unique to it: a copy, an unpacked backup and a directory that was deleted and restored have
a different file. Renaming the directory, rebooting, and changing owners or permissions change
neither. Device numbers are not used, because a reboot may change them.

Not detected: a snapshot of the whole file system or disk, and a restore that keeps the existing
``PLACE``. ``penstock store new-epoch`` is for those.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.errors import StoreUnavailable

__all__ = ["birth_of", "read_place"]

PLACE_FILE: Final = "PLACE"
_TEXT: Final = (
    b"Tells this Penstock store from its copies. Leave it out of backups, or do not: a restored\n"
    b"store begins a new epoch either way.\n"
)

#: statx(2): request only the birth time, by path; its position in the buffer.
_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_MASK: Final = struct.Struct("=I")
_BTIME: Final = struct.Struct("=qI")
_BTIME_AT: Final = 80


def read_place(directory: Path) -> str:
    """The location of the store in ``directory``. Creates the file if it does not exist."""
    path = directory / PLACE_FILE
    try:
        with suppress(FileExistsError):
            _create(path)
        inode = path.stat().st_ino
    except OSError as error:
        raise StoreUnavailable(f"Cannot use {path}: {error.strerror}.", field="url") from error
    birth = birth_of(path)
    return f"inode={inode}" if birth is None else f"inode={inode} birth={birth}"


def _create(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, _TEXT)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def birth_of(path: Path) -> str | None:
    """The birth time of the file in nanoseconds; None if the system does not provide it."""
    known: float | None = getattr(path.stat(), "st_birthtime", None)  # macOS, BSD
    if known is not None:
        return f"{known:.9f}"
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return None
    if not _MASK.unpack_from(buffer)[0] & _STATX_BTIME:
        return None
    seconds, nanoseconds = _BTIME.unpack_from(buffer, _BTIME_AT)
    return f"{seconds}.{nanoseconds:09}"
