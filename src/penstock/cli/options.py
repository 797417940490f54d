"""The options that commands share, their values, and groups of commands.

``penstock`` itself and every command that can use them accept them, so that both
``penstock --url … queue list`` and ``penstock queue list --url …`` work; the last one wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

__all__ = [
    "Choices",
    "Family",
    "choices",
    "printing_options",
    "server_options",
    "stacked",
    "store_options",
    "target_options",
]

F = TypeVar("F", bound=Callable[..., Any])

#: Options that name what a command works on.
_TARGETS: Final = ("url", "store", "context")


class Family(click.Group):
    """Lists its commands in the order of their declaration, not by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order of declaration."""
        del ctx
        return list(self.commands)


@dataclass
class Choices:
    """The values of the shared options, filled in while the command line is parsed."""

    url: str | None = None
    store: str | None = None
    tenant: str | None = None
    credential: str | None = None
    credential_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None
    context: str | None = None
    config: str | None = None
    json: bool = False
    debug: bool = False


def choices() -> Choices:
    """The choices of the current command."""
    return click.get_current_context().ensure_object(Choices)


def stacked(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator that adds all of the options, listed in this order."""

    def decorate(function: F) -> F:
        # Click lists options from the innermost decorator outward.
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Store the value for ``choices``, if one was given."""
    if value is None or value is False:
        return
    assert param.name is not None
    kept = ctx.ensure_object(Choices)
    if param.name in _TARGETS:
        # The last one wins, also over the other kinds; two on the same command are an error.
        before = ctx.meta.get("penstock.target")
        if before is not None and before[0] is ctx and before[1] != param.name:
            names = sorted((before[1], param.name), key=_TARGETS.index)
            raise click.UsageError(f"--{names[0]} and --{names[1]} exclude each other.", ctx)
        ctx.meta["penstock.target"] = (ctx, param.name)
        for name in _TARGETS:
            setattr(kept, name, None)
    setattr(kept, param.name, value)


def _shared(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_keep, **attributes)


_STORE: Final = _shared(
    "--store",
    metavar="URL",
    help="The store to open directly, without a server: rocksdb:///path, files:///path or a "
    "database.",
)
_TENANT: Final = _shared(
    "--tenant", metavar="NAME", help="Tenant, with --store. A server gets it from the credential."
)

#: For commands that need neither a server nor a store.
printing_options: Final = stacked(
    _shared("--config", metavar="FILE", help="The settings file (TOML)."),
    _shared("--json", is_flag=True, help="Print JSON, for programs."),
    _shared("--debug", is_flag=True, help="Print the traceback of an error."),
)
#: For commands that need direct access to a store.
store_options: Final = stacked(_STORE, _TENANT, printing_options)
_URL: Final = _shared(
    "--url", metavar="URL", help="The server to talk to, such as http://host:8080."
)
_CREDENTIALS: Final = stacked(
    _shared(
        "--credential",
        metavar="KEY",
        help="The API key or token for the server. Other users may see it in `ps`.",
    ),
    _shared("--credential-file", metavar="FILE", help="A file that contains it."),
    _shared("--ca", metavar="FILE", help="The certificate authorities of an https server."),
    _shared("--cert", metavar="FILE", help="The client's certificate, for an https server."),
    _shared("--cert-key", metavar="FILE", help="Its key, if it is not in the same file."),
)
_CONTEXT: Final = _shared(
    "--context", metavar="NAME", help="The server of this context: see `penstock context`."
)
#: For commands that talk to a server or open a store.
target_options: Final = stacked(
    _URL,
    _CONTEXT,
    _STORE,
    _TENANT,
    _CREDENTIALS,
    printing_options,
)
#: For commands that talk to a server only.
server_options: Final = stacked(_URL, _CONTEXT, _CREDENTIALS, printing_options)
