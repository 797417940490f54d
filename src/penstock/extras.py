"""Packages that come with an extra of Penstock, such as ``pip install 'penstock[rocksdb]'``.

The base install has the client, the blocking client, the worker and the memory store. A module
that needs more raises ``MissingExtra`` with the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from penstock.errors import MissingExtra

__all__ = ["importing", "require"]


def require(extra: str, *packages: str) -> None:
    """Raise ``MissingExtra`` unless the packages of the extra are installed."""
    for package in packages:
        if find_spec(package) is None:
            raise _missing(extra, package)


@contextmanager
def importing(extra: str, *packages: str) -> Iterator[None]:
    """Turn the failed import of one of the packages into ``MissingExtra``."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        raise _missing(extra, package) from error


def _missing(extra: str, package: str) -> MissingExtra:
    return MissingExtra(f"{package} is not installed: pip install 'penstock[{extra}]'.")
