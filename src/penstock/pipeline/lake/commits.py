"""What is in a lake, as values: its files, the commits that change it, and what they add up to."""

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
#: Of the format. A reader refuses what is newer.
VERSION: Final = 1


class File(Struct, frozen=True, omit_defaults=True):
    """One Parquet file, and what makes sure that it is the one that was written."""

    path: str
    table: Table
    rows: int
    bytes: int
    """Its size on disk."""
    first: int
    last: int
    """The lowest and the highest offset (message id, of histories) in it."""
    digest: str
    """Over all rows, whatever their order; see ``checks``."""
    payload_bytes: int = 0
    largest: int = 0
    """Bytes of the largest payload."""


class Commit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of the lake."""

    version: int
    number: int
    run: str
    at: int
    kind: Literal["begin", "archive", "history", "compact"]
    start: int | None = None
    """The offsets that were archived, or whose histories were."""
    end: int | None = None
    entries: int = 0
    """Entries of the log in that range."""
    quiet: bool = False
    settled: bool = False
    """Of histories: see :class:`Block`."""
    added: tuple[File, ...] = ()
    removed: tuple[str, ...] = ()
    store: StoreIdentity | None = None
    """Of ``begin``: the store that the run archives."""
    last: EntryMark | None = None
    """Of ``archive``: the last entry of the range, if it has one."""


class EntryMark(Struct, frozen=True):
    """What tells one entry of a log from any other that might be at its offset."""

    offset: int
    id: int
    topic: str
    published_at: int
    size: int
    checksum: int


class Block(Struct, frozen=True, omit_defaults=True):
    """A range of offsets whose messages are in the lake, and what is known of their histories."""

    start: int
    end: int
    entries: int
    archived_at: int
    read_at: int | None = None
    """When the histories were read last; None: never."""
    quiet: bool = False
    """Then nothing more happened to these messages by itself: all were done, expired or gone."""
    settled: bool = False
    """The messages had left the store: nothing can happen to them any more."""


class Lake(Struct, frozen=True, omit_defaults=True):
    """What is in the lake after a number of commits."""

    number: int = 0
    """The last commit."""
    begun: int = 0
    """The commit with which the run began whose commits are taken now."""
    through: int = 0
    """Every entry of the log below it, from ``began`` on, is in ``messages``."""
    began: int | None = None
    """The offset that the archive begins with."""
    store: StoreIdentity | None = None
    """Whose log is archived here; None: an older Penstock did not say."""
    last: EntryMark | None = None
    """The last entry that was archived."""
    blocks: tuple[Block, ...] = ()
    files: dict[str, File] = {}

    def of(self, table: str) -> list[File]:
        """The files of one table, by offset."""
        found = [file for file in self.files.values() if file.table == table]
        return sorted(found, key=lambda file: (file.first, file.path))

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Ranges between the first and the last offset that were left out (skip_missing)."""
        for before, after in pairwise(self.blocks):
            if before.end < after.start:
                yield before.end, after.start

    def after(self, commit: Commit) -> Lake:
        """The lake with one commit more."""
        if commit.number != self.number + 1:
            raise LakeCorrupt(f"Commit {self.number + 1} of the manifest is missing.")
        files = dict(self.files)
        for path in commit.removed:
            if files.pop(path, None) is None:
                raise LakeCorrupt(f"Commit {commit.number} removes {path}, which is not there.")
        for file in commit.added:
            if file.path in files:
                raise LakeCorrupt(f"Commit {commit.number} adds {file.path}, which is there.")
            files[file.path] = file
        lake = replace(self, number=commit.number, files=files)
        match commit.kind:
            case "begin":
                return replace(lake, begun=commit.number, store=commit.store or lake.store)
            case "archive":
                return _archived(lake, commit)
            case "history":
                return replace(lake, blocks=_read(self.blocks, commit))
            case "compact":
                return lake


def _range(commit: Commit) -> tuple[int, int]:
    if commit.start is None or commit.end is None:
        raise LakeCorrupt(f"Commit {commit.number} does not say which offsets it is about.")
    return commit.start, commit.end


def _archived(lake: Lake, commit: Commit) -> Lake:
    start, end = _range(commit)
    if start < lake.through or end <= start:
        raise LakeCorrupt(f"Commit {commit.number} archives {start} to {end} again.")
    return replace(
        lake,
        through=end,
        began=start if lake.began is None else lake.began,
        last=commit.last or lake.last,
        blocks=(*lake.blocks, Block(start, end, commit.entries, commit.at)),
    )


def _read(blocks: Sequence[Block], commit: Commit) -> tuple[Block, ...]:
    """The blocks whose histories were read become one; so do neighbours that are settled."""
    start, end = _range(commit)
    inside = [block for block in blocks if start <= block.start and block.end <= end]
    if not inside or (inside[0].start, inside[-1].end) != (start, end):
        raise LakeCorrupt(f"Commit {commit.number} has histories of offsets that are not there.")
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
