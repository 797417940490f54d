"""The state of a lake as values: its files, the commits that change it, and their result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import LakeCorrupt
from penstock.model.identity import StoreIdentity

__all__ = ["VERSION", "Block", "Change", "Commit", "EntryMark", "File", "Lake", "Table"]

Table: TypeAlias = Literal["messages", "history"]
Change: TypeAlias = Literal["archive", "history", "compact"]
#: The version of the format. Readers refuse newer ones.
VERSION: Final = 1


class File(Struct, frozen=True, omit_defaults=True):
    """One Parquet file, with the data to verify it."""

    path: str
    table: Table
    rows: int
    bytes: int
    """Its size on disk."""
    first: int
    last: int
    """The lowest and the highest offset in it (for histories, message id)."""
    digest: str
    """Over all rows, in any order; see ``checks``."""
    payload_bytes: int = 0
    largest: int = 0
    """Bytes of the largest payload."""
    topics: tuple[str, str] | None = None
    """The lowest and the highest topic; None: not known."""
    times: tuple[int, int] | None = None
    """The earliest and the latest time, in milliseconds; None: not known."""


class Commit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of the lake."""

    version: int = VERSION
    number: int = 0
    """In the manifest of an earlier version, the number of the commit."""
    run: str
    at: int
    kind: Literal["begin", "archive", "history", "compact"]
    start: int | None = None
    """The archived offsets, or those whose histories were read."""
    end: int | None = None
    entries: int = 0
    """Log entries in that range."""
    quiet: bool = False
    settled: bool = False
    """For histories: see :class:`Block`."""
    added: tuple[File, ...] = ()
    removed: tuple[str, ...] = ()
    store: StoreIdentity | None = None
    """For ``begin``: the store that the run archives."""
    last: EntryMark | None = None
    """For ``archive``: the last entry of the range, if it has any."""


class EntryMark(Struct, frozen=True):
    """Identifies an entry, so that another one at the same offset is recognized."""

    offset: int
    id: int
    topic: str
    published_at: int
    size: int
    checksum: int


class Block(Struct, frozen=True, omit_defaults=True):
    """A range of offsets whose messages are in the lake, and the state of their histories."""

    start: int
    end: int
    entries: int
    archived_at: int
    read_at: int | None = None
    """When the histories were last read; None: never."""
    quiet: bool = False
    """At that time all deliveries were done, expired or gone: nothing more happens by itself."""
    settled: bool = False
    """The messages have left the store: their histories cannot change any more."""


class Lake(Struct, frozen=True, omit_defaults=True):
    """The state of the lake after a number of commits."""

    number: int = 0
    """The number of the last commit of ``messages``; 0: there is no lake."""
    history_number: int = 0
    """The same of ``history``."""
    through: int = 0
    """Every log entry below it, from ``began`` on, is in ``messages``."""
    began: int | None = None
    """The first offset of the archive."""
    store: StoreIdentity | None = None
    """The store whose log is archived here; None: written by an older version."""
    last: EntryMark | None = None
    """The last archived entry."""
    blocks: tuple[Block, ...] = ()
    files: dict[str, File] = {}

    def number_of(self, table: str) -> int:
        """The number of the last commit of a table; data files are named after the next."""
        return self.history_number if table == "history" else self.number

    def of(self, table: str) -> list[File]:
        """The files of one table, by offset."""
        found = [file for file in self.files.values() if file.table == table]
        return sorted(found, key=lambda file: (file.first, file.path))

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Ranges between the first and the last offset that were skipped (skip_missing)."""
        for before, after in pairwise(self.blocks):
            if before.end < after.start:
                yield before.end, after.start

    def after(self, commit: Commit) -> Lake:
        """The lake after one more commit, still with the number of the last one."""
        files = dict(self.files)
        for path in commit.removed:
            if files.pop(path, None) is None:
                raise LakeCorrupt(f"A commit removes {path}, which does not exist.")
        for file in commit.added:
            if file.path in files:
                raise LakeCorrupt(f"A commit adds {file.path}, which exists already.")
            files[file.path] = file
        lake = replace(self, files=files)
        match commit.kind:
            case "begin":
                return replace(lake, store=commit.store or lake.store)
            case "archive":
                return _archived(lake, commit)
            case "history":
                return replace(lake, blocks=_read(self.blocks, commit))
            case "compact":
                return lake


def _range(commit: Commit) -> tuple[int, int]:
    if commit.start is None or commit.end is None:
        raise LakeCorrupt(f"A commit of the kind {commit.kind} has no range of offsets.")
    return commit.start, commit.end


def _archived(lake: Lake, commit: Commit) -> Lake:
    start, end = _range(commit)
    if start < lake.through or end <= start:
        raise LakeCorrupt(f"A commit archives {start} to {end} again.")
    return replace(
        lake,
        through=end,
        began=start if lake.began is None else lake.began,
        last=commit.last or lake.last,
        blocks=(*lake.blocks, Block(start, end, commit.entries, commit.at)),
    )


def _read(blocks: Sequence[Block], commit: Commit) -> tuple[Block, ...]:
    """Merge the blocks whose histories were read, and adjacent settled blocks."""
    start, end = _range(commit)
    inside = [block for block in blocks if start <= block.start and block.end <= end]
    if not inside or (inside[0].start, inside[-1].end) != (start, end):
        raise LakeCorrupt(f"A commit has histories of {start} to {end}, not all in the lake.")
    merged = Block(
        start,
        end,
        sum(block.entries for block in inside),
        max(block.archived_at for block in inside),
        commit.at,
        commit.quiet,
        commit.settled,
    )
    after: list[Block] = []
    for block in (
        *(one for one in blocks if one.end <= start),
        merged,
        *(one for one in blocks if one.start >= end),
    ):
        if after and block.settled and after[-1].settled and after[-1].end == block.start:
            last = after.pop()
            after.append(replace(block, start=last.start, entries=last.entries + block.entries))
        else:
            after.append(block)
    return tuple(after)
