"""Reads and writes Parquet files in Spark's Python processes, through pyarrow.

Spark itself needs a Java client of an object store, which a Python installation does not have. A
``ParquetStore`` is the folder of a lake as pyarrow opens it; it travels to the workers.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from penstock.errors import BadInput, PenstockError, PipelineError
from penstock.pipeline.lake.s3_location import S3Location

__all__ = ["ParquetStore", "explained", "of_s3"]

_CONNECT_S: Final = 5
_REQUEST_S: Final = 60
_ATTEMPTS: Final = 5
#: What the client of S3 calls a wrong credential.
_REFUSED: Final = (
    "ACCESS_DENIED",
    "EXPIRED_TOKEN",
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "INVALID_SIGNATURE",
    "MISSING_AUTHENTICATION_TOKEN",
    "SIGNATURE_DOES_NOT_MATCH",
    "UNRECOGNIZED_CLIENT",
    "InvalidToken",
    "HTTP response code 403",
)


class ParquetStore(Struct, frozen=True):
    """A folder of a lake: local, or in a bucket of S3."""

    root: str
    """The path of the lake for pyarrow."""
    s3: S3Location | None = None

    def system(self) -> Any:
        """The file system; one per process."""
        return _system(self.s3)

    def path(self, path: str) -> str:
        """A path below the lake, for the file system."""
        return f"{self.root}/{path}" if path else self.root

    def create(self, path: str) -> Any:
        """A new file to write to, which replaces one with the same name."""
        full = self.path(path)
        if self.s3 is None:
            self.system().create_dir(str(PurePosixPath(full).parent), recursive=True)
        return self.system().open_output_stream(full)

    def open(self, path: str) -> Any:
        """A file to read at random; raises ``FileNotFoundError``."""
        return self.system().open_input_file(self.path(path))


def of_s3(location: S3Location) -> ParquetStore:
    """The folder in a bucket."""
    return ParquetStore(f"{location.bucket}/{location.path}", location)


@lru_cache(maxsize=8)
def _system(location: S3Location | None) -> Any:
    from pyarrow import fs  # noqa: PLC0415  (slow to import)

    if location is None:
        return fs.LocalFileSystem()
    options: dict[str, Any] = {
        # A small file is one request then, not three.
        "allow_delayed_open": True,
        "connect_timeout": _CONNECT_S,
        "request_timeout": _REQUEST_S,
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    }
    if location.endpoint is not None:
        options["endpoint_override"] = urlsplit(location.endpoint).netloc
        options["scheme"] = urlsplit(location.endpoint).scheme
    names = ("access_key", "secret_key", "session_token", "region")
    options |= {name: value for name in names if (value := getattr(location, name)) is not None}
    try:
        if location.region is None:
            options["region"] = fs.resolve_s3_region(location.bucket)
        return fs.S3FileSystem(**options)
    except OSError as error:
        raise explained(location, error) from error


def explained(location: S3Location, error: OSError) -> PenstockError:
    """An error of S3 in one line that says what to change."""
    text = " ".join(str(error).split())
    if "NO_SUCH_BUCKET" in text or ("Bucket" in text and "not found" in text):
        return BadInput(
            f"There is no bucket {location.bucket!r} at {location.service}. Check the URI of the "
            "lake, its endpoint and its region.",
            field="lake",
        )
    if any(code in text for code in _REFUSED):
        whose = "" if location.access_key is None else f" of the key {location.access_key}"
        return BadInput(
            f"{location.service} refuses the credential{whose} for {location.name}. Check the "
            f"keys, in the URI, the profile or the environment: {_short(text)}",
            field="lake",
        )
    if "NETWORK_CONNECTION" in text or "curlCode" in text:
        return PipelineError(
            f"{location.service} cannot be reached for {location.name}. Check the endpoint: "
            f"{_short(text)}",
            field="lake",
        )
    return PipelineError(f"{location.service} failed for {location.name}: {_short(text)}")


def _short(text: str) -> str:
    """The part that says what is wrong."""
    return f"{text.rpartition('AWS Error ')[2][:300].rstrip('.')}."
