"""The options that commands share, and their values.

``penstock`` itself and every command that can use them accept them, so that both
``penstock --url … queue list`` and ``penstock queue list --url …`` work; the last one wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

__all__ = ["Choices", "choices", "printing_options", "store_options", "target_options"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Choices:
    """The values of the shared options, filled in while the command line is parsed."""

    url: str | None = None
    store: str | None = None
    tenant: str | None = None
    credential: str | None = None
    credential_file: str | None = None
    config: str | None = None
    json: bool = False
    debug: bool = False


def choices() -> Choices:
    """The choices of the current command."""
    return click.get_current_context().ensure_object(Choices)


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Store the value for ``choices``, if one was given."""
    if value is None or value is False:
        return
    assert param.name is not None
    kept = ctx.ensure_object(Choices)
    if param.name in ("url", "store"):
        # The last one wins, also over the other kind; both on the same command is an error.
        other = "store" if param.name == "url" else "url"
        if ctx.meta.get(f"penstock.{other}") is ctx:
            raise click.UsageError("--url and --store exclude each other.", ctx)
        ctx.meta[f"penstock.{param.name}"] = ctx
        setattr(kept, other, None)
    setattr(kept, param.name, value)


def _shared(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_keep, **attributes)


_URL = _shared("--url", metavar="URL", help="The server to talk to, such as http://host:8080.")
_STORE = _shared(
    "--store",
    metavar="URL",
    help="The store to open directly, without a server: rocksdb:///path, or a database.",
)
_TENANT = _shared(
    "--tenant", metavar="NAME", help="Tenant, with --store. A server gets it from the credential."
)
_CREDENTIAL = _shared(
    "--credential",
    metavar="KEY",
    help="The API key or token for the server. Other users may see it in `ps`.",
)
_CREDENTIAL_FILE = _shared("--credential-file", metavar="FILE", help="A file that contains it.")
_CONFIG = _shared("--config", metavar="FILE", help="The settings file (TOML).")
_JSON = _shared("--json", is_flag=True, help="Print JSON, for programs.")
_DEBUG = _shared("--debug", is_flag=True, help="Print the traceback of an error.")


def _all(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        # Click lists options from the innermost decorator outward.
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def target_options(function: F) -> F:
    """For commands that talk to a server or open a store."""
    return _all(_URL, _STORE, _TENANT, _CREDENTIAL, _CREDENTIAL_FILE, _CONFIG, _JSON, _DEBUG)(
        function
    )


def store_options(function: F) -> F:
    """For commands that need direct access to a store."""
    return _all(_STORE, _TENANT, _CONFIG, _JSON, _DEBUG)(function)


def printing_options(function: F) -> F:
    """For commands that need neither a server nor a store."""
    return _all(_CONFIG, _JSON, _DEBUG)(function)
