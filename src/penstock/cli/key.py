"""``penstock key``: create, list and revoke API keys.

On a server this needs an admin's credential. On a store it is direct, which is how to create the
first key of a server with ``--auth`` before it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import click
import msgspec

from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.options import Family
from penstock.cli.printing import Column, moment
from penstock.cli.session import Target, TlsFiles, bound, open_store
from penstock.errors import BadInput, Unreachable
from penstock.model.clock import SystemClock

if TYPE_CHECKING:
    from penstock.server.access import KeyInfo, Keys, NewKey

__all__ = ["key"]

_TIMEOUT_S: Final = 30.0
#: Statuses from here on are errors.
_REFUSED: Final = 400
#: Before the path of a file that holds the credential, as in penstock.client.
_FILE_PREFIX: Final = "file:"

_COLUMNS: Final[tuple[Column[KeyInfo], ...]] = (
    Column("id", lambda info: info.id, style="bold"),
    Column("name", lambda info: info.name),
    Column("grants", lambda info: " ".join(info.grants), wide=True),
    Column("requests/s", lambda info: str(info.requests_per_s or "")),
    Column("created", lambda info: moment(info.created_at)),
    Column("expires", lambda info: moment(info.expires_at) or "never"),
)


class _Local:
    """The keys in a store."""

    def __init__(self, keys: Keys, tenant: str) -> None:
        self._keys = keys
        self._tenant = tenant

    async def create(
        self, grants: Sequence[str], *, name: str, expires_at: int | None, rate: int | None
    ) -> NewKey:
        return await self._keys.create(
            self._tenant, grants, name=name, expires_at=expires_at, requests_per_s=rate
        )

    async def list(self) -> tuple[KeyInfo, ...]:
        return await self._keys.list(self._tenant)

    async def revoke(self, key_id: str) -> None:
        await self._keys.revoke(self._tenant, key_id)


class _Remote:
    """The keys behind a server.

    Key management is not part of the client. Calls are not retried: if the reply to a create is
    lost, a retry would create a second key.
    """

    def __init__(self, url: str, credential: str | None, tls: TlsFiles) -> None:
        # The client's HTTP is slow to import, and `--help` does not need it.
        from penstock.client.address import parse_address  # noqa: PLC0415
        from penstock.client.connecting import tls_context  # noqa: PLC0415

        self._parts = urlsplit(url)
        self._tls = tls_context(tls.ca, tls.cert, tls.cert_key, parse_address(url))
        self._credential = _text(credential) or unquote(self._parts.password or "")

    async def create(
        self, grants: Sequence[str], *, name: str, expires_at: int | None, rate: int | None
    ) -> NewKey:
        from penstock.server.access import NewKey  # noqa: PLC0415

        body = {"grants": list(grants), "name": name, "expires_at": expires_at}
        if rate is not None:
            # Left out otherwise: an older server does not know it.
            body["requests_per_s"] = rate
        return msgspec.json.decode(await self._call("POST", "/v1/keys", body), type=NewKey)

    async def list(self) -> tuple[KeyInfo, ...]:
        from penstock.server.access import KeyInfo  # noqa: PLC0415

        reply = await self._call("GET", "/v1/keys")
        return msgspec.json.decode(reply, type=dict[str, tuple[KeyInfo, ...]])["keys"]

    async def revoke(self, key_id: str) -> None:
        await self._call("DELETE", f"/v1/keys/{quote(key_id, safe='')}")

    async def _call(self, method: str, path: str, body: object = None) -> bytes:
        status, reply = await asyncio.to_thread(self._exchange, method, path, body)
        if status >= _REFUSED:
            # Only needed for errors.
            from penstock.wire.problems import read_problem, to_error  # noqa: PLC0415

            raise to_error(read_problem(status, reply))
        return reply

    def _exchange(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        parts = self._parts
        host = parts.hostname or ""
        connection = (
            HTTPConnection(host, parts.port, timeout=_TIMEOUT_S)
            if self._tls is None
            else HTTPSConnection(host, parts.port, timeout=_TIMEOUT_S, context=self._tls)
        )
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._credential:
            headers["Authorization"] = f"Bearer {self._credential}"
        content = None if body is None else msgspec.json.encode(body)
        try:
            connection.request(method, parts.path.rstrip("/") + path, content, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException, UnicodeError) as error:
            place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
            raise Unreachable(f"No answer from {place}: {error}.") from error
        finally:
            connection.close()


def _text(credential: str | None) -> str | None:
    """The credential itself, if it is given as ``file:`` and a path."""
    if credential is None or not credential.startswith(_FILE_PREFIX):
        return credential
    try:
        path = Path(credential.removeprefix(_FILE_PREFIX).removeprefix("//"))
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise BadInput(f"The credential cannot be read: {error}.", field="credential") from error


_Keyring: TypeAlias = _Local | _Remote


@asynccontextmanager
async def _open_keyring(target: Target) -> AsyncIterator[_Keyring]:
    if target.url is not None:
        yield _Remote(target.url, target.credential, target.tls)
        return
    # Imports cryptography, which no other command needs.
    from penstock.server.access import Keys  # noqa: PLC0415

    async with open_store(target) as broker:
        yield _Local(Keys(broker.engine, broker.engine.clock), target.tenant)


_on_keys: Final = partial(bound, opener=_open_keyring)


@click.group(cls=Family)
def key() -> None:
    """Create, list and revoke API keys.

    A grant is an action and a pattern of names: publish:orders-*, consume:billing, admin:*.

    \b
    Examples:
      penstock key create --grant admin:* --store rocksdb:///var/lib/penstock
      penstock key create --grant publish:orders --name shop --url https://queue.example.org
    """


@key.command
@click.option("--grant", "grants", multiple=True, required=True, help="A grant; may be repeated.")
@click.option("--name", default="", help="A name for people.")
@click.option("--expires", "expires_ms", type=DURATION, help="Expire after this time: 90d.")
@click.option("--requests-per-s", "rate", type=int, help="The most requests per second.")
@click.option(
    "--sqs", is_flag=True, help="Print what AWS SDKs sign with, for the door sqs, not the key."
)
@partial(_on_keys, may_create=True)
async def create(
    keys: _Keyring,
    /,
    grants: tuple[str, ...],
    name: str,
    expires_ms: int | None,
    rate: int | None,
    sqs: bool,
) -> None:
    """Create a key and print it. It is shown once and stored as a hash.

    \b
    Examples:
      penstock key create --grant publish:orders-* --grant consume:billing --name shop
      export PENSTOCK_CREDENTIAL=$(penstock key create --grant admin:*)
      penstock key create --sqs --grant consume:orders
    """
    expires_at = None if expires_ms is None else SystemClock().now() + expires_ms
    made = await keys.create(grants, name=name, expires_at=expires_at, rate=rate)
    if printing.as_json(made):
        return
    if sqs:
        click.echo(f"export AWS_ACCESS_KEY_ID={made.info.id}")
        click.echo(f"export AWS_SECRET_ACCESS_KEY={made.signing_secret}")
    else:
        click.echo(made.key)
    printing.note(
        f"key {made.info.id} ({made.info.name}) of tenant {made.info.tenant}: "
        f"{', '.join(made.info.grants)}. It is not shown again."
    )


@key.command(name="list")
@_on_keys
async def list_keys(keys: _Keyring) -> None:
    """List the tenant's keys, without their secrets.

    \b
    Example:
      penstock key list --json
    """
    listed = await keys.list()
    if not printing.as_json(listed):
        printing.table(_COLUMNS, listed, "There are no keys.")


@key.command
@click.argument("key_id")
@_on_keys
async def revoke(keys: _Keyring, /, key_id: str) -> None:
    """Revoke a key. This server refuses it immediately.

    \b
    Example:
      penstock key revoke abcdefghijklmnop
    """
    await keys.revoke(key_id)
    printing.outcome({"revoked": key_id}, f"revoked {key_id}")
