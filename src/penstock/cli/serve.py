"""``penstock serve``: runs the server in this process until it is stopped.

Every setting of the server is a flag; ``penstock.settings`` defines them. At startup it prints its
address, store and auth, and the next steps: commands that work as they are in another terminal.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import printing
from penstock.cli.options import F, choices, printing_options, stacked
from penstock.cli.session import settings
from penstock.model.secrets import mask_password
from penstock.settings import Setting, Settings, all_settings
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.server.serve import Serving

__all__ = ["serve"]

#: Settings of commands that talk to a server.
_CLIENT_ONLY: Final = frozenset({"url", "credential", "tenant"})
_PYTHON: Final = """\
{python} - <<'END'
import asyncio, os, penstock

async def main():
    async with penstock.connect({arguments}) as q:
        await q.publish("orders", {{"order": 8}}, headers={{"amount": 250}})
        for delivery in await q.claim("orders", limit=10):
            print(delivery.payload, delivery.message.headers)
            await q.ack(delivery)

asyncio.run(main())
END"""


def _options(setting: Setting) -> list[Callable[[F], F]]:
    text = setting.description
    if setting.default not in (None, False):
        shown = str(setting.default).lower() if setting.kind is bool else setting.default
        text = f"{text} [default: {shown}]"
    if setting.kind is bool:
        both = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return [click.option(both, setting.name, default=None, help=text)]
    kind = click.Choice(setting.choices) if setting.choices else setting.kind
    name = "FILE" if setting.name.startswith("tls_") else setting.kind.__name__.upper()
    metavar = None if setting.choices else name
    options: dict[str, Any] = {"type": kind, "metavar": metavar, "help": text}
    if setting.many:
        options |= {"multiple": True, "callback": _joined}
    out = [click.option(setting.flag, setting.name, **options)]
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


def _joined(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    """The values of a repeated flag as one text; None if it was not given."""
    del ctx, param
    return ",".join(values) if values else None


_FLAGS: Final = [
    option
    for setting in all_settings()
    if setting.name not in _CLIENT_ONLY
    for option in _options(setting)
]


@click.command
@stacked(*_FLAGS)
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
    found = settings(contexts=False, **flags).settings
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
            click.echo(_next_steps(found, serving.url, key))


async def _first_key(found: Settings, serving: Serving) -> str | None:
    """Create a first key if credentials are required and no caller can have one yet."""
    if not found.auth or found.jwt_secret or found.jwt_public_key or found.jwt_jwks:
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


# -- the text at startup -------------------------------------------------------------------


def _next_steps(settings: Settings, url: str, key: str | None) -> str:
    """The text for a server that listens at ``url``; ``key`` is the first key, just created."""
    url = _reachable(url)
    command = "penstock" if shutil.which("penstock") else f"{quote(sys.executable)} -m penstock"
    lines = [
        f"penstock {VERSION} listens on {url}",
        f"  store    {mask_password(settings.store)}",
        f"  auth     {_auth(settings, command)}",
        *([f"  console  {url}/console/"] if settings.console else []),
        *_first(key),
        "",
        "From another terminal, publish a message and claim it:",
        "",
        *_calls(settings, url),
        "",
        "The same from Python:",
        "",
        _PYTHON.format(python=quote(sys.executable), arguments=_arguments(settings, url)),
        "",
        f"{_trusting(settings)}{command} queue list --url {url}",
        f"lists the queues, {url}/openapi.json every call. Ctrl-C stops the server.",
    ]
    return "\n".join(lines)


def _first(key: str | None) -> list[str]:
    if key is None:
        return []
    note = "The first key may do everything. It is shown only once; keep it:"
    return ["", note, "", f"export PENSTOCK_CREDENTIAL={key}"]


def _calls(settings: Settings, url: str) -> list[str]:
    curl = "curl -sS"
    if settings.auth:
        curl += ' -H "Authorization: Bearer $PENSTOCK_CREDENTIAL"'
    if settings.tls_cert is not None:
        curl += f" --cacert {quote(str(settings.tls_cert))}"
    json = "-H 'Content-Type: application/json'"
    message = """-H 'Penstock-Headers: {"amount": 250}' -d '{"order": 7}'"""
    calls = [
        f"{curl} {url}/v1/topics/orders/messages {json} \\\n    {message}",
        f"{curl} -X POST {url}/v1/queues/orders/claims {json}",
    ]
    if not settings.auto_create:
        policy = quote("""{"filter": "topic = 'orders'"}""")
        calls.insert(0, f"{curl} -X PUT {url}/v1/queues/orders {json} -d {policy}")
    return calls


def _arguments(settings: Settings, url: str) -> str:
    arguments = [f'"{url}"']
    if settings.auth:
        arguments.append('credential=os.environ["PENSTOCK_CREDENTIAL"]')
    if settings.tls_cert is not None:
        arguments.append(f"ca={str(settings.tls_cert)!r}")
    return ", ".join(arguments)


def _trusting(settings: Settings) -> str:
    """The certificate may be self-signed; this variable makes OpenSSL trust it."""
    if settings.tls_cert is None:
        return ""
    return f"SSL_CERT_FILE={quote(str(settings.tls_cert))} "


def _auth(settings: Settings, command: str) -> str:
    if settings.auth:
        return f"on: put a key into PENSTOCK_CREDENTIAL; `{command} key create` creates more"
    if settings.insecure:
        return "off, by --insecure: anyone who can reach this address may do anything"
    return "off: this machine only"


def _reachable(url: str) -> str:
    """Replace an address that means all interfaces with loopback."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
