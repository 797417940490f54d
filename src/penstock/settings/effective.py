"""The output of ``penstock config``: every setting, its value and where it came from.

Secrets are never shown. The TOML can be used as a settings file and gives the same settings,
except for secrets that are not in a file of their own: these are commented out.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from penstock.model.secrets import MASK, mask_password
from penstock.settings.fields import FILE_SUFFIX, Setting, all_settings
from penstock.settings.loading import Loaded, Source
from penstock.settings.toml_text import toml_value

__all__ = ["Effective", "effective", "to_toml"]


class Effective(Struct, frozen=True, kw_only=True):
    """One setting as in effect."""

    name: str
    value: str | int | float | None
    """Secrets are masked; None means not set."""
    masked: bool
    source: Source
    description: str


def effective(loaded: Loaded) -> tuple[Effective, ...]:
    """Every setting, in the order of its documentation."""
    return tuple(_shown(setting, loaded) for setting in all_settings())


def to_toml(loaded: Loaded) -> str:
    """All settings as a settings file, with the meaning and source of each."""
    lines = []
    for item in effective(loaded):
        lines.append(f"# {item.description}")
        lines.append(f"{_assignment(item)}  # {_one_line(str(item.source))}")
        lines.append("")
    return "\n".join(lines)


def _shown(setting: Setting, loaded: Loaded) -> Effective:
    value = getattr(loaded.settings, setting.name)
    masked = False
    if isinstance(value, Path):
        value = str(value)
    elif setting.secret and value is not None:
        value, masked = MASK, True
    elif isinstance(value, str):
        masked = mask_password(value) != value
        value = mask_password(value)
    return Effective(
        name=setting.name,
        value=value,
        masked=masked,
        source=loaded.sources[setting.name],
        description=setting.description,
    )


def _assignment(item: Effective) -> str:
    if item.source.path is not None:
        return f"{item.name}{FILE_SUFFIX} = {toml_value(str(item.source.path))}"
    line = f"{item.name} = {toml_value('' if item.value is None else item.value)}"
    return f"# {line}" if item.masked or item.value is None else line


def _one_line(text: str) -> str:
    """Replace unprintable characters: a newline in a path would end the comment."""
    return "".join(character if character.isprintable() else "?" for character in text)
