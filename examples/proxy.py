"""A transport of your own: a client that reaches its server through an HTTP proxy.

    python examples/proxy.py http://proxy.example.com:3128 https://penstock.example.com

The proxy has to allow CONNECT to the server. Each exchange has a connection of its own, on a
thread, because ``http.client`` blocks.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import sys
from urllib.parse import urlsplit

import penstock
from penstock.client.address import Address
from penstock.client.connection import ConnectionLost
from penstock.client.credentials import CredentialSource
from penstock.client.http import Reply
from penstock.client.options import ClientOptions
from penstock.client.transport import MakeTransport, Request


class ProxyTransport:
    """Exchanges with one server, each through the proxy."""

    def __init__(
        self,
        proxy: str,
        address: Address,
        credential: CredentialSource | None,
        tls: ssl.SSLContext | None,
        options: ClientOptions,
    ) -> None:
        if not (credential is None or isinstance(credential, str)):
            raise ValueError("this transport has no credentials that change")
        self._proxy = urlsplit(proxy)
        self._address = address
        self._credential = credential
        self._tls = tls
        self._options = options
        self.is_closed = False

    async def exchange(self, request: Request) -> Reply:
        if self.is_closed:
            raise ConnectionLost("the client is closed", sent=False)
        return await asyncio.to_thread(self._exchange, request)

    async def close(self) -> None:
        self.is_closed = True

    def _exchange(self, request: Request) -> Reply:
        timeout_s = (self._options.timeout_ms + request.timeout_ms) / 1000
        host, port = self._proxy.hostname or "", self._proxy.port
        connection = (
            http.client.HTTPConnection(host, port, timeout=timeout_s)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
        )
        connection.set_tunnel(self._address.host, self._address.port)
        try:
            connection.connect()
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect through the proxy: {error}", sent=False
            ) from error
        try:
            connection.request(request.method, request.target, request.body, self._headers(request))
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(), _retry_after_ms(answer))
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost(f"no reply: {error}", sent=True) from error
        finally:
            connection.close()

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Accept": "application/msgpack", "Content-Type": request.media}
        if isinstance(self._credential, str):
            headers["Authorization"] = f"Bearer {self._credential}"
        return headers


def _retry_after_ms(answer: http.client.HTTPResponse) -> int | None:
    seconds = answer.getheader("Retry-After") or ""
    return int(seconds) * 1000 if seconds.isdigit() else None


def through(proxy: str) -> MakeTransport:
    """The ``transport`` of ``penstock.connect`` for a proxy."""

    def make(
        address: Address,
        credential: CredentialSource | None,
        tls: ssl.SSLContext | None,
        options: ClientOptions,
    ) -> ProxyTransport:
        return ProxyTransport(proxy, address, credential, tls, options)

    return make


async def main(proxy: str, url: str) -> None:
    async with penstock.connect(url, transport=through(proxy)) as q:
        published = await q.publish("orders", {"amount": 120})
        print(f"published message {published.id}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
