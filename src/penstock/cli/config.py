"""``penstock config``: the effective settings, and where each comes from."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import printing
from penstock.cli.options import target_options
from penstock.cli.printing import Column
from penstock.cli.session import settings
from penstock.settings import Effective, effective, to_toml

__all__ = ["config"]


def _text(value: str | float | None) -> str:
    """As in the settings file, where booleans are true and false, not yes and no."""
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


_COLUMNS: Final[tuple[Column[Effective], ...]] = (
    Column("setting", lambda item: item.name, style="bold"),
    Column("value", lambda item: _text(item.value), wide=True),
    Column("source", lambda item: str(item.source), style="dim", wide=True),
)


@click.command
@click.option("--toml", is_flag=True, help="Print them as a settings file.")
@target_options
def config(toml: bool) -> None:
    """Print the effective settings, secrets masked.

    A flag overrides the environment (PENSTOCK_…), which overrides the settings file, which
    overrides the default. The file is penstock.toml in the working directory, or the one that
    PENSTOCK_CONFIG or --config names.

    \b
    Examples:
      penstock config
      penstock config --toml > penstock.toml
      PENSTOCK_PORT=9000 penstock config --json
    """
    loaded = settings()
    if toml:
        click.echo(to_toml(loaded), nl=False)
        return
    listed = effective(loaded)
    shown = [
        {"name": item.name, "value": item.value, "masked": item.masked, "source": str(item.source)}
        for item in listed
    ]
    if not printing.as_json(shown):
        printing.table(_COLUMNS, listed)
