"""``penstock context``: named servers, so that commands need no URL and credential each time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from msgspec import Struct
from msgspec.structs import asdict, replace

from penstock.cli import printing
from penstock.cli.options import Family, printing_options
from penstock.cli.printing import Column
from penstock.errors import BadInput
from penstock.model.limits import check_name
from penstock.model.secrets import mask_password
from penstock.settings import check_server_url
from penstock.settings.contexts import (
    Contexts,
    ServerContext,
    contexts_path,
    read_contexts,
    write_contexts,
)

__all__ = ["context"]


class _Listed(Struct, frozen=True):
    name: str
    current: bool
    context: ServerContext


_COLUMNS: Final[tuple[Column[_Listed], ...]] = (
    Column("in use", lambda item: "*" if item.current else ""),
    Column("context", lambda item: item.name, style="bold"),
    Column("url", lambda item: mask_password(item.context.url)),
    Column("credential file", lambda item: item.context.credential_file, wide=True),
    Column("ca", lambda item: item.context.ca, wide=True),
    Column("cert", lambda item: item.context.cert, wide=True),
)


@click.group(cls=Family)
def context() -> None:
    """Name servers, and choose one for all commands.

    Commands use the server of --context, of PENSTOCK_CONTEXT, or of `penstock context use`, unless
    --url, --store or PENSTOCK_URL names another one.

    \b
    Examples:
      penstock context add prod https://queue.example.org --credential-file prod.key --ca ca.pem
      penstock context use prod
      penstock queue list --context staging
    """


@context.command
@click.argument("name")
@click.argument("url")
@click.option("--credential-file", metavar="FILE", help="A file with the API key or token.")
@click.option("--ca", metavar="FILE", help="The certificate authorities of an https server.")
@click.option("--cert", metavar="FILE", help="The client's certificate, for an https server.")
@click.option("--cert-key", metavar="FILE", help="Its key, if it is not in the same file.")
@click.option("--replace", "replacing", is_flag=True, help="Replace the context of that name.")
@printing_options
def add(name: str, url: str, replacing: bool, **files: str | None) -> None:
    """Add the context NAME for the server at URL.

    \b
    Examples:
      penstock context add local http://127.0.0.1:8080
      penstock context add prod https://queue.example.org --credential-file prod.key --ca ca.pem
    """
    check_name(name, "context")
    check_server_url(url)
    if files["cert_key"] is not None and files["cert"] is None:
        raise BadInput("--cert-key is the key of --cert, which is missing.", field="cert_key")
    path, known = _read()
    if name in known.contexts and not replacing:
        raise BadInput(f"There is a context {name!r}: use --replace.", field="context")
    made = ServerContext(url=url, **{field: _file(field, file) for field, file in files.items()})
    write_contexts(path, replace(known, contexts={**known.contexts, name: made}))
    printing.outcome(_shown(name, made), f"added {name}; `penstock context use {name}` uses it")


@context.command
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Use no context from now on.")
@printing_options
def use(name: str | None, none: bool) -> None:
    """Use the server of the context NAME from now on.

    \b
    Examples:
      penstock context use prod
      penstock context use --none
    """
    if none == (name is not None):
        raise click.UsageError("Give the name of a context, or --none.")
    path, known = _read()
    if name is not None:
        known.get(name, "argument")
    write_contexts(path, replace(known, current=name))
    printing.outcome({"current": name}, "using no context" if name is None else f"using {name}")


@context.command(name="list")
@printing_options
def list_contexts() -> None:
    """List the contexts; the one in use has a star.

    \b
    Example:
      penstock context list
    """
    _, known = _read()
    listed = [
        _Listed(name, name == known.current, item) for name, item in sorted(known.contexts.items())
    ]
    shown = [{**_shown(item.name, item.context), "current": item.current} for item in listed]
    if not printing.as_json(shown):
        printing.table(_COLUMNS, listed, "There are no contexts.")


@context.command
@click.argument("name")
@printing_options
def remove(name: str) -> None:
    """Remove the context NAME; the files that it names stay.

    \b
    Example:
      penstock context remove staging
    """
    path, known = _read()
    known.get(name, "argument")
    left = {other: item for other, item in known.contexts.items() if other != name}
    current = None if known.current == name else known.current
    write_contexts(path, Contexts(current=current, contexts=left))
    printing.outcome({"removed": name}, f"removed {name}")


def _read() -> tuple[Path, Contexts]:
    path = contexts_path(os.environ)
    return path, read_contexts(path)


def _file(field: str, given: str | None) -> str | None:
    """The absolute path, so that the context works in any directory."""
    if given is None:
        return None
    path = Path(given).absolute()
    if not path.is_file():
        raise BadInput(f"There is no file {given!r}.", field=field)
    return str(path)


def _shown(name: str, context: ServerContext) -> dict[str, object]:
    return {"name": name, **asdict(context), "url": mask_password(context.url)}
