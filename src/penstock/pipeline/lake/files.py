"""The files of a lake, wherever it is: a folder of this machine, or anything that Spark reads.

A path without a scheme, or with ``file:``, is a folder, and needs no Spark. Everything else goes
through Hadoop's FileSystem in Spark's JVM. Paths below are relative to the lake, with ``/``.

``create`` makes a file whole or not at all, and refuses where there is one: that is what commits
of the manifest stand on. A local file system and HDFS keep that; an object store keeps it as
far as its connector does, so there one archiving run at a time is the operator's business.
"""

from __future__ import annotations

import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from penstock.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Files", "HadoopFiles", "LocalFiles", "open_files"]

#: What a file is called until all of it is there; readers pass it by.
_PARTIAL: Final = ".partial"
#: Spark takes these in a path for a pattern.
_PATTERN: Final = frozenset("*?[]{}\\")


class Files(ABC):
    """What a lake needs of a file system."""

    root: str
    """The lake, as Spark takes it."""

    def uri(self, path: str) -> str:
        """A path below the lake, as Spark takes it."""
        return f"{self.root.rstrip('/')}/{path}"

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file. ``FileNotFoundError`` if there is none."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Make the file, whole; False, and nothing, if there is one of that name."""

    @abstractmethod
    def names(self, path: str) -> list[str]:
        """The files and folders in a folder, by name; none if there is no such folder.

        Files that were not finished are not among them.
        """

    @abstractmethod
    def walk(self, path: str) -> dict[str, int]:
        """All files below a folder, at any depth, with their sizes, by path."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Move a file, durably, to where none is, making folders on the way."""

    @abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; what is not there is fine. Folders that are left empty may go too."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a folder and all that is in it, if it is there."""


class LocalFiles(Files):
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.root = str(self._folder)

    def read(self, path: str) -> bytes:
        return (self._folder / path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        target = self._folder / path
        _make_folder(target.parent)
        partial = target.with_name(f".{target.name}.{_unique()}{_PARTIAL}")
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                # A link, unlike a rename, refuses to take the place of a file.
                os.link(partial, target)
            except (FileExistsError, FileNotFoundError):
                # There is one; a run that began since may have tidied up ours, too.
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
        return sorted(name for name in found if not name.endswith(_PARTIAL))

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
                return  # There is something in it, or it is gone already.
            folder = folder.parent

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(self._folder / path, ignore_errors=True)


class HadoopFiles(Files):
    """Anything that Hadoop has a file system for, through Spark's JVM."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001  (PySpark gives no other way to Hadoop)
        configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._system: Any = self._path("").getFileSystem(configuration)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path) if path else self.root)

    def read(self, path: str) -> bytes:
        if not self._system.exists(self._path(path)):
            raise FileNotFoundError(path)
        stream = self._system.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        if self._system.exists(target):
            return False
        folder, _, name = path.rpartition("/")
        partial = self._path(f"{folder}/.{name}.{_unique()}{_PARTIAL}")
        stream = self._system.create(partial, True)
        try:
            stream.write(data)
        finally:
            stream.close()
        # HDFS does not let a rename take the place of a file, and says False. Others may let
        # it, so what is there is looked at.
        if self._system.rename(partial, target) and self.read(path) == data:
            return True
        self._system.delete(partial, False)
        return False

    def names(self, path: str) -> list[str]:
        if not self._system.exists(self._path(path)):
            return []
        found = [status.getPath().getName() for status in self._system.listStatus(self._path(path))]
        return sorted(name for name in found if not name.endswith(_PARTIAL))

    def walk(self, path: str) -> dict[str, int]:
        if not self._system.exists(self._path(path)):
            return {}
        top = self._system.makeQualified(self._path("")).toString().rstrip("/") + "/"
        files = self._system.listFiles(self._path(path), True)
        found: dict[str, int] = {}
        while files.hasNext():
            status = files.next()
            found[status.getPath().toString().removeprefix(top)] = int(status.getLen())
        return dict(sorted(found.items()))

    def move(self, source: str, target: str) -> None:
        there = self._path(target)
        self._system.mkdirs(there.getParent())
        if self._system.exists(there) or not self._system.rename(self._path(source), there):
            raise FileExistsError(target)

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._system.delete(self._path(path), False)

    def remove_tree(self, path: str) -> None:
        self._system.delete(self._path(path), True)


def open_files(lake: str, spark: Callable[[], SparkSession] | None = None) -> Files:
    """The files of the lake at a path or URI; ``spark`` is asked for where that needs it."""
    parts = urlsplit(lake)
    if not lake or parts.query or parts.fragment:
        raise BadInput(f"{lake!r} is no path or URI of a folder.", field="lake")
    if _PATTERN.intersection(lake):
        raise BadInput(f"{lake!r} has one of {' '.join(sorted(_PATTERN))} in it.", field="lake")
    if parts.scheme in ("", "file"):
        return LocalFiles(Path(lake if not parts.scheme else unquote(parts.path)))
    if spark is None:
        raise BadInput(f"The lake {lake} is read through Spark only.", field="lake")
    return HadoopFiles(spark(), lake)


def _unique() -> str:
    """A part of a name that nobody else on this machine gives at the same time."""
    return f"{os.getpid()}-{threading.get_ident()}"


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each as durable as what will be in it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make the names in it as durable as the files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
