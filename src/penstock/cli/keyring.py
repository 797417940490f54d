"""Where API keys are kept, for the command line: behind a server, or in a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct

from penstock.cli.session import SOON_MS, open_store
from penstock.cli.target import Target, find_target, refuse_missing
from penstock.model.clock import SystemClock

if TYPE_CHECKING:
    from penstock.client.address import Address
    from penstock.client.calling import Calls
    from penstock.server.access import KeyInfo, Keys, NewKey

__all__ = ["Keyring", "opened_keyring"]


class Keyring(Protocol):
    """The keys of one tenant."""

    async def create(self, grants: Sequence[str], *, name: str, expires_at: int | None) -> NewKey:
        """Make a key."""
        ...

    async def list(self) -> tuple[KeyInfo, ...]:
        """The keys, the oldest first."""
        ...

    async def revoke(self, key_id: str) -> None:
        """Make a key invalid."""
        ...


@asynccontextmanager
async def opened_keyring(*, may_create: bool = False) -> AsyncIterator[Keyring]:
    """The keys of the server or the store that the options name."""
    target = find_target()
    if target.url is not None:
        async with _remote(target, target.url) as remote:
            yield remote
        return
    if not may_create:
        refuse_missing(target)
    # Signatures and hashes; not needed by any other command.
    from penstock.server.access import Keys  # noqa: PLC0415

    async with open_store(target) as broker:
        yield _Local(Keys(broker.engine, SystemClock()), target.tenant)


class _Local:
    """The keys in a store."""

    def __init__(self, keys: Keys, tenant: str) -> None:
        self._keys = keys
        self._tenant = tenant

    async def create(self, grants: Sequence[str], *, name: str, expires_at: int | None) -> NewKey:
        """Make a key."""
        return await self._keys.create(self._tenant, grants, name=name, expires_at=expires_at)

    async def list(self) -> tuple[KeyInfo, ...]:
        """The keys, the oldest first."""
        return await self._keys.list(self._tenant)

    async def revoke(self, key_id: str) -> None:
        """Make a key invalid."""
        await self._keys.revoke(self._tenant, key_id)


@asynccontextmanager
async def _remote(target: Target, url: str) -> AsyncIterator[_Remote]:
    # HTTP and TLS; loaded by those who talk to a server.
    from penstock.client.address import parse_address  # noqa: PLC0415
    from penstock.client.calling import Calls  # noqa: PLC0415
    from penstock.client.options import ClientOptions  # noqa: PLC0415
    from penstock.client.transport import Transport  # noqa: PLC0415

    address = parse_address(url)
    options = ClientOptions(retry_ms=SOON_MS)
    transport = Transport(target.credential or address.credential, None, options)
    calls = Calls(transport, address.base, options)
    try:
        yield _Remote(calls, address)
    finally:
        await calls.close()


class _KeyBody(Struct, frozen=True):
    grants: Sequence[str]
    name: str
    expires_at: int | None


class _Remote:
    """The keys behind a server. They are no verbs of a program, so the client has none of this."""

    def __init__(self, calls: Calls, address: Address) -> None:
        self._calls = calls
        self._address = address

    async def create(self, grants: Sequence[str], *, name: str, expires_at: int | None) -> NewKey:
        """Make a key; not repeated when its answer is lost, because there would be two."""
        from penstock.server.access import NewKey  # noqa: PLC0415

        body = msgspec.msgpack.encode(_KeyBody(grants, name, expires_at))
        answer = await self._call("POST", "/v1/keys", body, repeatable=False)
        return msgspec.msgpack.decode(answer, type=NewKey)

    async def list(self) -> tuple[KeyInfo, ...]:
        """The keys, the oldest first."""
        from penstock.server.access import KeyInfo  # noqa: PLC0415

        answer = await self._call("GET", "/v1/keys")
        return msgspec.msgpack.decode(answer, type=dict[str, tuple[KeyInfo, ...]])["keys"]

    async def revoke(self, key_id: str) -> None:
        """Make a key invalid."""
        await self._call("DELETE", f"/v1/keys/{quote(key_id, safe='')}")

    async def _call(
        self, method: str, path: str, body: bytes | None = None, *, repeatable: bool = True
    ) -> bytes:
        from penstock.client.transport import Request  # noqa: PLC0415

        request = Request(method, self._address.url(path), body, repeatable=repeatable)
        return (await self._calls.call(request)).body
