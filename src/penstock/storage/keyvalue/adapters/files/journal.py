"""The journal: every commit as one frame, appended to a file and synced before the reply.

Journals are numbered. The first frame of a file is its *title*, which continues the chain of frames
of the journal before. A snapshot with the same number holds the records as they were when the
journal began; ``snapshot.py``.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from penstock.errors import StoreTooNew
from penstock.storage.keyvalue.adapters.files.frames import (
    HEADER_BYTES,
    NO_HASH,
    Buffer,
    DamagedFrame,
    Frame,
    encode_frame,
    read_frame,
)
from penstock.storage.keyvalue.adapters.store_folder import FILE_MODE
from penstock.storage.randomness import random_bytes

__all__ = [
    "FORMAT",
    "START",
    "ChainEnd",
    "Journal",
    "Title",
    "fsync_folder",
    "journal_path",
    "new_title",
    "read_title",
]

#: Of journals and snapshots; a store with a higher one is refused.
FORMAT: Final = 1


class Title(Struct, frozen=True, kw_only=True):
    """The body of the first frame of a file, in JSON."""

    penstock: Literal["journal", "snapshot"]
    format: int
    number: int
    salt: int
    clean: bool = False
    """Of a snapshot: the store was closed, and every file of the store agrees with it."""
    after: int = 0
    """Of a snapshot: the last frame of the journals that it includes."""
    hash: str = ""
    """Of a snapshot: the hash of that frame, in hexadecimal."""


class ChainEnd(NamedTuple):
    """The last frame of a chain."""

    sequence: int
    hash: bytes


#: Before the first frame of a store.
START: Final = ChainEnd(0, NO_HASH)


def new_title(kind: Literal["journal", "snapshot"], number: int) -> Title:
    """The title of a new file, with a salt of its own."""
    return Title(penstock=kind, format=FORMAT, number=number, salt=int.from_bytes(random_bytes(4)))


def read_title(
    buffer: Buffer, kind: Literal["journal", "snapshot"], number: int
) -> tuple[Title, Frame]:
    """The title of a file and its frame. Raises ``TornFrame`` or ``DamagedFrame``."""
    frame = read_frame(buffer)
    try:
        title = msgspec.json.decode(frame.body, type=Title)
    except msgspec.DecodeError as error:
        raise DamagedFrame(f"the title cannot be decoded: {error}") from error
    if title.format > FORMAT:
        raise StoreTooNew(
            f"The store has files of format {title.format}; this version of Penstock reads up to "
            f"{FORMAT}."
        )
    if (title.penstock, title.number) != (kind, number):
        raise DamagedFrame(f"the file is {title.penstock} {title.number} under another name")
    return title, frame


def journal_path(folder: Path, number: int) -> Path:
    """Where a journal is."""
    return folder / f"{number:010}.journal"


def fsync_folder(path: Path) -> None:
    """Make new, renamed and removed names of a directory survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Journal:
    """The journal that commits are appended to. Used by one thread at a time."""

    def __init__(self, path: Path, number: int, salt: int, size: int, end: ChainEnd) -> None:
        """Continue the file at ``size``; what it has behind that must have been removed."""
        self.number = number
        self.path = path
        self.size = size
        self.end = end
        self._salt = salt
        self._synced = end.sequence
        self._is_broken = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    @classmethod
    def create(cls, folder: Path, number: int, end: ChainEnd) -> Journal:
        """Create the journal that continues the chain after ``end``, durably."""
        path = journal_path(folder, number)
        title = new_title("journal", number)
        body = msgspec.json.encode(title) + b"\n"
        raw, digest = encode_frame(end.sequence, end.sequence, end.hash, body)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(path, flags, FILE_MODE), "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(folder)
        return cls(path, number, title.salt, len(raw), ChainEnd(end.sequence, digest))

    @property
    def is_synced(self) -> bool:
        """Whether every frame is synced."""
        return self._synced == self.end.sequence

    def append(self, body: bytes) -> int:
        """Append one frame; returns where its body is in the file.

        After an error the journal accepts no other frame.
        """
        if self._is_broken:
            raise OSError(errno.EIO, "an earlier write to the journal failed")
        sequence = self.end.sequence + 1
        raw, digest = encode_frame(
            sequence, self._synced, self.end.hash, body, self.size, self._salt
        )
        view = memoryview(raw)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except BaseException:
            self._is_broken = True
            raise
        start = self.size + HEADER_BYTES
        self.size += len(raw)
        self.end = ChainEnd(sequence, digest)
        return start

    def sync(self) -> None:
        """Make every frame survive a power loss."""
        if self._is_broken:
            raise OSError(errno.EIO, "an earlier write to the journal failed")
        if self.is_synced:
            return
        try:
            os.fdatasync(self._descriptor)
        except BaseException:
            # The kernel may have dropped the pages: a second attempt would succeed wrongly.
            self._is_broken = True
            raise
        self._synced = self.end.sequence

    @property
    def is_broken(self) -> bool:
        """Whether a write failed."""
        return self._is_broken

    def close(self) -> None:
        os.close(self._descriptor)
