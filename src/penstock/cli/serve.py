"""``penstock serve``: runs the server in this process until it is stopped.

Every setting of the server is a flag; ``penstock.settings`` defines them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli import printing
from penstock.cli.options import choices, printing_options
from penstock.cli.starting import next_steps
from penstock.cli.target import settings
from penstock.model.secrets import mask_password
from penstock.settings import Setting, Settings, all_settings

if TYPE_CHECKING:
    from penstock.server.serve import Serving

__all__ = ["serve"]

F = TypeVar("F", bound=Callable[..., Any])

#: Settings of commands that talk to a server.
_CLIENT_ONLY: Final = frozenset({"url", "credential", "tenant"})


def _flags(function: F) -> F:
    """Add an option for every setting of the server."""
    for setting in reversed(all_settings()):
        if setting.name not in _CLIENT_ONLY:
            for option in reversed(_options(setting)):
                function = option(function)
    return function


def _options(setting: Setting) -> list[Callable[[F], F]]:
    told = setting.description
    if setting.default not in (None, False):
        shown = str(setting.default).lower() if setting.kind is bool else setting.default
        told = f"{told} [default: {shown}]"
    if setting.kind is bool:
        both = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return [click.option(both, setting.name, default=None, help=told)]
    kind = click.Choice(setting.choices) if setting.choices else setting.kind
    name = "FILE" if setting.name.startswith("tls_") else setting.kind.__name__.upper()
    metavar = None if setting.choices else name
    out = [click.option(setting.flag, setting.name, type=kind, metavar=metavar, help=told)]
    if setting.file:
        out.append(
            click.option(
                f"{setting.flag}-file",
                f"{setting.name}_file",
                metavar="FILE",
                help=f"A file that contains {setting.flag}.",
            )
        )
    return out


@click.command
@_flags
@printing_options
def serve(**flags: object) -> None:
    """Serve the store over HTTP until SIGTERM or Ctrl-C.

    Listens on this machine only, without credentials, unless --auth or --insecure is given. Every
    flag can be set in the environment (PENSTOCK_PORT) or the settings file (port) instead.

    \b
    Examples:
      penstock serve
      penstock serve --store rocksdb:///var/lib/penstock --port 9000
      penstock serve --host 0.0.0.0 --auth --tls-cert cert.pem --tls-key key.pem
    """
    found = settings(**flags).settings
    # No other command needs the server, HTTP and metrics.
    from penstock.server.serve import serve as run_server  # noqa: PLC0415
    from penstock.telemetry import configure_logging  # noqa: PLC0415

    configure_logging(found.log_format, found.log_level)
    begun: set[asyncio.Task[None]] = set()

    def announce(serving: Serving) -> None:
        begun.add(asyncio.ensure_future(_announce(found, serving)))

    # RocksDB creates its files under the umask; the store is readable by its owner alone.
    before = os.umask(0o077)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run_server(found, announce))
    finally:
        os.umask(before)


async def _announce(found: Settings, serving: Serving) -> None:
    key = await _first_key(found, serving)
    # The parent process may have closed stdout; the server must keep running.
    with suppress(OSError):
        if choices().json:
            store = mask_password(found.store)
            printing.line({"url": serving.url, "store": store, "auth": found.auth, "key": key})
        else:
            click.echo(next_steps(found, serving.url, key))


async def _first_key(found: Settings, serving: Serving) -> str | None:
    """Create a first key if credentials are required and no caller can have one yet."""
    if not found.auth or found.jwt_secret or found.jwt_public_key:
        return None
    from penstock.server.access import Keys  # noqa: PLC0415

    engine = serving.broker.engine
    made = await Keys(engine, engine.clock).first()
    return None if made is None else made.key


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, if it is installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return None
    return uvloop.new_event_loop
