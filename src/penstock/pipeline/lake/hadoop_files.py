"""The files of a lake on any file system that Hadoop supports, through Spark's JVM.

On S3, the library that writes the Delta logs gets the credentials of Spark's session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

from penstock.errors import BadInput
from penstock.pipeline.lake.files import PARTIAL, Files, unique_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HadoopFiles", "delta_options"]

#: Hadoop's names of S3, and what the Delta library calls it.
_DELTA_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "s3": "s3"}
#: Settings of Hadoop's S3 client, and the same ones of the Delta library.
_S3A_OPTIONS: Final = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint": "AWS_ENDPOINT_URL",
    "endpoint.region": "AWS_REGION",
}


class HadoopFiles(Files):
    """Any file system that Hadoop supports, through Spark's JVM."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001  (PySpark has no public access to Hadoop)
        self._configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001
        try:
            self._system: Any = self._path("").getFileSystem(self._configuration)
        except Py4JJavaError as error:
            scheme = urlsplit(root).scheme
            hint = " s3:// needs no Java client." if scheme in _DELTA_SCHEMES else ""
            raise BadInput(
                f"Spark cannot open {root}: {error.java_exception.toString()}.{hint}", field="lake"
            ) from error

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path) if path else self.root)

    def uri_for_delta(self, path: str) -> str:
        scheme, colon, rest = self.uri(path).partition(":")
        return f"{_DELTA_SCHEMES.get(scheme, scheme)}{colon}{rest}"

    def options_for_delta(self) -> dict[str, str]:
        bucket = urlsplit(self.root).netloc
        found: dict[str, str] = {}
        for name, option in _S3A_OPTIONS.items():
            value = self._configuration.get(
                f"fs.s3a.bucket.{bucket}.{name}"
            ) or self._configuration.get(f"fs.s3a.{name}")
            if value and urlsplit(self.root).scheme in _DELTA_SCHEMES:
                found[option] = str(value)
        return delta_options(found)

    def sync(self, paths: Sequence[str]) -> None:
        """Do nothing: what these file systems have written is durable."""

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
        partial = self._path(f"{folder}/.{name}.{unique_part()}{PARTIAL}")
        stream = self._system.create(partial, True)
        try:
            stream.write(data)
        finally:
            stream.close()
        # On HDFS a rename does not replace an existing file and returns False. Others may replace
        # it, so read the file back.
        if self._system.rename(partial, target) and self.read(path) == data:
            return True
        self._system.delete(partial, False)
        return False

    def names(self, path: str) -> list[str]:
        if not self._system.exists(self._path(path)):
            return []
        found = [status.getPath().getName() for status in self._system.listStatus(self._path(path))]
        return sorted(name for name in found if not name.endswith(PARTIAL))

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


def delta_options(options: dict[str, str]) -> dict[str, str]:
    """Complete the S3 options of the Delta library."""
    endpoint = options.get("AWS_ENDPOINT_URL", "")
    if endpoint and "://" not in endpoint:
        return {**options, "AWS_ENDPOINT_URL": f"https://{endpoint}"}
    return {**options, "AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else options
