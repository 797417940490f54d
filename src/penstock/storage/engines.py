"""Maps URL schemes to engines.

An engine is imported when its URL is opened, so a database driver is imported only if it is used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from penstock.errors import BadUrl
from penstock.model.secrets import mask_password
from penstock.storage.contract import Engine, EngineOptions

__all__ = ["SCHEMES", "open_engine"]

Opener: TypeAlias = Callable[[SplitResult, EngineOptions], Awaitable[Engine]]

_SLATEDB: Final = "penstock.storage.keyvalue.opening:open_slatedb"
#: Scheme to "module:function".
SCHEMES: Final[dict[str, str]] = {
    "files": "penstock.storage.keyvalue.opening:open_files",
    "memory": "penstock.storage.keyvalue.opening:open_memory",
    "mysql": "penstock.storage.sql.opening:open_mysql",
    "postgresql": "penstock.storage.sql.opening:open_postgresql",
    "rocksdb": "penstock.storage.keyvalue.opening:open_rocksdb",
    **{f"slatedb+{kind}": _SLATEDB for kind in ("az", "file", "gs", "s3")},
}


async def open_engine(url: str, options: EngineOptions | None = None) -> Engine:
    """Open the store that ``url`` names."""
    try:
        parts = urlsplit(str.__str__(url))
    except (ValueError, TypeError):
        # Not chained: the original error may quote the password.
        raise BadUrl(f"{mask_password(repr(url))} is not a URL.", field="url") from None
    target = SCHEMES.get(parts.scheme)
    if parts.scheme in ("http", "https"):
        raise BadUrl(
            f"{mask_password(repr(url))} is a server: use penstock.connect, or --url.", field="url"
        )
    if target is None:
        known = ", ".join(sorted(SCHEMES))
        raise BadUrl(
            f"No engine handles {mask_password(repr(url))}; schemes are {known}.", field="url"
        )
    module, _, function = target.partition(":")
    opener: Opener = getattr(import_module(module), function)
    return await opener(parts, options or EngineOptions())
