"""The file ``PENSTOCK`` in a store directory: the newest commit that is known to be synced (X1).

The first line identifies the directory; older versions of Penstock wrote only that. The second is
the mark as JSON, with the position of RocksDB's manifest so that a truncated one is noticed. The
third is the CRC-32 of the second. The file is replaced by a rename, so a crash leaves either the
old file or the new one.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import CommitsMissing
from penstock.storage.keyvalue.adapters import Mark
from penstock.storage.keyvalue.adapters.store_folder import FILE_MODE

__all__ = ["MARK_FILE", "Manifest", "MarkFile", "current_manifest"]

MARK_FILE: Final = "PENSTOCK"
_TITLE: Final = b"This directory holds a Penstock store.\n"


class Manifest(Struct, frozen=True, order=True):
    """The end of RocksDB's manifest, which is only appended to or replaced by a newer one."""

    number: int
    size: int


class _Content(Struct, frozen=True):
    mark: Mark
    manifest: Manifest


class MarkFile:
    """Reads and replaces the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / MARK_FILE

    @property
    def exists(self) -> bool:
        """Whether there has ever been a synced commit."""
        return self._path.exists()

    def read(self) -> tuple[Mark, Manifest] | None:
        """The mark, or None if there is none yet; ``CommitsMissing`` if the file is damaged."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        if raw == _TITLE:
            return None
        try:
            title, line, checksum = raw.splitlines(keepends=True)
            if title != _TITLE or checksum != _checksum(line):
                raise ValueError("wrong checksum")
            content = msgspec.json.decode(line, type=_Content)
        except (ValueError, msgspec.DecodeError) as error:
            raise CommitsMissing(
                f"The file {self._path} is damaged ({error}), so missing commits cannot be "
                "detected."
            ) from error
        return content.mark, content.manifest

    def write(self, mark: Mark | None) -> None:
        """Replace the file durably. Without a mark it only records that the store has data."""
        content = _TITLE
        if mark is not None:
            manifest = current_manifest(self._folder) or Manifest(0, 0)
            line = msgspec.json.encode(_Content(mark, manifest)) + b"\n"
            content += line + _checksum(line)
        temporary = self._path.with_name(f"{MARK_FILE}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(temporary, flags, FILE_MODE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._path)
        directory = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def current_manifest(folder: Path) -> Manifest | None:
    """The manifest that RocksDB would read, or None if it cannot be read."""
    try:
        name = (folder / "CURRENT").read_text().strip()
        return Manifest(int(name.removeprefix("MANIFEST-")), (folder / name).stat().st_size)
    except (OSError, ValueError):
        return None


def _checksum(line: bytes) -> bytes:
    return f"{zlib.crc32(line):08x}\n".encode()
