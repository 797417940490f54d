"""``penstock work``: runs the workers of an app as a process."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.options import choices, server_options
from penstock.cli.session import settings, tls_files
from penstock.cli.work_processes import source_changes, stop_with_parent, supervise
from penstock.errors import BadInput
from penstock.settings import Loaded

if TYPE_CHECKING:
    from penstock.worker.app import App

__all__ = ["work"]

#: More processes than this on one machine are a mistake.
MAX_PROCESSES: Final = 256
#: Options that a process of ``--processes`` gets too.
_PASSED_ON: Final = (
    *("url", "context", "credential", "credential_file", "ca", "cert", "cert_key", "config"),
)


@click.command
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--processes",
    type=click.IntRange(1, MAX_PROCESSES),
    default=1,
    show_default=True,
    help="Processes that run the app, for handlers that use the CPU.",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file changes. For development.")
@click.option("--process", type=int, hidden=True, help="The number of this process.")
@server_options
def work(app: str, processes: int, reload: bool, process: int | None) -> None:
    """Run the workers of a penstock.App.

    APP is its name in the Python module MODULE; the default is `app`. The working directory is on
    the module search path. --url and --credential replace those of the app; an app without a URL
    gets the one of the settings. SIGTERM and Ctrl-C let running handlers finish; a second signal
    does not. With --json, log lines are JSON.

    \b
    Examples:
      penstock work shop.workers:app
      penstock work workers --processes 4 --url https://queue.example.com
      penstock work workers --reload
    """
    # No other command needs handlers, threads and typed payloads.
    from penstock.telemetry import configure_logging  # noqa: PLC0415

    loaded = settings()
    chosen = loaded.settings
    configure_logging("json" if choices().json else chosen.log_format, chosen.log_level)
    if process is None and (processes > 1 or reload):
        changes = source_changes(Path.cwd()) if reload else None
        if reload:
            # Compiled files are compared by size and by second: a quick edit would be missed.
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        command = partial(_child, app, numbered=processes > 1)
        sys.exit(asyncio.run(supervise(command, processes, changes)))
    found = _load(app)
    if process is not None:
        stop_with_parent()
    _configure(found, loaded, process or None)
    found.main()


def _load(name: str) -> App:
    from penstock.worker.app import App  # noqa: PLC0415

    module, _, attribute = name.partition(":")
    found = _find(module, attribute or "app")
    if not isinstance(found, App):
        raise BadInput(f"{name} is {type(found).__name__}, not a penstock.App.", field="app")
    return found


def _configure(app: App, loaded: Loaded, number: int | None) -> None:
    """Apply the options, and for what the app leaves out, the settings."""
    kept, chosen = choices(), loaded.settings
    is_named = kept.url is not None or kept.context is not None
    where = chosen.url if is_named or app.where is None else None
    has_credential = kept.credential is not None or kept.credential_file is not None
    # A credential of the settings belongs to the server of the settings.
    credential = chosen.credential if has_credential or where is not None else None
    consumer = None if number is None or app.consumer is None else f"{app.consumer}-{number}"
    tls = tls_files(None if where is None else loaded)
    app.configure(
        where=where,
        credential=credential,
        ca=tls.ca,
        cert=tls.cert,
        key=tls.cert_key,
        consumer=consumer,
    )
    if number is not None and str(app.where).startswith(("files:", "memory:", "rocksdb:")):
        raise BadInput(
            "Only one process can open this store; run a server, and give the app its URL.",
            field="processes",
            limit=1,
        )


def _child(app: str, number: int, *, numbered: bool) -> list[str]:
    """The command of one process; numbers start at 1, and a single process has 0."""
    kept = choices()
    command = [sys.executable, "-m", "penstock", "work", app]
    command += ["--process", str(number + 1 if numbered else 0)]
    for name in _PASSED_ON:
        value = getattr(kept, name)
        if value is not None:
            command += ["--" + name.replace("_", "-"), value]
    for name in ("json", "debug"):
        if getattr(kept, name):
            command.append("--" + name)
    return command


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
