"""The wire: HTTP exchanges with one server, over connections that are kept.

It tells apart the ways in which an exchange ends without a reply: nothing was sent, so nothing
was done; it was sent and nobody knows; what answered does not speak HTTP. Repeating is the
business of ``penstock.client.calling``.

It is our own because a call costs about a third of what it costs through aiohttp
(docs/decisions/0021): all that is needed is a socket, a head and a length.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from msgspec import Struct

from penstock.client.address import Address
from penstock.client.connection import Connection, Lost
from penstock.client.http import Reply
from penstock.client.options import ClientOptions
from penstock.version import VERSION
from penstock.wire.codecs import MSGPACK

__all__ = ["Request", "Transport"]

#: Idle connections are given up before most servers and proxies do, which would cost a try.
_KEEP_IDLE_S: Final = 5.0
#: How long the first address of a name may take before the next is tried beside it (RFC 8305);
#: uvloop tries one after the other and takes no such argument.
_EYEBALLS: Final[dict[str, Any]] = {"happy_eyeballs_delay": 0.25}


class Request(Struct, frozen=True, gc=False):
    """One call as it is sent, as often as it is sent."""

    method: str
    target: str
    """Path and query, encoded."""
    body: bytes = b""
    media: str = MSGPACK
    repeatable: bool = True
    """Sending it again does no harm where the first try may have taken effect."""
    timeout_ms: int = 0
    """More than the ordinary time-out: what the call itself waits for."""
    waits: bool = False
    """It may wait at the server for long: it gets a connection that nobody else needs."""
    accepts: int = 0
    """A status that is an answer to this request, though it is not a success."""


class Transport:
    """Connections to one server."""

    def __init__(
        self,
        address: Address,
        credential: str | None,
        tls: ssl.SSLContext | None,
        options: ClientOptions,
    ) -> None:
        self._options = options
        self._calls = _Pool(address, tls, options)
        # Whoever waits for messages must not keep those from getting through who bring them.
        self._waits = _Pool(address, tls, options)
        self._head = (
            f" HTTP/1.1\r\nHost: {address.place}\r\nAccept: {MSGPACK}\r\n"
            f"User-Agent: penstock-python/{VERSION}\r\n"
        )
        if credential is not None:
            self._head += f"Authorization: Bearer {credential}\r\n"
        self.is_closed = False
        """Whether connections were given up for good."""

    async def exchange(self, request: Request) -> Reply:
        """Send the request once; ``Lost`` if no reply comes."""
        body = request.body
        # A server without auth takes no POST without a content type: a web page could send it.
        typed = body or request.method == "POST"
        kind = f"Content-Type: {request.media}\r\n" if typed else ""
        head = (
            f"{request.method} {request.target}{self._head}{kind}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        timeout_s = (self._options.timeout_ms + request.timeout_ms) / 1000
        pool = self._waits if request.waits else self._calls
        async with pool.room:
            if self.is_closed:
                raise Lost("the client is closed", sent=False)
            connection = pool.idle() or await pool.connect()
            try:
                return await connection.exchange(head.encode() + body, timeout_s)
            finally:
                pool.put_back(connection)

    async def close(self) -> None:
        """Give up the connections; what waits for a reply is ``Lost``."""
        self.is_closed = True
        self._calls.abort()
        self._waits.abort()
        # The loop tells each that it is over.
        await asyncio.sleep(0)


class _Pool:
    """Connections of one kind: at most so many, those that are idle kept for the next call."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, options: ClientOptions
    ) -> None:
        self._address = address
        self._tls = tls
        self._connect_timeout_s = options.connect_timeout_ms / 1000
        self._memory = options.memory
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._is_closed = False
        self.room = asyncio.Semaphore(options.max_connections)
        """Held by whoever uses a connection."""

    def idle(self) -> Connection | None:
        """A connection that is open, the one that was used last; None if there is none."""
        oldest = self._loop.time() - _KEEP_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since > oldest:
                return connection
            self._drop(connection)
        return None

    async def connect(self) -> Connection:
        """A new connection, or ``Lost``."""
        address = self._address
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._loop, self._memory),
                    address.host,
                    address.port,
                    ssl=self._tls,
                    **_EYEBALLS if isinstance(self._loop, asyncio.BaseEventLoop) else {},
                )
        except ssl.SSLError as error:
            raise Lost(f"TLS failed: {error}", sent=False, hopeless=True) from error
        except TimeoutError as error:
            raise Lost("connecting took too long", sent=False) from error
        except OSError as error:
            raise Lost(f"cannot connect: {error}", sent=False) from error
        if self._is_closed:
            connection.abort()
            raise Lost("the client is closed", sent=False)
        self._all.add(connection)
        return connection

    def put_back(self, connection: Connection) -> None:
        """The exchange is over."""
        if connection.is_open:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def abort(self) -> None:
        """Give up all of them, and those that are still being made."""
        self._is_closed = True
        for connection in list(self._all):
            self._drop(connection)
        self._idle.clear()

    def _drop(self, connection: Connection) -> None:
        connection.abort()
        self._all.discard(connection)
