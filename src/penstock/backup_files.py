"""Where backups are kept: a local folder, or a path in a bucket through pyarrow.

A file is written once and completely, and never replaced.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import BackupUnavailable, BadUrl
from penstock.extras import importing
from penstock.model.secrets import mask_password

__all__ = ["BackupFiles", "open_files"]

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")


class BackupFiles(ABC):
    """The files of one backup."""

    name: str
    """For messages, without credentials."""

    @abstractmethod
    def names(self) -> list[str]:
        """The files that exist; none if the folder does not."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Write a new file durably."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file that is not part of the backup after all."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The whole file; ``FileNotFoundError`` if there is none."""


class _Folder(BackupFiles):
    """A local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = str(folder)

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unavailable(self.name, error) from error

    def create(self, name: str, data: bytes) -> None:
        with _accessing(self.name):
            self._create(name, data)

    def _create(self, name: str, data: bytes) -> None:
        self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        path = self._folder / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(path, flags, _FILE_MODE), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        with _accessing(self.name):
            (self._folder / name).unlink()

    def read(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unavailable(self.name, error) from error


class _Bucket(BackupFiles):
    """A path in a bucket. An object exists once it is complete."""

    def __init__(self, url: str) -> None:
        self.name = mask_password(url)
        with importing("arrow", "pyarrow"):
            from pyarrow import fs  # noqa: PLC0415  (slow to import)
        self._fs: Any = fs
        try:
            self._system, self._path = fs.FileSystem.from_uri(url)
        except (OSError, ValueError) as error:
            raise _unavailable(self.name, error) from error

    def names(self) -> list[str]:
        selector = self._fs.FileSelector(self._path, allow_not_found=True)
        with _accessing(self.name):
            return sorted(info.base_name for info in self._system.get_file_info(selector))

    def create(self, name: str, data: bytes) -> None:
        with (
            _accessing(self.name),
            self._system.open_output_stream(f"{self._path}/{name}") as stream,
        ):
            stream.write(data)

    def remove(self, name: str) -> None:
        with _accessing(self.name):
            self._system.delete_file(f"{self._path}/{name}")

    def read(self, name: str) -> bytes:
        try:
            with self._system.open_input_stream(f"{self._path}/{name}") as stream:
                content: bytes = stream.readall()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unavailable(self.name, error) from error
        return content


@contextmanager
def _accessing(name: str) -> Iterator[None]:
    """Raise ``BackupUnavailable`` for an error of the file system."""
    try:
        yield
    except OSError as error:
        raise _unavailable(name, error) from error


def _unavailable(name: str, error: Exception) -> BackupUnavailable:
    reason = getattr(error, "strerror", None) or str(error)
    return BackupUnavailable(f"The backup {name} cannot be used: {reason}.", field="backup")


def open_files(place: str) -> BackupFiles:
    """The files at a path, or at ``s3://bucket/path`` and alike."""
    scheme = urlsplit(place).scheme if "://" in place else ""
    if scheme in _SCHEMES:
        return _Bucket(place)
    if scheme not in ("", "file"):
        raise BadUrl(
            f"{mask_password(place)!r} is neither a folder nor one of "
            f"{', '.join(f'{one}://' for one in _SCHEMES)}.",
            field="backup",
        )
    return _Folder(Path(place.removeprefix("file://")))
