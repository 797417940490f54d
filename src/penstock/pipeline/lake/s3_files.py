"""The files of a lake in an S3 bucket, through pyarrow, without Hadoop's client.

An object exists once it is complete, and is durable then. There is no rename: a file is copied
within the bucket and the original removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from penstock.pipeline.lake.files import PARTIAL, Files
from penstock.pipeline.lake.parquet_store import ParquetStore, explained, of_s3
from penstock.pipeline.lake.s3_location import S3Location

__all__ = ["S3Files"]

T = TypeVar("T")

#: Options of the Delta library.
_DELTA_OPTIONS: Final = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
}


class S3Files(Files):
    """A folder in a bucket."""

    store: ParquetStore
    needs_store = True

    def __init__(self, location: S3Location) -> None:
        self._location = location
        self.root = location.name
        self.store = of_s3(location)
        with self._explaining():
            self._system: Any = self.store.system()
            self._check()

    def _check(self) -> None:
        """Fail before Spark starts if the bucket cannot be used."""
        from pyarrow import fs  # noqa: PLC0415  (slow to import)

        # The listing has the reason of a refusal, but no error for a bucket that is not there.
        self._system.get_file_info(fs.FileSelector(self.store.root, allow_not_found=True))
        if self._system.get_file_info(self._location.bucket).type == fs.FileType.NotFound:
            raise OSError(f"Bucket {self._location.bucket} not found")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise explained(self._location, error) from error

    def _try(self, work: Callable[[], T]) -> T:
        with self._explaining():
            return work()

    def uri_for_delta(self, path: str) -> str:
        return self.uri(path)

    def options_for_delta(self) -> dict[str, str]:
        found = {
            option: value
            for name, option in _DELTA_OPTIONS.items()
            if (value := getattr(self._location, name)) is not None
        }
        if (self._location.endpoint or "").startswith("http://"):
            found["AWS_ALLOW_HTTP"] = "true"
        return found

    def sync(self, paths: Sequence[str]) -> None:
        """Do nothing: an object is durable when it exists."""

    def read(self, path: str) -> bytes:
        with self._explaining(), self.store.open(path) as stream:
            content: bytes = stream.readall()
        return content

    def create(self, path: str, data: bytes) -> bool:
        # Not atomic. What must be decided between two writers is a commit of a Delta log.
        if self._exists(path):
            return False
        with self._explaining(), self.store.create(path) as stream:
            stream.write(data)
        return True

    def _exists(self, path: str) -> bool:
        from pyarrow import fs  # noqa: PLC0415  (slow to import)

        info = self._try(lambda: self._system.get_file_info(self.store.path(path)))
        return bool(info.type == fs.FileType.File)

    def names(self, path: str) -> list[str]:
        found = [info.base_name for info in self._infos(path, recursive=False)]
        return sorted(name for name in found if not name.endswith(PARTIAL))

    def walk(self, path: str) -> dict[str, int]:
        start = len(self.store.root) + 1
        infos = self._infos(path, recursive=True)
        return dict(sorted((info.path[start:], info.size) for info in infos if info.is_file))

    def _infos(self, path: str, *, recursive: bool) -> list[Any]:
        from pyarrow import fs  # noqa: PLC0415  (slow to import)

        selector = fs.FileSelector(self.store.path(path), allow_not_found=True, recursive=recursive)
        return list(self._try(lambda: self._system.get_file_info(selector)))

    def move(self, source: str, target: str) -> None:
        if self._exists(target):
            raise FileExistsError(target)
        with self._explaining():
            self._system.copy_file(self.store.path(source), self.store.path(target))
        self.remove([source])

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError), self._explaining():
                self._system.delete_file(self.store.path(path))

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError), self._explaining():
            self._system.delete_dir(self.store.path(path))
