"""The files of a lake: in a local folder, in a bucket, or on any file system that Spark supports.

A path without a scheme, or with ``file:``, is a local folder, and ``s3:`` a bucket; neither needs
Spark. Everything else goes through Hadoop's FileSystem in Spark's JVM. Paths are relative to the
lake, with ``/``.

The Delta logs of the lake are written by another library, which gets its own URI of the same place,
and on S3 the credentials of Spark's session.
"""

from __future__ import annotations

import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from penstock.errors import BadInput
from penstock.pipeline.lake.parquet_store import ParquetStore
from penstock.pipeline.lake.s3_location import parse_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PARTIAL", "Files", "LocalFiles", "open_files", "unique_part"]

#: Suffix of a file that is not complete; readers ignore it.
PARTIAL: Final = ".partial"
#: Spark interprets these characters in a path as a pattern.
_PATTERN: Final = frozenset("*?[]{}\\")


class Files(ABC):
    """The file system operations that a lake needs."""

    root: str
    """The path of the lake for Spark."""
    store: ParquetStore | None = None
    """The same folder for Spark's Python processes; None: they cannot reach it."""
    needs_store: bool = False
    """Whether Spark itself cannot reach the folder."""

    def uri(self, path: str) -> str:
        """A path below the lake, for Spark."""
        return f"{self.root.rstrip('/')}/{path}"

    @abstractmethod
    def uri_for_delta(self, path: str) -> str:
        """A path below the lake, for the library that reads and writes Delta logs."""

    @abstractmethod
    def options_for_delta(self) -> dict[str, str]:
        """What that library needs to reach the file system, such as credentials."""

    @abstractmethod
    def sync(self, paths: Sequence[str]) -> None:
        """Make files durable that another library wrote."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Read the whole file; raises ``FileNotFoundError`` if there is none."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Create the file completely; returns False, changing nothing, if it exists."""

    @abstractmethod
    def names(self, path: str) -> list[str]:
        """The names of the files and folders in a folder; empty if it does not exist.

        Incomplete files are left out.
        """

    @abstractmethod
    def walk(self, path: str) -> dict[str, int]:
        """The sizes of all files below a folder, at any depth, by path."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Move a file durably to a path that does not exist yet, creating folders as needed."""

    @abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; missing ones are ignored. Folders that become empty may be removed too."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a folder with its content, if it exists."""


class LocalFiles(Files):
    """A local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.root = str(self._folder)
        self.store = ParquetStore(self.root)

    def uri_for_delta(self, path: str) -> str:
        return str(self._folder / path)

    def options_for_delta(self) -> dict[str, str]:
        return {}

    def sync(self, paths: Sequence[str]) -> None:
        folders: set[Path] = set()
        for path in paths:
            with (self._folder / path).open("rb") as file:
                os.fsync(file.fileno())
            # The other library may have created folders too.
            folders.update(self._folder / folder for folder in Path(path).parents)
        for folder in folders:
            _sync_folder(folder)

    def read(self, path: str) -> bytes:
        return (self._folder / path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        target = self._folder / path
        _make_folder(target.parent)
        partial = target.with_name(f".{target.name}.{unique_part()}{PARTIAL}")
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                # A link, unlike a rename, does not replace an existing file.
                os.link(partial, target)
            except (FileExistsError, FileNotFoundError):
                # The file exists, or a run that began since has removed the partial file.
                return False
        finally:
            partial.unlink(missing_ok=True)
        _sync_folder(target.parent)
        return True

    def names(self, path: str) -> list[str]:
        try:
            found = os.listdir(self._folder / path)
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.endswith(PARTIAL))

    def walk(self, path: str) -> dict[str, int]:
        return dict(sorted(self._found(self._folder / path)))

    def _found(self, folder: Path) -> Iterator[tuple[str, int]]:
        for top, _, names in os.walk(folder):
            for name in names:
                file = Path(top) / name
                try:
                    size = file.stat().st_size
                except FileNotFoundError:
                    continue  # Another run has removed it meanwhile.
                yield file.relative_to(self._folder).as_posix(), size

    def move(self, source: str, target: str) -> None:
        there = self._folder / target
        with (self._folder / source).open("rb") as file:
            os.fsync(file.fileno())
        _make_folder(there.parent)
        os.link(self._folder / source, there)
        _sync_folder(there.parent)
        os.unlink(self._folder / source)

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            file = self._folder / path
            file.unlink(missing_ok=True)
            self._prune(file.parent)

    def _prune(self, folder: Path) -> None:
        while folder != self._folder:
            try:
                folder.rmdir()
            except OSError:
                return  # It is not empty, or is gone already.
            folder = folder.parent

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(self._folder / path, ignore_errors=True)


def open_files(lake: str, spark: Callable[[], SparkSession] | None = None) -> Files:
    """Open the lake at a path or URI; ``spark`` is called only if that needs Spark."""
    parts = urlsplit(lake)
    if parts.scheme == "s3":
        from penstock.pipeline.lake.s3_files import S3Files  # noqa: PLC0415  (slow to import)

        return S3Files(parse_s3(lake))
    if not lake or parts.query or parts.fragment:
        raise BadInput(f"{lake!r} is not a path or URI of a folder.", field="lake")
    if _PATTERN.intersection(lake):
        raise BadInput(f"{lake!r} contains one of {' '.join(sorted(_PATTERN))}.", field="lake")
    if parts.scheme in ("", "file"):
        return LocalFiles(Path(lake if not parts.scheme else unquote(parts.path)))
    if spark is None:
        raise BadInput(f"The lake {lake} can only be read through Spark.", field="lake")
    from penstock.pipeline.lake.hadoop_files import HadoopFiles  # noqa: PLC0415  (needs a JVM)

    return HadoopFiles(spark(), lake)


def unique_part() -> str:
    """A part of a name that no other thread on this machine uses at the same time."""
    return f"{os.getpid()}-{threading.get_ident()}"


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make the names in the folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
