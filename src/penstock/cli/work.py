"""``penstock work``: runs the workers of an app as a process."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from penstock.cli.options import choices, printing_options
from penstock.cli.session import settings
from penstock.errors import BadInput

__all__ = ["work"]


@click.command
@click.argument("app", metavar="MODULE:APP")
@printing_options
def work(app: str) -> None:
    """Run the workers of a penstock.App.

    APP is its name in the Python module MODULE; the default is `app`. The working directory is on
    the module search path. SIGTERM and Ctrl-C let running handlers finish; a second signal does
    not. With --json, log lines are JSON.

    \b
    Examples:
      penstock work shop.workers:app
      penstock work workers
    """
    # No other command needs handlers, threads and typed payloads.
    from penstock.telemetry import configure_logging  # noqa: PLC0415
    from penstock.worker.app import App  # noqa: PLC0415

    module, _, name = app.partition(":")
    found = _find(module, name or "app")
    if not isinstance(found, App):
        raise BadInput(f"{app} is {type(found).__name__}, not a penstock.App.", field="app")
    chosen = settings().settings
    configure_logging("json" if choices().json else chosen.log_format, chosen.log_level)
    found.main()


def _find(module: str, name: str) -> object:
    """The object; an error inside the module propagates unchanged."""
    if not module:
        raise click.UsageError("The app is MODULE:APP, such as shop.workers:app.")
    sys.path.insert(0, os.getcwd())
    try:
        found: object = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise BadInput(f"There is no module {module!r}.", field="app") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise BadInput(f"{module} has no {name!r}.", field="app") from error
    return found
