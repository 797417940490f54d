"""The console's files, read once: their bytes, compressed bytes, types and tags."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import xxhash
from msgspec import Struct

__all__ = ["Asset", "assets", "page"]

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_PAGE: Final = "index.html"
#: What ``index.html`` has in place of the hash.
_PLACEHOLDER: Final = b"{files}"


class Asset(Struct, frozen=True):
    """One file."""

    content_type: str
    body: bytes
    compressed: bytes
    tag: bytes
    """The value of its ETag."""


class Assets(Struct, frozen=True):
    """All files but the page, by name, and the hash that is part of their path."""

    version: str
    by_name: dict[str, Asset]


@cache
def assets() -> Assets:
    """Read the files; takes 20 ms, so the first request does it."""
    found = {
        entry.name: entry.read_bytes()
        for folder in (_static(), _static() / "vendor")
        for entry in folder.iterdir()
        if entry.is_file() and entry.name != _PAGE and entry.name.rpartition(".")[2] in _TYPES
    }
    whole = b"\0".join(name.encode() + b"\0" + body for name, body in sorted(found.items()))
    return Assets(
        xxhash.xxh3_64_hexdigest(whole),
        {name: _asset(name, body) for name, body in found.items()},
    )


@cache
def page() -> Asset:
    """The page, which names the other files."""
    body = (_static() / _PAGE).read_bytes().replace(_PLACEHOLDER, assets().version.encode())
    return _asset(_PAGE, body)


def _static() -> Traversable:
    return files("penstock.server.console") / "static"


def _asset(name: str, body: bytes) -> Asset:
    return Asset(
        _TYPES[name.rpartition(".")[2]],
        body,
        gzip.compress(body, 6, mtime=0),
        b'"%s"' % xxhash.xxh3_64_hexdigest(body).encode(),
    )
