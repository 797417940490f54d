"""The files of an inbox: taking them, putting them aside, all durably. Blocking; no publishing.

Taking a file is a rename to ``inbox/.taken/<topic>/<token>-<inode>-<name>`` that is synced before
the file is published. The new name identifies the message: it is found again after a crash, and is
never used twice. Name and inode alone would be, because file systems reuse inode numbers at once.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.storage.randomness import random_bytes

__all__ = ["Inbox", "TakenFile"]

_TAKEN: Final = ".taken"
_MODE: Final = 0o700
#: A file name has at most 255 bytes, and taking adds up to 42.
_MAX_NAME_BYTES: Final = 200


class TakenFile(Struct, frozen=True):
    """A file that is to be published, exactly once."""

    topic: str
    path: Path

    @property
    def id(self) -> str:
        """What identifies the message: a random token and the inode."""
        return "-".join(self.path.name.split("-", 2)[:2])

    @property
    def name(self) -> str:
        """The name that the file had in the inbox."""
        return self.path.name.split("-", 2)[2]


class Inbox:
    """The directories ``inbox`` and ``refused`` of one tenant."""

    def __init__(self, root: Path) -> None:
        self._inbox = root / "inbox"
        self._taken = self._inbox / _TAKEN
        self._refused = root / "refused"

    def topics(self) -> list[str]:
        """The topics that have a directory."""
        folders = (*_folders(self._taken), *_folders(self._inbox))
        return sorted({folder.name for folder in folders})

    def take(self, topic: str, limit: int) -> list[TakenFile]:
        """Up to ``limit`` files of a topic: those that were taken before, then new ones."""
        taken, new = self._taken / topic, self._inbox / topic
        found = [
            TakenFile(topic, file)
            for file in (sorted(taken.iterdir()) if taken.is_dir() else ())
            if file.name.count("-") >= 2
        ][:limit]
        if len(found) < limit and new.is_dir() and not new.is_symlink():
            found += self._take_from(new, limit - len(found))
        return found

    def _take_from(self, folder: Path, limit: int) -> list[TakenFile]:
        target = self._taken / folder.name
        found: list[TakenFile] = []
        for file in sorted(folder.iterdir()):
            if len(found) == limit:
                break
            if file.name.startswith(".") or (facts := _settled(file)) is None:
                continue
            if not found:
                target.mkdir(mode=_MODE, parents=True, exist_ok=True)
            name = os.fsdecode(os.fsencode(file.name)[:_MAX_NAME_BYTES])
            path = target / f"{random_bytes(8).hex()}-{facts.st_ino}-{name}"
            with suppress(FileNotFoundError):  # Its owner took it back.
                file.rename(path)
                found.append(TakenFile(folder.name, path))
        if found:
            # A power loss must not put a published file back: it would be published again.
            for synced in (folder, target, self._taken, self._inbox):
                _sync_folder(synced)
        return found

    def refuse(self, taken: TakenFile, reason: str) -> Path:
        """Move a file to ``refused/<topic>/``, with the reason beside it."""
        folder = self._refused / taken.topic
        folder.mkdir(mode=_MODE, parents=True, exist_ok=True)
        path = folder / taken.name
        if path.exists():
            path = folder / f"{taken.name}.{taken.id}"
        note = path.with_name(f"{path.name}.error.txt")
        with open(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{reason}\n")
        taken.path.rename(path)
        _sync_folder(folder)
        return path


def _folders(parent: Path) -> Iterator[Path]:
    """The directories in ``parent``, without hidden ones, by name."""
    if parent.is_dir():
        for path in sorted(parent.iterdir()):
            if not path.name.startswith(".") and path.is_dir() and not path.is_symlink():
                yield path


def _settled(path: Path) -> os.stat_result | None:
    """The facts of a regular file that no program has open for writing; otherwise None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        return facts if stat.S_ISREG(facts.st_mode) and not _is_being_written(descriptor) else None
    finally:
        os.close(descriptor)


def _is_being_written(descriptor: int) -> bool:
    """Whether a program is still copying into the file: a read lease is refused then."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False  # Not Linux: only a rename is safe.
    try:
        # A program that opens the file now would cause SIGIO, which ends a process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False  # The file system has no leases, or the file belongs to another user.
    return False


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
