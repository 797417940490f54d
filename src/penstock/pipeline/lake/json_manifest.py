"""Reads the manifest of lakes that earlier versions of Penstock wrote, and ends it.

It is a folder of numbered JSON files: commits, and at intervals a checkpoint with the result of
all commits so far. The next run of ``archive`` moves such a lake to Delta. First it writes a last
commit that earlier versions of Penstock refuse to read, which stops their archiving runs. Then it
creates the Delta tables over the same files. The folder stays: it has the digests of those files.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import LakeCorrupt
from penstock.pipeline.lake.commits import Commit, Lake
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import (
    MANIFEST,
    checkpoint_name,
    checkpoint_number,
    commit_name,
    commit_number,
)

__all__ = ["JsonManifest"]

T = TypeVar("T")

#: The version of the last commit: the lake is a pair of Delta tables from then on.
_MOVED: Final = 2


class _Checkpoint(Struct, frozen=True, kw_only=True):
    """The result of all commits up to one."""

    version: int
    at: int
    lake: Lake


class _Versioned(Struct, frozen=True):
    version: int


class _Moved(Struct, frozen=True, kw_only=True):
    """The last commit."""

    version: int
    number: int
    kind: str = "moved"
    run: str
    at: int


_version: Final = msgspec.json.Decoder(_Versioned)
_commit: Final = msgspec.json.Decoder(Commit)
_checkpoint: Final = msgspec.json.Decoder(_Checkpoint)


class JsonManifest:
    """The manifest of a lake of an earlier version."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self) -> tuple[Lake, bool]:
        """The lake, and whether its manifest has ended; an empty lake if there is no manifest."""
        names = self._files.names(MANIFEST)
        points = [number for name in names if (number := checkpoint_number(name)) is not None]
        lake = self._read_checkpoint(max(points)) if points else Lake()
        for number in sorted(n for name in names if (n := commit_number(name)) is not None):
            if number <= lake.number:
                continue
            if number != lake.number + 1:
                raise LakeCorrupt(f"Commit {lake.number + 1} of the manifest is missing.")
            commit = self._read_commit(number)
            if commit is None:
                return lake, True
            lake = replace(lake.after(commit), number=number, history_number=number)
        return lake, False

    def end(self, lake: Lake, run: str, at: int) -> bool:
        """Write the last commit on top of the lake; False if there is another commit by now."""
        last = _Moved(version=_MOVED, number=lake.number + 1, run=run, at=at)
        return self._files.create(commit_name(last.number), msgspec.json.encode(last))

    def _read_commit(self, number: int) -> Commit | None:
        """A commit; None if it is the last one."""
        name = commit_name(number)
        data = self._files.read(name)
        if _version_of(name, data) == _MOVED:
            return None
        commit = _decoded(name, data, _commit)
        if commit.number != number:
            raise LakeCorrupt(f"{name} contains commit {commit.number}.")
        return commit

    def _read_checkpoint(self, number: int) -> Lake:
        name = checkpoint_name(number)
        point = _decoded(name, self._files.read(name), _checkpoint)
        if point.lake.number != number:
            raise LakeCorrupt(f"{name} ends with commit {point.lake.number}.")
        return replace(point.lake, history_number=number)


def _version_of(name: str, data: bytes) -> int:
    # Every version of the format has this field in the same place.
    version = _decoded(name, data, _version).version
    if version > _MOVED:
        raise LakeCorrupt(f"{name} was written by a newer Penstock.")
    return version


def _decoded(name: str, data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LakeCorrupt(f"{name} cannot be read: {error}.") from error
