"""The transport: HTTP exchanges with one server, over persistent connections.

It distinguishes how an exchange can end without a reply: the request was not sent, so it did
nothing; it was sent, and its outcome is unknown; the answer is not HTTP.
``penstock.client.calling`` decides about retries.

A call costs about a third of what it costs with aiohttp (docs/decisions/0021): it needs no more
than a socket, a head and a length.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from penstock.client.address import Address
from penstock.client.connection import Connection, ConnectionLost
from penstock.client.credentials import Credentials, CredentialSource, changes
from penstock.client.http import Reply
from penstock.client.options import ClientOptions
from penstock.version import VERSION
from penstock.wire.codecs import MSGPACK

__all__ = ["Exchanges", "MakeTransport", "Request", "Transport"]

#: The status of a request whose credential the server does not accept.
_REFUSED: Final = 401
#: Closes idle connections before most servers and proxies do, which would cost a retry.
_KEEP_IDLE_S: Final = 5.0
#: How long the first address of a name may take before the next is tried in parallel (RFC
#: 8305); uvloop tries them one after the other and does not accept this argument.
_EYEBALLS: Final[dict[str, Any]] = {"happy_eyeballs_delay": 0.25}


class Request(Struct, frozen=True, gc=False):
    """One call, which may be sent several times."""

    method: str
    target: str
    """Path and query, encoded."""
    body: bytes = b""
    media: str = MSGPACK
    repeatable: bool = True
    """Whether it may be sent again although the first attempt may have taken effect."""
    timeout_ms: int = 0
    """What the call itself waits for, in addition to the ordinary timeout."""
    waits: bool = False
    """Whether it may wait at the server for long and needs a separate connection."""
    accepts: int = 0
    """A status that is an answer to this request, though not a success."""


class Exchanges(Protocol):
    """What a client needs of a transport. ``connect(transport=…)`` accepts another one."""

    is_closed: bool
    """Whether ``close`` was called."""

    async def exchange(self, request: Request) -> Reply:
        """Send the request once and return the reply, also if its status is an error.

        Raises ``ConnectionLost`` if there is none; ``sent=False`` only if the server cannot have
        received the request, because it is then sent again.
        """
        ...

    async def close(self) -> None:
        """Close the connections; pending exchanges raise ``ConnectionLost``."""
        ...


class Transport:
    """Connections to one server."""

    def __init__(
        self,
        address: Address,
        credential: CredentialSource | None,
        tls: ssl.SSLContext | None,
        options: ClientOptions,
    ) -> None:
        self._options = options
        self._calls = _Pool(address, tls, options)
        # Calls that wait for messages must not block the calls that publish them.
        self._waits = _Pool(address, tls, options)
        self._head = (
            f" HTTP/1.1\r\nHost: {address.place}\r\nAccept: {MSGPACK}\r\n"
            f"User-Agent: penstock-python/{VERSION}\r\n"
        )
        self._credentials: Credentials | None = None
        if credential is not None and changes(credential):
            self._credentials = Credentials(credential)
        elif credential is not None:
            self._head += f"Authorization: Bearer {credential}\r\n"
        self.is_closed = False
        """Whether the transport was closed."""

    async def exchange(self, request: Request) -> Reply:
        """Send the request once; ``ConnectionLost`` if no reply comes.

        If the credential was refused and another one can be obtained, it is sent once more.
        """
        if self._credentials is None:
            return await self._send(request, "")
        line = await self._credentials.line()
        reply = await self._send(request, line)
        if reply.status == _REFUSED and await self._credentials.renew(line):
            reply = await self._send(request, await self._credentials.line())
        return reply

    async def _send(self, request: Request, authorization: str) -> Reply:
        body = request.body
        # A server without auth refuses a POST without a content type: a web page could send it.
        typed = body or request.method == "POST"
        kind = f"Content-Type: {request.media}\r\n" if typed else ""
        head = (
            f"{request.method} {request.target}{self._head}{authorization}{kind}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        timeout_s = (self._options.timeout_ms + request.timeout_ms) / 1000
        pool = self._waits if request.waits else self._calls
        async with pool.remaining:
            if self.is_closed:
                raise ConnectionLost("the client is closed", sent=False)
            connection = pool.idle() or await pool.connect()
            try:
                return await connection.exchange(head.encode() + body, timeout_s)
            finally:
                pool.put_back(connection)

    async def close(self) -> None:
        """Close the connections; pending exchanges raise ``ConnectionLost``."""
        self.is_closed = True
        self._calls.abort()
        self._waits.abort()
        # Let the loop run the callbacks of the closed connections.
        await asyncio.sleep(0)


#: Makes the transport to one server: its address, the credential, TLS, the client's options.
MakeTransport: TypeAlias = Callable[
    [Address, CredentialSource | None, ssl.SSLContext | None, ClientOptions], Exchanges
]


class _Pool:
    """A bounded number of connections; idle ones are reused."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, options: ClientOptions
    ) -> None:
        self._address = address
        self._tls = tls
        self._connect_timeout_s = options.connect_timeout_ms / 1000
        self._memory = options.memory
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._is_closed = False
        self.remaining = asyncio.Semaphore(options.max_connections)
        """Held while a connection is in use."""

    def idle(self) -> Connection | None:
        """The most recently used open connection; None if there is none."""
        if not self._idle:
            return None
        oldest = asyncio.get_running_loop().time() - _KEEP_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since > oldest:
                return connection
            self._drop(connection)
        return None

    async def connect(self) -> Connection:
        """A new connection, or ``ConnectionLost``."""
        address, loop = self._address, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._memory),
                    address.host,
                    address.port,
                    ssl=self._tls,
                    **_EYEBALLS if isinstance(loop, asyncio.BaseEventLoop) else {},
                )
        except ssl.SSLError as error:
            raise ConnectionLost(f"TLS failed: {error}", sent=False, hopeless=True) from error
        except TimeoutError as error:
            raise ConnectionLost("connecting took too long", sent=False) from error
        except OSError as error:
            raise ConnectionLost(f"cannot connect: {error}", sent=False) from error
        if self._is_closed:
            connection.abort()
            raise ConnectionLost("the client is closed", sent=False)
        self._all.add(connection)
        return connection

    def put_back(self, connection: Connection) -> None:
        """Return a connection after an exchange."""
        if connection.is_open:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def abort(self) -> None:
        """Close all connections, including those being opened."""
        self._is_closed = True
        for connection in list(self._all):
            self._drop(connection)
        self._idle.clear()

    def _drop(self, connection: Connection) -> None:
        connection.abort()
        self._all.discard(connection)
