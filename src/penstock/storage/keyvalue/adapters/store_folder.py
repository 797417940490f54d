"""The directory of an embedded store: permissions and locking.

The directory has mode 0700, which keeps other users out. RocksDB creates its files under the umask
of the process, and a library must not change that, so a file may be 0644 until the store is next
opened or closed; both set every file of the store to 0600. ``penstock serve`` sets its own umask.

A directory that Penstock did not create is only tightened if it holds a store or is empty, and
never if it is shared by design (sticky bit, as on /tmp). Failures are logged.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
from pathlib import Path
from typing import Final

from penstock.errors import StoreLocked, StoreUnavailable

__all__ = ["FILE_MODE", "FOLDER_MODE", "lock_folder", "prepare_folder", "tighten_files"]

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_OTHERS: Final = 0o077
#: Files of RocksDB, its binding and Penstock. Other files in the directory are not touched.
_STORE_FILE: Final = re.compile(
    r"\d+\.(log|sst|blob|dbtmp)|(MANIFEST|OPTIONS)-\d+(\.dbtmp)?|LOG(\.old\.\d+)?"
    r"|CURRENT|IDENTITY|LOCK|PLACE|PENSTOCK(\.tmp)?|PLACE|rocksdict-config\.json"
)
_log = logging.getLogger("penstock.storage")


def prepare_folder(path: Path) -> None:
    """Create the directory or tighten its mode. Raises if it is not writable."""
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        facts = path.stat()
        names = [entry.name for entry in os.scandir(path)]
    except OSError as error:
        raise StoreUnavailable(
            f"Cannot create the store directory {path}: {error.strerror}.", field="url"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StoreUnavailable(f"The store directory {path} is not writable.", field="url")
    if facts.st_uid != os.geteuid():
        _log.warning(
            "The store directory %s belongs to user %d, but this process runs as user %d, which "
            "will own new files.",
            path,
            facts.st_uid,
            os.geteuid(),
        )
    if not facts.st_mode & _OTHERS:
        return
    ours = not names or any(_STORE_FILE.fullmatch(name) for name in names)
    if not ours or facts.st_mode & stat.S_ISVTX or not _set_mode(path, FOLDER_MODE):
        _log.warning(
            "Other users may be able to read the store: the directory %s has mode %04o and "
            "cannot be set to 0700. Give the store a directory of its own.",
            path,
            stat.S_IMODE(facts.st_mode),
        )


def lock_folder(path: Path, *, required: bool = False) -> int:
    """Lock the directory for this adapter; returns the descriptor to close to unlock it.

    RocksDB takes its own lock only for writing, and a store that another process is writing to
    looks damaged to a reader. ``required``: nothing else excludes a second writer.
    """
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(folder)
        raise StoreLocked(f"The store {path} is already open.", field="url") from error
    except OSError as error:
        if required:
            os.close(folder)
            raise StoreUnavailable(
                f"The store directory {path} is on a file system without locks.", field="url"
            ) from error
        # The file system has no such locks; RocksDB's lock still excludes a second writer.
        _log.warning("The directory %s cannot be locked.", path)
    return folder


def tighten_files(path: Path) -> None:
    """Set every file of the store to mode 0600."""
    refused = 0
    for entry in os.scandir(path):
        if not _STORE_FILE.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
            continue
        try:
            loose = entry.stat(follow_symlinks=False).st_mode & _OTHERS
        except FileNotFoundError:
            continue  # RocksDB removes files in the background.
        if loose and not _set_mode(Path(entry.path), FILE_MODE):
            refused += 1
    if refused:
        _log.warning("%d files of the store %s cannot be set to mode 0600.", refused, path)


def _set_mode(path: Path, mode: int) -> bool:
    """Whether the mode is now set; True for a file that no longer exists."""
    try:
        path.chmod(mode)
        return not path.stat().st_mode & _OTHERS
    except FileNotFoundError:
        return True
    except OSError:
        return False
