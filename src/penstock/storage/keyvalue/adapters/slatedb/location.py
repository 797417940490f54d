"""The URL of a SlateDB store: which object store, which path in it, and settings.

::

    slatedb+s3://bucket/path          Amazon S3, or a compatible store with ?endpoint=
    slatedb+gs://bucket/path          Google Cloud Storage
    slatedb+az://container/path       Azure Blob Storage
    slatedb+file:///path              a directory

Credentials come from the environment (``AWS_ACCESS_KEY_ID`` and the like), from a profile of
``~/.aws`` (``?profile=``), or from the URL (``slatedb+s3://KEY:SECRET@bucket/path``).
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from penstock.errors import BadUrl
from penstock.model.message import Durability
from penstock.model.secrets import mask_password

__all__ = ["SCHEMES", "Location", "parse_location"]

#: The scheme of the URL after ``slatedb+``, and the type of the object store in the binding.
SCHEMES: Final = {"s3": "S3", "gs": "GCS", "az": "AZURE", "file": "LOCAL"}
_MIB: Final = 1024 * 1024
_KEYS: Final = {
    "s3": ("aws_access_key_id", "aws_secret_access_key"),
    "az": ("azure_storage_account_name", "azure_storage_account_key"),
}


class Location(Struct, frozen=True, kw_only=True):
    """Where a store is, and how it is used."""

    kind: str
    """A key of ``SCHEMES``."""
    bucket: str = ""
    path: str
    """In the bucket, or an absolute directory."""
    config: tuple[tuple[str, str], ...] = ()
    """What the object store is built with, credentials included."""
    commit_interval_ms: int = 0
    """The least time between two commits: each is one PUT, which costs money."""
    lease_ms: int = 2000
    """How long the writer may be silent before another server takes over."""
    timeout_ms: int = 10_000
    """How long a commit may take before it fails."""
    cache_path: str | None = None
    """A directory for a cache of objects."""
    cache_mib: int = 1024
    reader: bool = False
    """Only read, and never write or take over."""

    @property
    def is_remote(self) -> bool:
        """Whether requests go over a network."""
        return self.kind != "file"

    @property
    def durability(self) -> Durability:
        """What a commit survives. The file system is not synced, so a power loss may undo it."""
        return "object" if self.is_remote else "os"

    @property
    def name(self) -> str:
        """The URL without settings and credentials, for messages."""
        return f"slatedb+{self.kind}://{self.bucket}{'/' if self.bucket else ''}{self.path}"


#: Setting of the URL to field, with the least and the most.
_NUMBERS: Final = {
    "commit_interval_ms": (0, 10_000),
    "lease_ms": (500, 600_000),
    "timeout_ms": (500, 600_000),
    "cache_mib": (1, 1024 * 1024),
}
_TEXTS: Final = ("endpoint", "region", "profile", "cache_path", "reader")


def parse_location(url: SplitResult) -> Location:
    """The location of a store, or ``BadUrl``."""
    kind = url.scheme.removeprefix("slatedb+")
    path = unquote(url.path).strip("/")
    sound = path.isprintable() and ".." not in path.split("/") and not url.fragment
    if kind == "file":
        if url.netloc or not url.path.startswith("/") or not path or not sound:
            raise _bad(url, "is not slatedb+file:///path (three slashes before the path)")
        path = "/" + path
    elif not url.hostname or not path or not sound:
        raise _bad(url, f"is not slatedb+{kind}://bucket/path")
    settings = _settings(url)
    numbers = {name: _number(url, name, settings) for name in _NUMBERS if name in settings}
    if kind != "file":
        numbers.setdefault("commit_interval_ms", 100)
    return Location(
        kind=kind,
        bucket=url.netloc.rpartition("@")[2],
        path=path,
        config=tuple(_config(url, kind, settings).items()),
        cache_path=settings.get("cache_path"),
        reader=_flag(url, "reader", settings),
        **numbers,
    )


def _settings(url: SplitResult) -> dict[str, str]:
    pairs = parse_qsl(url.query, keep_blank_values=True)
    settings = dict(pairs)
    known = {*_NUMBERS, *_TEXTS}
    for name, value in pairs:
        if name not in known or not value:
            raise _bad(url, f"has the setting {name!r}; settings are {', '.join(sorted(known))}")
    if len(settings) != len(pairs):
        raise _bad(url, "repeats a setting")
    return settings


def _number(url: SplitResult, name: str, settings: dict[str, str]) -> int:
    low, high = _NUMBERS[name]
    text = settings[name]
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise _bad(url, f"has {name}={text}, which is not a number from {low} to {high}")
    return int(text)


def _flag(url: SplitResult, name: str, settings: dict[str, str]) -> bool:
    text = settings.get(name, "false")
    if text not in ("true", "false"):
        raise _bad(url, f"has {name}={text}, which is not true or false")
    return text == "true"


def _config(url: SplitResult, kind: str, settings: dict[str, str]) -> dict[str, str]:
    bucket = url.netloc.rpartition("@")[2]
    if kind == "file":
        if settings.keys() & {"endpoint", "region", "profile"}:
            raise _bad(url, "is a directory, which has no endpoint, region or profile")
        return {}
    config = {"container_name" if kind == "az" else "bucket": bucket}
    if kind == "s3" and "profile" in settings:
        config |= _profile(url, settings["profile"])
    elif "profile" in settings:
        raise _bad(url, "has a profile, which is for S3 only")
    if url.username is not None:
        if kind not in _KEYS or not url.password:
            raise _bad(url, "has credentials that cannot be used: give a key and its secret")
        values = (unquote(url.username), unquote(url.password))
        config |= dict(zip(_KEYS[kind], values, strict=True))
    if "region" in settings:
        config["region"] = settings["region"]
    if "endpoint" in settings:
        config["endpoint"] = _endpoint(url, settings["endpoint"])
        if settings["endpoint"].startswith("http://"):
            config["allow_http"] = "true"
    return config


def _endpoint(url: SplitResult, text: str) -> str:
    """The endpoint, if it is the URL of a server: anything else would end in a panic."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not text.isascii() or any(character.isspace() for character in text):
        raise _bad(url, f"has the endpoint {text!r}, which is not http://host or https://host")
    return text


def _profile(url: SplitResult, name: str) -> dict[str, str]:
    """Credentials and region of a profile, as the tools of AWS read them."""
    home = Path.home() / ".aws"
    read: Callable[[str, Path], Path] = lambda key, path: Path(os.environ.get(key) or path)  # noqa: E731
    # Raw: a secret may contain a percent sign.
    secrets, general = configparser.RawConfigParser(), configparser.RawConfigParser()
    try:
        secrets.read(read("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"))
        general.read(read("AWS_CONFIG_FILE", home / "config"))
    except (configparser.Error, UnicodeDecodeError) as error:
        # Without the text of the error, which may quote a line with a secret.
        kind = type(error).__name__
        raise _bad(url, f"names a profile, and AWS's files cannot be read: {kind}") from None
    section = name if name == "default" else f"profile {name}"
    found = {
        **(dict(general[section]) if section in general else {}),
        **(dict(secrets[name]) if name in secrets else {}),
    }
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region")
    config = {key: found[key] for key in names if key in found}
    if "aws_secret_access_key" not in config:
        raise _bad(url, f"names the profile {name!r}, which has no access key")
    return config


def _bad(url: SplitResult, problem: str) -> BadUrl:
    return BadUrl(f"{mask_password(repr(url.geturl()))} {problem}.", field="url")
