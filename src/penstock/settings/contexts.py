"""Contexts of the command line: named servers, each with its credential file and certificates.

They are in ``contexts.toml`` in the user's configuration directory (XDG), readable by the owner
only. One of them may be in use: commands talk to it unless they are given another server.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from penstock.errors import BadSetting
from penstock.settings.toml_text import toml_key, toml_value

__all__ = ["Contexts", "ServerContext", "contexts_path", "read_contexts", "write_contexts"]

#: Hundreds of contexts fit.
_MAX_BYTES: Final = 1024 * 1024


class ServerContext(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to talk to one server; the files are absolute paths."""

    url: str
    credential_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None


class Contexts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All contexts of a user, by name."""

    current: str | None = None
    """The one in use."""
    contexts: dict[str, ServerContext] = {}

    def get(self, name: str, source: str) -> ServerContext:
        """The context that ``source`` names; ``BadSetting`` if there is none."""
        if name in self.contexts:
            return self.contexts[name]
        known = ", ".join(sorted(self.contexts)) or "none"
        raise BadSetting(
            f"There is no context {name!r} ({source}); there are: {known}.", field="context"
        )


def contexts_path(environ: Mapping[str, str]) -> Path:
    """The file of the contexts, which need not exist."""
    base = Path(environ.get("XDG_CONFIG_HOME", ""))
    # The XDG specification ignores relative paths.
    if not base.is_absolute():
        base = Path(environ.get("HOME") or Path.home()) / ".config"
    return base / "penstock" / "contexts.toml"


def read_contexts(path: Path) -> Contexts:
    """Read the file; no contexts if there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
        table = tomllib.loads(content.decode())
        return msgspec.convert(table, Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, RecursionError) as error:
        # msgspec's and tomllib's errors are ValueErrors that name the field or the line.
        raise BadSetting(f"The contexts in {path} cannot be read: {error}.", field="context") from (
            error
        )


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            scratch.unlink()
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_to_toml(contexts))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        raise BadSetting(
            f"The contexts cannot be written to {path}: {error}.", field="context"
        ) from error


def _to_toml(contexts: Contexts) -> str:
    lines = ["# Written by `penstock context`."]
    if contexts.current is not None:
        lines.append(f"current = {toml_value(contexts.current)}")
    for name, context in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{toml_key(name)}]"]
        lines += [
            f"{field} = {toml_value(value)}"
            for field, value in asdict(context).items()
            if value is not None
        ]
    return "\n".join(lines) + "\n"
