"""Reads settings: a flag overrides the environment, the file and the default, in this order.

A context of the command line overrides the URL and the credential of the environment and the file.

Values are checked even if a stronger source overrides them: a mistake in the file should not
go unnoticed until a flag is dropped. Every error names the source that is wrong (E1). An unknown
flag or key is an error that suggests the nearest known one. An unknown variable only causes a
warning: other programs may use the same prefix, as Kubernetes does.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Struct

from penstock.errors import BadName, BadPolicy, BadSetting
from penstock.model.limits import check_name, shown
from penstock.model.secrets import mask_password
from penstock.settings.contexts import ServerContext
from penstock.settings.fields import (
    FILE_SUFFIX,
    PREFIX,
    Setting,
    Settings,
    all_settings,
    flag_of,
    to_queue_defaults,
    variable_of,
)

__all__ = [
    "CA_VARIABLE",
    "CERT_KEY_VARIABLE",
    "CERT_VARIABLE",
    "CONTEXT_VARIABLE",
    "Loaded",
    "Source",
    "check_server_url",
    "load_settings",
]

#: Names the settings file; not a setting itself.
_CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
#: Names the context of a command; not a setting either.
CONTEXT_VARIABLE: Final = "PENSTOCK_CONTEXT"
#: Files of certificates for client commands and for Spark.
CA_VARIABLE: Final = "PENSTOCK_CA"
CERT_VARIABLE: Final = "PENSTOCK_CERT"
CERT_KEY_VARIABLE: Final = "PENSTOCK_CERT_KEY"
_OTHER_VARIABLES: Final = (
    _CONFIG_VARIABLE,
    CONTEXT_VARIABLE,
    CA_VARIABLE,
    CERT_VARIABLE,
    CERT_KEY_VARIABLE,
)
#: Read from the working directory if it exists and no other file is named.
_DEFAULT_CONFIG: Final = "penstock.toml"
#: Variables for tests and benchmarks, which are not settings.
_NOT_SETTINGS: Final = ("PENSTOCK_BENCH_", "PENSTOCK_TEST_")

#: What Kubernetes sets PENSTOCK_PORT to, in every pod next to a service named penstock.
_SERVICE_LINK: Final = "tcp://"

_EXPECTED_URL: Final = "Expected http://host:port or https://host:port"
#: A settings file has a few dozen lines.
_MAX_CONFIG_BYTES: Final = 1024 * 1024
#: The largest value that is given as a file is a public key.
_MAX_VALUE_BYTES: Final = 64 * 1024


class Source(Struct, frozen=True):
    """Where a value came from."""

    kind: Literal["flag", "context", "environment", "file", "default"]
    where: str = ""
    """The flag, the context, the variable, or the file and line."""
    path: Path | None = None
    """The file that contains the value, if it was given with the suffix ``_file``."""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".rstrip()


class _Given(Struct, frozen=True):
    """One value of one source."""

    value: object
    source: Source
    base: Path
    """The directory that relative paths are relative to."""

    @property
    def is_text(self) -> bool:
        """Whether the source only has text, so that numbers come as text too."""
        return isinstance(self.value, str) and self.source.kind == "environment"

    def with_value(self, value: object) -> _Given:
        """The same origin with another value."""
        return _Given(value, self.source, self.base)


class Loaded(Struct, frozen=True):
    """The settings, and where each came from."""

    settings: Settings
    sources: Mapping[str, Source]
    warnings: tuple[str, ...] = ()
    """One line for each value that was ignored."""
    context: ServerContext | None = None
    """The context in effect."""

    def given(self, name: str) -> bool:
        """Whether a source set it, even to its default."""
        return self.sources[name].kind != "default"


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None,
    cwd: Path,
    context: tuple[str, ServerContext] | None = None,
) -> Loaded:
    """Read and check all settings; a flag whose value is None was not given.

    ``config`` is the file that a flag named. If None, PENSTOCK_CONFIG names the file, else it
    is ``penstock.toml`` in ``cwd``, if that exists. ``context`` is a context and its name.
    """
    cwd = cwd.absolute()
    decided: dict[str, _Given] = {}
    variables, warnings = _from_environ(environ, cwd)
    # From weakest to strongest: later sources override earlier ones.
    for source in (_from_file(environ, config, cwd), variables):
        decided |= _checked(source)
    if context is not None:
        # A credential belongs to its server: one of the environment must not reach this server.
        decided.pop("credential", None)
        decided |= _checked(_from_context(*context, cwd))
    decided |= _checked(_from_flags(flags, cwd))
    values: dict[str, object] = {}
    sources: dict[str, Source] = {}
    for setting in all_settings():
        given = decided.get(setting.name, _Given(setting.default, Source("default"), cwd))
        values[setting.name] = _final(setting, given)
        sources[setting.name] = given.source
    # Every value was checked against its own annotation already.
    settings = Settings(**values)  # type: ignore[arg-type]
    _check_together(settings)
    return Loaded(settings, sources, warnings, None if context is None else context[1])


def _checked(source: Mapping[str, _Given]) -> dict[str, _Given]:
    """The settings of one source: values converted, ``_file`` names mapped to their settings."""
    decided: dict[str, _Given] = {}
    for setting in all_settings():
        plain = source.get(setting.name)
        file = source.get(setting.name + FILE_SUFFIX) if setting.file else None
        if plain is not None and file is not None:
            raise BadSetting(
                f"{plain.source} and {file.source} exclude each other: use one of them.",
                field=setting.name,
            )
        if plain is not None:
            decided[setting.name] = plain.with_value(_converted(setting, plain))
        elif file is not None:
            path = _to_path(setting.name + FILE_SUFFIX, file)
            named = Source(file.source.kind, file.source.where, path)
            decided[setting.name] = _Given(None, named, file.base)
    return decided


def _final(setting: Setting, given: _Given) -> object:
    """The final value: read from its file if it has one, a relative store made absolute."""
    if given.source.path is not None:
        # Read only the file that takes effect: a weaker source may name one that does not exist.
        given = given.with_value(_read_value(setting.name, given.source))
        given = given.with_value(_converted(setting, given))
    if setting.name == "store":
        return _absolute_store(str(given.value), given.base)
    return given.value


def _converted(setting: Setting, given: _Given) -> object:
    value = given.value
    if setting.name == "default_policy" and isinstance(value, dict):
        # A table of the settings file; everything else gives it as JSON.
        value = msgspec.json.encode(value).decode()
        given = given.with_value(value)
    if setting.kind is Path:
        return _to_path(setting.name, given)
    if setting.many and isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ",".join(value)
        given = given.with_value(value)
    try:
        # Text from the environment or a file is parsed as the setting's type.
        checked = msgspec.convert(value, setting.type, strict=not given.is_text)
    except msgspec.ValidationError as error:
        expected = str(error)
        if setting.choices:
            expected = f"Expected one of {', '.join(setting.choices)}"
        raise _refused(setting, given, expected) from error
    if isinstance(checked, float) and not math.isfinite(checked):
        raise _refused(setting, given, "Expected a finite number")
    _check_meaning(setting, given)
    return checked


def _check_meaning(setting: Setting, given: _Given) -> None:
    """Check what the type cannot express."""
    if isinstance(given.value, str) and (not given.value or "\0" in given.value):
        raise _refused(setting, given, "Expected text that is not empty and has no zero byte")
    if setting.name == "tenant":
        try:
            check_name(given.value, "tenant")
        except BadName as error:
            raise _refused(setting, given, f"Expected a name. {error.advice}") from error
    elif setting.name == "default_policy":
        try:
            to_queue_defaults(str(given.value))
        except BadPolicy as error:
            raise _refused(setting, given, f"Expected policy fields. {error.detail}") from error
    elif setting.name == "url" and not _is_server(str(given.value)):
        raise _refused(setting, given, _EXPECTED_URL)


def _check_together(settings: Settings) -> None:
    """Raise ``BadSetting`` for settings that contradict each other."""
    pairs = (
        ("max_payload_bytes", "max_body_bytes", "no message of that size could be published"),
        ("max_body_bytes", "memory_budget_bytes", "no body of that size could be received"),
    )
    for smaller, larger, why in pairs:
        low, high = getattr(settings, smaller), getattr(settings, larger)
        if low > high:
            raise BadSetting(f"{smaller} ({low}) is above {larger} ({high}): {why}.", field=smaller)


def _refused(setting: Setting, given: _Given, expected: str) -> BadSetting:
    value = "not valid" if setting.secret else mask_password(shown(given.value))
    expected = expected[:1].lower() + expected[1:].removesuffix(".")
    return BadSetting(
        f"{setting.name} ({given.source}) is {value}: {expected}.", field=setting.name
    )


def _to_path(name: str, given: _Given) -> Path:
    value = given.value
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise BadSetting(f"{name} ({given.source}) is {shown(value)}: expected a path.", field=name)
    # An absolute path replaces the base.
    return given.base / value


def _absolute_store(url: str, base: Path) -> str:
    """``rocksdb:`` or ``files:`` and a relative path, made absolute for use in any directory."""
    scheme, _, path = url.partition(":")
    if scheme not in ("files", "rocksdb") or not path or path.startswith("/"):
        return url
    return f"{scheme}://" + quote(str((base / unquote(path)).absolute()))


def check_server_url(url: str) -> None:
    """Raise ``BadSetting`` unless it is the URL of a server."""
    if not _is_server(url):
        raise BadSetting(f"url is {mask_password(shown(url))}: {_EXPECTED_URL}.", field="url")


def _is_server(url: str) -> bool:
    """Whether it is the URL of a server, or of several that share a store, with commas."""
    return all(_is_one_server(part.strip()) for part in url.split(","))


def _is_one_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


# -- reading the sources ----------------------------------------------------------------------


def _from_flags(flags: Mapping[str, object], cwd: Path) -> dict[str, _Given]:
    """The given flags, by setting; None means not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    _check_known(given, "flag", flag_of)
    return {
        name: _Given(value, Source("flag", flag_of(name)), cwd) for name, value in given.items()
    }


def _from_context(name: str, context: ServerContext, cwd: Path) -> dict[str, _Given]:
    """The URL, and the credential as a file that the client reads again when it changes."""
    values = {"url": context.url}
    if context.credential_file is not None:
        values["credential"] = f"file:{context.credential_file}"
    source = Source("context", name)
    return {field: _Given(value, source, cwd) for field, value in values.items()}


def _from_environ(
    environ: Mapping[str, str], cwd: Path
) -> tuple[dict[str, _Given], tuple[str, ...]]:
    """The variables that begin with PENSTOCK_, by setting, and a warning for each unknown one.

    An empty variable counts as not set: compose files and systemd units leave one out that way.
    """
    given = {
        name.removeprefix(PREFIX).lower(): value.strip()
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name not in _OTHER_VARIABLES
        and not name.startswith(_NOT_SETTINGS)
        and value.strip()
    }
    warnings = {
        name: f"Ignored the environment variable {shown(variable_of(name))}, which is not a "
        f"setting.{_nearest(name, variable_of)}"
        for name in sorted(given.keys() - _known())
    }
    if given.get("port", "").startswith(_SERVICE_LINK):
        warnings["port"] = (
            "Ignored the environment variable PENSTOCK_PORT, which Kubernetes set for a service "
            "named penstock: set enableServiceLinks: false in the pod, or rename the service."
        )
    found = {
        name: _Given(value, Source("environment", variable_of(name)), cwd)
        for name, value in given.items()
        if name not in warnings
    }
    return found, tuple(warnings.values())


def _from_file(environ: Mapping[str, str], config: Path | None, cwd: Path) -> dict[str, _Given]:
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
        name: _Given(value, Source("file", f"{path}{_line_of(name, text)}"), path.parent)
        for name, value in table.items()
    }


def _read_value(name: str, source: Source) -> str:
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
    named = environ.get(_CONFIG_VARIABLE, "").strip()
    if named:
        return cwd / named
    default = cwd / _DEFAULT_CONFIG
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
