"""Packages that a command needs and that are not installed, all of them at once.

It runs before click is imported, which is one of them. It looks at the name of the command and at
the URL of the store only; what else a command needs, it reports itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import PurePath
from typing import Final, NamedTuple

__all__ = ["Missing", "find_missing", "report"]

#: The packages without which no command runs, and those that a server needs besides.
_CLI: Final = ("click", "rich")
_SERVER: Final = ("prometheus_client", "jwt", "cryptography")
#: The extra for the store of a URL.
_STORES: Final[Mapping[str, str]] = {
    "rocksdb": "rocksdb",
    "slatedb": "slatedb",
    "postgresql": "postgres",
    "mysql": "mysql",
}
#: What a server opens if its flags, its environment and its settings file do not say.
_DEFAULT_STORE: Final = "rocksdb:"
_ON_SPARK: Final = ("flow", "pipeline")


class Missing(NamedTuple):
    """A package that is not installed, and the extras that the command needs."""

    package: str
    extras: tuple[str, ...]


def find_missing(arguments: Sequence[str], environment: Mapping[str, str]) -> Missing | None:
    """What is missing for the command; None if it can begin."""
    serves = "serve" in arguments
    needed = (*_CLI, *_SERVER) if serves else _CLI
    absent = next((package for package in needed if find_spec(package) is None), None)
    if absent is None:
        return None
    store = _store(arguments)
    if serves and store is None:
        store = environment.get("PENSTOCK_STORE", _DEFAULT_STORE)
    scheme = (store or "").partition(":")[0].partition("+")[0]
    found = ["server" if serves else "cli"]
    if scheme in _STORES:
        found.append(_STORES[scheme])
    if arguments and arguments[0] in _ON_SPARK:
        found.append("spark")
    return Missing(absent, tuple(found))


def report(missing: Missing, arguments: Sequence[str], prefix: str) -> str:
    """What is missing, and the commands that help; ``prefix`` is that of the interpreter."""
    package = f"'penstock[{','.join(missing.extras)}]'"
    again = f"pipx run --spec {package} {shlex.join(['penstock', *arguments])}"
    install = f"pip install {package}"
    # An environment of `pipx run` is made anew for each set of extras.
    first, second = (again, install) if "pipx" in PurePath(prefix).parts else (install, again)
    return f"error: {missing.package} is not installed: {first}.\n  Or: {second}\n"


def _store(arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument == "--store" and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith("--store="):
            return argument.partition("=")[2]
    return None
