"""``penstock.connect(url)``: a client for the server at a URL."""

from __future__ import annotations

import ssl
from collections.abc import Generator

from penstock.client.address import Address, check_credential, parse_address
from penstock.client.calling import Calls
from penstock.client.client import Client
from penstock.client.options import ClientOptions, check_options
from penstock.client.transport import Transport
from penstock.errors import BadInput, BadUrl

__all__ = ["Connecting", "connect"]


class Connecting:
    """A client that is not connected yet: ``await`` it, or use it in ``async with``."""

    def __init__(
        self,
        url: str,
        credential: str | None,
        ca: str | ssl.SSLContext | None,
        options: ClientOptions,
    ) -> None:
        self._url = url
        self._credential = credential
        self._ca = ca
        self._options = options
        self._client: Client | None = None

    def __await__(self) -> Generator[object, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        options = check_options(self._options)
        address = parse_address(self._url)
        tls = _tls(self._ca, address)
        credential = _credential(self._credential, address)
        transport = Transport(address, credential, tls, options)
        return Client(Calls(transport, address.url, options), address, options)


def connect(
    url: str,
    *,
    credential: str | None = None,
    ca: str | ssl.SSLContext | None = None,
    options: ClientOptions | None = None,
) -> Connecting:
    """A client for the server at ``url``: ``async with penstock.connect(url) as q``.

    ``credential`` is an API key or a JWT; the URL may contain it instead, as
    ``https://:KEY@host``. ``ca`` is a file with the certificate authorities of an ``https``
    server, if they are not the system's, or an ``SSLContext``.

    Nothing is sent yet: only the first call finds out whether the server can be reached.
    """
    return Connecting(url, credential, ca, options or ClientOptions())


def _credential(credential: str | None, address: Address) -> str | None:
    if credential is not None and address.credential is not None:
        raise BadInput(
            "There are credentials in the URL and in the call; give one.", field="credential"
        )
    chosen = address.credential if credential is None else credential
    return None if chosen is None else check_credential(chosen)


def _tls(ca: str | ssl.SSLContext | None, address: Address) -> ssl.SSLContext | None:
    if not address.is_secure:
        if ca is not None:
            raise BadUrl("ca is for https, and the URL is http.", field="ca")
        return None
    if isinstance(ca, ssl.SSLContext):
        return ca
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"The CA file {ca!r} cannot be read: {error}.", field="ca") from error
