"""API keys for the command line: through a server, or directly in a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec

from penstock.cli.session import open_store
from penstock.cli.target import find_target, refuse_missing
from penstock.errors import Unreachable

if TYPE_CHECKING:
    from penstock.server.access import KeyInfo, Keys, NewKey

__all__ = ["Keyring", "opened_keyring"]

_TIMEOUT_S: Final = 30.0
#: Statuses from here on are errors.
_REFUSED: Final = 400


class Keyring(Protocol):
    """The keys of one tenant."""

    async def create(self, grants: Sequence[str], *, name: str, expires_at: int | None) -> NewKey:
        """Create a key."""
        ...

    async def list(self) -> tuple[KeyInfo, ...]:
        """The keys, oldest first."""
        ...

    async def revoke(self, key_id: str) -> None:
        """Revoke a key."""
        ...


@asynccontextmanager
async def opened_keyring(*, may_create: bool = False) -> AsyncIterator[Keyring]:
    """The keys of the server or the store that the options name."""
    target = find_target()
    if target.url is not None:
        yield _Remote(target.url, target.credential)
        return
    if not may_create:
        refuse_missing(target)
    # Imports cryptography, which no other command needs.
    from penstock.server.access import Keys  # noqa: PLC0415

    async with open_store(target) as broker:
        yield _Local(Keys(broker.engine, broker.engine.clock), target.tenant)


class _Local:
    """The keys in a store."""

    def __init__(self, keys: Keys, tenant: str) -> None:
        self._keys = keys
        self._tenant = tenant

    async def create(self, grants: Sequence[str], *, name: str, expires_at: int | None) -> NewKey:
        """Create a key."""
        return await self._keys.create(self._tenant, grants, name=name, expires_at=expires_at)

    async def list(self) -> tuple[KeyInfo, ...]:
        """The keys, oldest first."""
        return await self._keys.list(self._tenant)

    async def revoke(self, key_id: str) -> None:
        """Revoke a key."""
        await self._keys.revoke(self._tenant, key_id)


class _Remote:
    """The keys behind a server.

    Key management is not part of the client. Calls are not retried: if the reply to a create is
    lost, a retry would create a second key.
    """

    def __init__(self, url: str, credential: str | None) -> None:
        self._parts = urlsplit(url)
        self._credential = credential or unquote(self._parts.password or "")

    async def create(self, grants: Sequence[str], *, name: str, expires_at: int | None) -> NewKey:
        """Create a key."""
        from penstock.server.access import NewKey  # noqa: PLC0415

        body = {"grants": list(grants), "name": name, "expires_at": expires_at}
        return msgspec.json.decode(await self._call("POST", "/v1/keys", body), type=NewKey)

    async def list(self) -> tuple[KeyInfo, ...]:
        """The keys, oldest first."""
        from penstock.server.access import KeyInfo  # noqa: PLC0415

        reply = await self._call("GET", "/v1/keys")
        return msgspec.json.decode(reply, type=dict[str, tuple[KeyInfo, ...]])["keys"]

    async def revoke(self, key_id: str) -> None:
        """Revoke a key."""
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
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
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
