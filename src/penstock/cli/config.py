"""``penstock config``: the effective settings, and where each comes from."""

from __future__ import annotations

import click

from penstock.cli import printing
from penstock.cli.options import choices, target_options
from penstock.cli.printing import Column
from penstock.cli.target import settings
from penstock.settings import effective, to_toml

__all__ = ["config"]


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
    if choices().json:
        printing.document(
            [
                {
                    "name": item.name,
                    "value": item.value,
                    "masked": item.masked,
                    "source": str(item.source),
                }
                for item in listed
            ]
        )
        return
    rows = [
        (
            item.name,
            "not set" if item.value is None else printing.setting(item.value),
            str(item.source),
        )
        for item in listed
    ]
    columns = (
        Column("setting", style="bold"),
        Column("value", wide=True),
        Column("source", style="dim", wide=True),
    )
    printing.table(columns, rows, "")
