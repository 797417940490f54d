"""Recovery: reads a snapshot and the journals after it, without changing anything.

The newest snapshot and every journal from its number on are read. Only the last journal may end in
a torn frame, which a crash explains: nobody was told that its commit was synced. Everything else
that is missing or wrong is refused (X1), before the store is changed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from sortedcontainers import SortedDict

from penstock.errors import CommitsMissing, StoreCorrupt
from penstock.storage.keyvalue.adapters.files.frames import (
    Buffer,
    DamagedFrame,
    Frame,
    TornFrame,
    read_frames,
)
from penstock.storage.keyvalue.adapters.files.journal import (
    ChainEnd,
    Commit,
    decode_commit,
    journal_path,
    read_title,
)
from penstock.storage.keyvalue.adapters.files.payload_index import PayloadIndex
from penstock.storage.keyvalue.adapters.files.snapshot import read_snapshot, snapshot_path
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX

__all__ = [
    "Recovered",
    "apply_commit",
    "is_payload",
    "offset_of_key",
    "opened",
    "payloads_of_journals",
    "read_store",
]

_PAYLOAD_KEY_BYTES: Final = len(PAYLOAD_PREFIX) + 8


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
    unfinished: Path | None = None
    """A journal whose creation was interrupted."""


def is_payload(key: bytes) -> bool:
    """Whether a record is a payload, which is stored in a file of its own."""
    return len(key) == _PAYLOAD_KEY_BYTES and key.startswith(PAYLOAD_PREFIX)


def offset_of_key(key: bytes) -> int:
    """The offset in a payload's key, or in a bound of a range of them."""
    if key > PAYLOAD_PREFIX and not key.startswith(PAYLOAD_PREFIX):
        return 2**64 - 1
    return int.from_bytes(key[len(PAYLOAD_PREFIX) :].ljust(8, b"\0"), "big")


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
            for frame in read_frames(buffer, first, title.salt):
                apply_commit(found.records, found.payloads, decode_commit(frame.body))
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


def apply_commit(records: SortedDict[bytes, bytes], payloads: PayloadIndex, commit: Commit) -> None:
    """Change the records and the set of payloads as a commit did."""
    for low, high in commit.removed:
        if low.startswith(PAYLOAD_PREFIX):
            payloads.remove_between(offset_of_key(low), offset_of_key(high))
        else:
            for key in list(records.irange(low, high, (True, False))):
                del records[key]
    for key, value in commit.writes.items():
        if is_payload(key):
            offset = offset_of_key(key)
            if value is None:
                payloads.remove_between(offset, offset + 1)
            else:
                payloads.add(offset)
        elif value is None:
            records.pop(key, None)
        else:
            records[key] = value


def payloads_of_journals(folder: Path, found: Recovered) -> Iterator[tuple[int, bytes]]:
    """Offset and payload of everything that the journals hold and the store still has."""
    for number in range(found.first, found.number + 1):
        with opened(journal_path(folder, number)) as buffer:
            title, first = read_title(buffer, "journal", number)
            if number == found.number and first.end == found.size:
                return  # What follows is torn, if there is anything.
            for frame in read_frames(buffer, first, title.salt):
                yield from _payloads(decode_commit(frame.body).writes, found.payloads)
                if number == found.number and frame.end == found.size:
                    return


def _payloads(
    writes: Mapping[bytes, bytes | None], kept: PayloadIndex
) -> Iterator[tuple[int, bytes]]:
    for key, value in writes.items():
        if value is not None and is_payload(key) and offset_of_key(key) in kept:
            yield offset_of_key(key), value
