"""``penstock status``: which servers answer, and which of them writes to the store."""

from __future__ import annotations

import asyncio
from typing import Final

import click
import msgspec
from msgspec import Struct

from penstock.cli import printing
from penstock.cli.exits import Exit
from penstock.cli.options import target_options
from penstock.cli.printing import Column
from penstock.cli.session import SOON_MS, Target, find_target, run
from penstock.errors import BadInput

__all__ = ["status"]


class ServerStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a server says about itself."""

    server: str
    role: str
    """``writer``, ``standby``, or ``unreachable``."""
    version: str | None = None
    writer: str | None = None
    """The server that writes, as this one knows it."""


class _Health(Struct, frozen=True):
    version: str
    role: str = "writer"
    writer: str | None = None


_COLUMNS: Final[tuple[Column[ServerStatus], ...]] = (
    Column("server", lambda one: one.server, style="bold"),
    Column("role", lambda one: one.role),
    Column("version", lambda one: one.version),
    Column("writer", lambda one: one.writer, style="dim"),
)


@click.command
@target_options
def status() -> None:
    """Show the servers of the URL, and which of them writes.

    Give several servers of one store, separated by commas. The exit code is 7 if none of them
    writes.

    \b
    Examples:
      penstock status
      penstock status --url http://one:8080,http://two:8080
    """
    target = find_target()
    if target.url is None:
        raise BadInput("status asks servers: give --url, not --store.", field="store")
    urls = [part.strip() for part in target.url.split(",")]
    run(_show(target, urls))


async def _show(target: Target, urls: list[str]) -> None:
    found = await asyncio.gather(*(_ask(target, url) for url in urls))
    if not printing.as_json(found):
        printing.table(_COLUMNS, found)
    if not any(one.role == "writer" for one in found):
        raise click.exceptions.Exit(Exit.UNAVAILABLE)


async def _ask(target: Target, url: str) -> ServerStatus:
    # Slow to import, and not needed for `--help`.
    from penstock.client.address import parse_address  # noqa: PLC0415
    from penstock.client.connecting import tls_context  # noqa: PLC0415
    from penstock.client.connection import ConnectionLost  # noqa: PLC0415
    from penstock.client.options import ClientOptions  # noqa: PLC0415
    from penstock.client.transport import Request, Transport  # noqa: PLC0415

    address = parse_address(url)
    tls = tls_context(target.tls.ca, target.tls.cert, target.tls.cert_key, address)
    options = ClientOptions(timeout_ms=SOON_MS, connect_timeout_ms=SOON_MS)
    transport = Transport(address, None, tls, options)
    try:
        reply = await transport.exchange(Request("GET", f"{address.path}/healthz"))
        health = msgspec.msgpack.decode(reply.body, type=_Health)
    except (ConnectionLost, msgspec.MsgspecError):
        return ServerStatus(server=address.url, role="unreachable")
    finally:
        await transport.close()
    return ServerStatus(
        server=address.url, role=health.role, version=health.version, writer=health.writer
    )
