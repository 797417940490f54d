"""Reading the sources of settings: flags, environment variables, one TOML file.

A source gives names and values, each with its origin. An unknown flag or key is an error that
suggests the nearest known one. An unknown variable only causes a warning: other programs may use
the same prefix, as Kubernetes does. Values are validated elsewhere.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from penstock.errors import BadSetting
from penstock.model.limits import shown
from penstock.settings.fields import FILE_SUFFIX, PREFIX, all_settings

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_CONFIG",
    "Given",
    "Source",
    "from_environ",
    "from_file",
    "from_flags",
    "read_value",
]

#: Names the settings file; not a setting itself.
CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
#: Read from the working directory if it exists and no other file is named.
DEFAULT_CONFIG: Final = "penstock.toml"
#: Variables for tests and benchmarks, which are not settings.
_NOT_SETTINGS: Final = ("PENSTOCK_BENCH_", "PENSTOCK_TEST_")

#: What Kubernetes sets PENSTOCK_PORT to, in every pod next to a service named penstock.
_SERVICE_LINK: Final = "tcp://"

#: A settings file has a few dozen lines.
_MAX_CONFIG_BYTES: Final = 1024 * 1024
#: The largest value that is given as a file is a public key.
_MAX_VALUE_BYTES: Final = 64 * 1024


class Source(Struct, frozen=True):
    """Where a value came from."""

    kind: Literal["flag", "environment", "file", "default"]
    where: str = ""
    """The flag, the variable, or the file and line."""
    path: Path | None = None
    """The file that contains the value, if it was given with the suffix ``_file``."""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".rstrip()


class Given(Struct, frozen=True):
    """One value of one source."""

    value: object
    source: Source
    base: Path
    """The directory that relative paths are relative to."""

    @property
    def is_text(self) -> bool:
        """Whether the source only has text, so that numbers come as text too."""
        return isinstance(self.value, str) and self.source.kind == "environment"

    def with_value(self, value: object) -> Given:
        """The same origin with another value."""
        return Given(value, self.source, self.base)


def from_flags(flags: Mapping[str, object], cwd: Path) -> dict[str, Given]:
    """The given flags, by setting; None means not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    _check_known(given, "flag", _flag)
    return {name: Given(value, Source("flag", _flag(name)), cwd) for name, value in given.items()}


def from_environ(environ: Mapping[str, str], cwd: Path) -> tuple[dict[str, Given], tuple[str, ...]]:
    """The variables that begin with PENSTOCK_, by setting, and a warning for each unknown one.

    An empty variable counts as not set: compose files and systemd units leave one out that way.
    """
    given = {
        name.removeprefix(PREFIX).lower(): value.strip()
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name != CONFIG_VARIABLE
        and not name.startswith(_NOT_SETTINGS)
        and value.strip()
    }
    warnings = {
        name: f"Ignored the environment variable {shown(_variable(name))}, which is not a setting."
        + _nearest(name, _variable)
        for name in sorted(given.keys() - _known())
    }
    if given.get("port", "").startswith(_SERVICE_LINK):
        warnings["port"] = (
            "Ignored the environment variable PENSTOCK_PORT, which Kubernetes set for a service "
            "named penstock: set enableServiceLinks: false in the pod, or rename the service."
        )
    found = {
        name: Given(value, Source("environment", _variable(name)), cwd)
        for name, value in given.items()
        if name not in warnings
    }
    return found, tuple(warnings.values())


def from_file(environ: Mapping[str, str], config: Path | None, cwd: Path) -> dict[str, Given]:
    """The keys of the settings file, by setting; empty if there is no file."""
    path = _config_path(environ, config, cwd)
    if path is None:
        return {}
    try:
        text = _read_bounded(path, _MAX_CONFIG_BYTES).decode()
        table = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        # A TOMLDecodeError is a ValueError whose text includes the line.
        raise BadSetting(
            f"The settings file {path} cannot be read: {error}.", field="config"
        ) from error
    _check_known(table, f"key in {path}", str)
    return {
        name: Given(value, Source("file", f"{path}{_line_of(name, text)}"), path.parent)
        for name, value in table.items()
    }


def read_value(name: str, source: Source) -> str:
    """The content of the file that a source names, without trailing newlines."""
    assert source.path is not None
    try:
        return _read_bounded(source.path, _MAX_VALUE_BYTES).decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise BadSetting(
            f"{name} ({source}) cannot be read from {source.path}: {reason}.", field=name
        ) from error


def _config_path(environ: Mapping[str, str], config: Path | None, cwd: Path) -> Path | None:
    if config is not None:
        return cwd / config
    named = environ.get(CONFIG_VARIABLE, "").strip()
    if named:
        return cwd / named
    default = cwd / DEFAULT_CONFIG
    return default if default.is_file() else None


def _read_bounded(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    return content


def _check_known(names: Iterable[object], what: str, spelt: Callable[[str], str]) -> None:
    known = _known()
    for name in names:
        if name not in known:
            text = str(name)
            hint = _nearest(text, spelt)
            raise BadSetting(f"There is no {what} {shown(spelt(text))}.{hint}", field=text)


def _known() -> dict[object, None]:
    """The names that a source may use, in the order of their documentation."""
    names: dict[object, None] = dict.fromkeys(setting.name for setting in all_settings())
    return names | dict.fromkeys(s.name + FILE_SUFFIX for s in all_settings() if s.file)


def _nearest(name: str, spelt: Callable[[str], str]) -> str:
    """A sentence that suggests the nearest known name, if there is one."""
    known = map(str, _known())
    close = get_close_matches(name.replace("-", "_").lower(), list(known), n=1)
    return f" Did you mean {spelt(close[0])}?" if close else ""


def _line_of(name: str, text: str) -> str:
    # Settings are top-level keys, so the line that begins with the name is the right one.
    found = re.search(rf"^[ \t]*[\"']?{re.escape(name)}[\"']?[ \t]*=", text, re.MULTILINE)
    return "" if found is None else f", line {text.count(chr(10), 0, found.end()) + 1}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return PREFIX + name.upper()
