"""The manifest: what is in the lake, as a row of commits that are never changed (A1).

What the lake has is what its commits say. A run that is killed leaves files that no commit
names; they are nothing, and the next run removes them. A commit is a file whose number is one
above the last, made whole or not at all, so of two runs one commits and the other notices.

Every run begins with a commit of its own (``begin``). From then on no other run's commits are
taken, until that one begins anew: whatever a run that was thought dead still has in hand, it
cannot bring in any more, and its leftovers may be removed.

Now and then all commits so far are added up in a checkpoint, from which readers go on. Commits
below a checkpoint that is a week old are removed.
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
#: How long commits stay that a checkpoint has added up. No run stands still between looking and
#: committing for so long; one that did would find its commit's number free again.
_KEEP_MS: Final = 7 * 24 * 3600 * 1000


class Checkpoint(Struct, frozen=True, kw_only=True):
    """All commits up to one."""

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
    """Reads the commits of a lake, and adds to them."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._begun: int | None = None
        self.lake = Lake()

    def refresh(self) -> Lake:
        """Read what was committed since the last time."""
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
        """Be the run whose commits are taken, for ``store``; the number of that commit.

        ``check`` raises if the lake, as it is right before the commit, is not this store's.
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
        """Look at the manifest again, and raise ``Conflict`` if another run has begun since."""
        self.refresh()
        if self.lake.begun != self._begun:
            raise _taken()

    @property
    def next(self) -> int:
        """The number of the next commit; data files carry it."""
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
        """Commit a change on top of what this run has seen, or raise ``Conflict``."""
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
        """Write a checkpoint, and remove what one of a week ago has made needless."""
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
            raise LakeCorrupt(f"{name} says that it is commit {commit.number}.")
        return commit

    def _read_checkpoint(self, number: int) -> Checkpoint:
        name = checkpoint_name(number)
        point = _decoded(name, self._files.read(name), _checkpoint)
        if point.lake.number != number:
            raise LakeCorrupt(f"{name} says that it ends with commit {point.lake.number}.")
        return point


def _decoded(name: str, data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        # Whatever else is in it, this is where it is.
        if _version.decode(data).version > VERSION:
            raise LakeCorrupt(f"{name} was written by a newer Penstock.")
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LakeCorrupt(f"{name} cannot be read: {error}.") from error


def _taken() -> Conflict:
    return Conflict("Another run has begun to work on this lake.", field="lake")
