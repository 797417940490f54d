"""The manifest: the content of the lake, as a sequence of immutable commits (A1).

The lake contains exactly what its commits list. A killed run leaves files that no commit lists;
they do not count, and the next run removes them. A commit is a file whose number is one above the
last, created completely or not at all, so of two concurrent runs one commits and the other fails.

Every run begins with a ``begin`` commit. From then on, commits of other runs are refused until
they begin anew: a run that was presumed dead cannot commit its work any more, and its files can
be removed.

At intervals a checkpoint records the result of all commits so far, and readers start from it.
Commits below a checkpoint that is a week old are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from penstock.errors import Conflict, LakeCorrupt
from penstock.model.identity import StoreIdentity
from penstock.pipeline.lake.commits import (
    VERSION,
    Block,
    Change,
    Commit,
    EntryMark,
    File,
    Lake,
    Table,
)
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import (
    MANIFEST,
    checkpoint_name,
    checkpoint_number,
    commit_name,
    commit_number,
)

__all__ = ["Block", "Checkpoint", "Commit", "File", "Lake", "Manifest", "Table"]

T = TypeVar("T")

#: Commits between two checkpoints.
CHECKPOINT_EVERY: Final = 64
#: How long commits below a checkpoint are kept. A run that stalled for longer between reading the
#: manifest and committing would find the number of its commit free again.
_KEEP_MS: Final = 7 * 24 * 3600 * 1000


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The result of all commits up to one."""

    version: int
    at: int
    lake: Lake


class _Versioned(Struct, frozen=True):
    version: int


_encode: Final = msgspec.json.Encoder().encode
_version: Final = msgspec.json.Decoder(_Versioned)
_commit: Final = msgspec.json.Decoder(Commit)
_checkpoint: Final = msgspec.json.Decoder(Checkpoint)


class Manifest:
    """Reads and appends commits of a lake."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._begun: int | None = None
        self.lake = Lake()

    def refresh(self) -> Lake:
        """Read new commits."""
        names = self._files.names(MANIFEST)
        points = [number for name in names if (number := checkpoint_number(name)) is not None]
        newest = max(points, default=0)
        if newest > self.lake.number:
            self.lake = self._read_checkpoint(newest).lake
        numbers = sorted(number for name in names if (number := commit_number(name)) is not None)
        for number in numbers:
            if number > self.lake.number:
                self.lake = self.lake.after(self._read_commit(number))
        return self.lake

    def begin(self, run: str, at: int, store: StoreIdentity, check: Callable[[Lake], None]) -> int:
        """Make this run, for ``store``, the owner of the lake; returns the commit's number.

        ``check`` raises if the lake, as of right before the commit, is not this store's.
        """
        while True:
            check(self.refresh())
            commit = Commit(
                version=VERSION, number=self.next, run=run, at=at, kind="begin", store=store
            )
            if self._write(commit):
                self._begun = commit.number
                return commit.number

    def hold(self) -> None:
        """Read new commits, and raise ``Conflict`` if another run has begun since."""
        self.refresh()
        if self.lake.begun != self._begun:
            raise _taken()

    @property
    def next(self) -> int:
        """The number of the next commit; data files are named after it."""
        return self.lake.number + 1

    def commit(
        self,
        kind: Change,
        run: str,
        at: int,
        *,
        start: int | None = None,
        end: int | None = None,
        entries: int = 0,
        quiet: bool = False,
        settled: bool = False,
        added: Sequence[File] = (),
        removed: Iterable[str] = (),
        last: EntryMark | None = None,
    ) -> Lake:
        """Commit a change on top of the commits read so far, or raise ``Conflict``."""
        self.hold()
        commit = Commit(
            version=VERSION,
            number=self.next,
            run=run,
            at=at,
            kind=kind,
            start=start,
            end=end,
            entries=entries,
            quiet=quiet,
            settled=settled,
            added=tuple(added),
            removed=tuple(removed),
            last=last,
        )
        if not self._write(commit):
            raise _taken()
        return self.lake

    def _write(self, commit: Commit) -> bool:
        after = self.lake.after(commit)
        if not self._files.create(commit_name(commit.number), _encode(commit)):
            return False
        self.lake = after
        if commit.number % CHECKPOINT_EVERY == 0:
            self._add_up(commit.at)
        return True

    def _add_up(self, at: int) -> None:
        """Write a checkpoint, and remove commits below one that is a week old."""
        point = Checkpoint(version=VERSION, at=at, lake=self.lake)
        self._files.create(checkpoint_name(self.lake.number), _encode(point))
        names = self._files.names(MANIFEST)
        points = sorted(n for name in names if (n := checkpoint_number(name)) is not None)
        old = 0
        for number in points[:-1]:
            if self._read_checkpoint(number).at > at - _KEEP_MS:
                break
            old = number
        needless = [
            f"{MANIFEST}/{name}"
            for name in names
            if 0 < (commit_number(name) or checkpoint_number(name) or 0) <= old
        ]
        self._files.remove(needless)

    def _read_commit(self, number: int) -> Commit:
        name = commit_name(number)
        commit = _decoded(name, self._files.read(name), _commit)
        if commit.number != number:
            raise LakeCorrupt(f"{name} contains commit {commit.number}.")
        return commit

    def _read_checkpoint(self, number: int) -> Checkpoint:
        name = checkpoint_name(number)
        point = _decoded(name, self._files.read(name), _checkpoint)
        if point.lake.number != number:
            raise LakeCorrupt(f"{name} ends with commit {point.lake.number}.")
        return point


def _decoded(name: str, data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        # Every version of the format has this field in the same place.
        if _version.decode(data).version > VERSION:
            raise LakeCorrupt(f"{name} was written by a newer Penstock.")
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LakeCorrupt(f"{name} cannot be read: {error}.") from error


def _taken() -> Conflict:
    return Conflict("Another run has taken over this lake.", field="lake")
