"""Recovery: reads a snapshot and the journals after it, without changing anything.

The newest snapshot and every journal from its number on are read. Only the last journal may end in
a torn frame, which a crash explains: its commit was never acknowledged. Everything else
that is missing or wrong is refused (X1), before the store is changed.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from sortedcontainers import SortedDict

from penstock.errors import CommitsMissing, StoreCorrupt
from penstock.storage.keyvalue.adapters.files.commit_body import (
    CommitHead,
    decode_commit,
    offset_of_key,
)
from penstock.storage.keyvalue.adapters.files.frames import (
    Buffer,
    DamagedFrame,
    Frame,
    TornFrame,
    read_frames,
)
from penstock.storage.keyvalue.adapters.files.journal import (
    ChainEnd,
    journal_path,
    read_title,
)
from penstock.storage.keyvalue.adapters.files.payload_index import PayloadIndex
from penstock.storage.keyvalue.adapters.files.payload_region import JournalSource, PayloadRegion
from penstock.storage.keyvalue.adapters.files.snapshot import read_snapshot, snapshot_path
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX

__all__ = [
    "Recovered",
    "apply_commit",
    "opened",
    "read_store",
]


class Recovered(Struct):
    """What the files of a store hold."""

    #: The journal to continue, the length of its intact part, and the number of its frames.
    number: int
    size: int
    frames: int
    salt: int
    end: ChainEnd
    first: int
    """The number of the snapshot."""
    is_clean: bool
    """The store was closed, so the message files and the directories of queues are complete."""
    records: SortedDict[bytes, bytes]
    payloads: PayloadIndex
    behind: list[PayloadRegion]
    """Where the journals have the payloads whose files may be incomplete."""
    unfinished: Path | None = None
    """A journal whose creation was interrupted."""


@contextmanager
def opened(path: Path) -> Iterator[Buffer]:
    """The content of a file; ``CommitsMissing`` if it does not exist."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise CommitsMissing(f"The file {path} is missing.") from None
    with file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def read_store(folder: Path, *, salvaging: bool = False) -> Recovered:
    """Read the store whose journals are in ``folder``. Raises ``StoreCorrupt``.

    ``salvaging`` keeps everything up to the first damaged or missing frame.
    """
    first = max(_numbers(folder, "snapshot"), default=0)
    if not first:
        raise CommitsMissing(f"The directory {folder} has no snapshot.")
    found = _read_snapshot(folder, first)
    last = max(_numbers(folder, "journal"), default=0)
    for number in range(first, max(first, last) + 1):
        try:
            if not _read_journal(folder, number, found, is_last=number == last):
                break
        except StoreCorrupt:
            if not salvaging or (number == first and not found.size):
                raise
            break
    return found


def _numbers(folder: Path, kind: str) -> list[int]:
    return [int(path.stem) for path in folder.glob(f"*.{kind}") if path.stem.isdecimal()]


def _read_snapshot(folder: Path, number: int) -> Recovered:
    path = snapshot_path(folder, number)
    records: dict[bytes, bytes] = {}
    payloads = PayloadIndex()
    with opened(path) as buffer:
        try:
            title, parts = read_snapshot(buffer, number)
            for part in parts:
                records |= part.records
                payloads.extend(part.offsets)
        except DamagedFrame as error:
            raise StoreCorrupt(f"The snapshot {path} is damaged: {error}.") from error
    end = ChainEnd(title.after, bytes.fromhex(title.hash))
    return Recovered(
        number=number,
        size=0,
        frames=0,
        salt=0,
        end=end,
        first=number,
        is_clean=title.clean,
        records=SortedDict(records),
        payloads=payloads,
        behind=[],
    )


def _read_journal(folder: Path, number: int, found: Recovered, *, is_last: bool) -> bool:
    """Apply a journal. Returns False for one that was being created during a crash."""
    path = journal_path(folder, number)
    with opened(path) as buffer:
        try:
            title, first = read_title(buffer, "journal", number)
        except (DamagedFrame, TornFrame) as error:
            if isinstance(error, TornFrame) and is_last and number > found.first:
                found.unfinished = path
                return False
            raise StoreCorrupt(f"The journal {path} is damaged: {error}.") from error
        _check_continues(path, first, found.end)
        found.number, found.salt, found.frames = number, title.salt, 0
        found.size, found.end = first.end, ChainEnd(first.sequence, first.hash)
        try:
            source = JournalSource(path)
            for frame in read_frames(buffer, first, title.salt):
                commit = decode_commit(frame.body)
                apply_commit(found.records, found.payloads, commit.head)
                if commit.payloads:
                    offsets = array("Q", commit.head.offsets)
                    start = frame.start + commit.start
                    found.behind.append(PayloadRegion(source, start, offsets, commit.ends, True))
                found.size, found.end = frame.end, ChainEnd(frame.sequence, frame.hash)
                found.frames += 1
        except TornFrame as error:
            if not is_last:
                raise CommitsMissing(
                    f"The end of the journal {path} is missing: {error}."
                ) from error
        except DamagedFrame as error:
            raise StoreCorrupt(
                f"The journal {path} is damaged at byte {found.size}: {error}."
            ) from error
    if found.frames:
        found.is_clean = False
    return True


def _check_continues(path: Path, first: Frame, end: ChainEnd) -> None:
    if first.sequence != end.sequence:
        raise CommitsMissing(
            f"The journal {path} begins after frame {first.sequence}, but the files before it end "
            f"with frame {end.sequence}."
        )
    if first.previous != end.hash:
        raise CommitsMissing(
            f"The journal {path} does not continue the files before it: some files belong to "
            "another copy of the store."
        )


def apply_commit(
    records: SortedDict[bytes, bytes], payloads: PayloadIndex, head: CommitHead
) -> None:
    """Change the records and the set of payloads as a commit did."""
    for low, high in head.removed:
        if low.startswith(PAYLOAD_PREFIX):
            payloads.remove_between(offset_of_key(low), offset_of_key(high))
        else:
            for key in list(records.irange(low, high, (True, False))):
                del records[key]
    for offset in head.offsets:
        payloads.add(offset)
    for key, value in head.writes.items():
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value
