"""Decides the value of each setting: flag, else environment, else file, else default.

Values are checked even if a stronger source overrides them: a mistake in the file should not
go unnoticed until a flag is dropped. Every error names the source that is wrong (E1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Struct

from penstock.errors import BadName, BadSetting
from penstock.model.limits import check_name, shown
from penstock.model.secrets import mask_password
from penstock.settings.fields import FILE_SUFFIX, Setting, Settings, all_settings
from penstock.settings.sources import (
    Given,
    Source,
    from_environ,
    from_file,
    from_flags,
    read_value,
)

__all__ = ["Loaded", "load_settings"]


class Loaded(Struct, frozen=True):
    """The settings, and where each came from."""

    settings: Settings
    sources: Mapping[str, Source]
    warnings: tuple[str, ...] = ()
    """One line for each value that was ignored."""

    def given(self, name: str) -> bool:
        """Whether a source set it, even to its default."""
        return self.sources[name].kind != "default"


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None,
    cwd: Path,
) -> Loaded:
    """Read and check all settings; a flag whose value is None was not given.

    ``config`` is the file that a flag named. If None, PENSTOCK_CONFIG names the file, else it
    is ``penstock.toml`` in ``cwd``, if that exists.
    """
    cwd = cwd.absolute()
    decided: dict[str, Given] = {}
    variables, warnings = from_environ(environ, cwd)
    # From weakest to strongest: later sources override earlier ones.
    for source in (from_file(environ, config, cwd), variables, from_flags(flags, cwd)):
        decided |= _checked(source)
    values: dict[str, object] = {}
    sources: dict[str, Source] = {}
    for setting in all_settings():
        given = decided.get(setting.name, Given(setting.default, Source("default"), cwd))
        values[setting.name] = _final(setting, given)
        sources[setting.name] = given.source
    # Every value was checked against its own annotation already.
    settings = Settings(**values)  # type: ignore[arg-type]
    _check_together(settings)
    return Loaded(settings, sources, warnings)


def _checked(source: Mapping[str, Given]) -> dict[str, Given]:
    """The settings of one source: values converted, ``_file`` names mapped to their settings."""
    decided: dict[str, Given] = {}
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
            decided[setting.name] = Given(None, named, file.base)
    return decided


def _final(setting: Setting, given: Given) -> object:
    """The final value: read from its file if it has one, a relative store made absolute."""
    if given.source.path is not None:
        # Read only the file that takes effect: a weaker source may name one that does not exist.
        given = given.with_value(read_value(setting.name, given.source))
        given = given.with_value(_converted(setting, given))
    if setting.name == "store":
        return _absolute_store(str(given.value), given.base)
    return given.value


def _converted(setting: Setting, given: Given) -> object:
    value = given.value
    if setting.kind is Path:
        return _to_path(setting.name, given)
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


def _check_meaning(setting: Setting, given: Given) -> None:
    """Check what the type cannot express."""
    if isinstance(given.value, str) and (not given.value or "\0" in given.value):
        raise _refused(setting, given, "Expected text that is not empty and has no zero byte")
    if setting.name == "tenant":
        try:
            check_name(given.value, "tenant")
        except BadName as error:
            raise _refused(setting, given, f"Expected a name. {error.advice}") from error
    elif setting.name == "url" and not _is_server(str(given.value)):
        raise _refused(setting, given, "Expected http://host:port or https://host:port")


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


def _refused(setting: Setting, given: Given, expected: str) -> BadSetting:
    value = "not valid" if setting.secret else mask_password(shown(given.value))
    expected = expected[:1].lower() + expected[1:].removesuffix(".")
    return BadSetting(
        f"{setting.name} ({given.source}) is {value}: {expected}.", field=setting.name
    )


def _to_path(name: str, given: Given) -> Path:
    value = given.value
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise BadSetting(f"{name} ({given.source}) is {shown(value)}: expected a path.", field=name)
    # An absolute path replaces the base.
    return given.base / value


def _absolute_store(url: str, base: Path) -> str:
    """``rocksdb:relative/path`` with an absolute path, so that it is valid in any directory."""
    scheme, _, path = url.partition(":")
    if scheme != "rocksdb" or not path or path.startswith("/"):
        return url
    return "rocksdb://" + quote(str((base / unquote(path)).absolute()))


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
