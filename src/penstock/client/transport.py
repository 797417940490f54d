"""The wire: one HTTP exchange at a time over kept connections. The only module that knows aiohttp.

It tells apart the three ways in which an exchange ends without a reply: nothing was sent, so
nothing was done; it was sent and nobody knows; what answered does not speak HTTP. Repeating is
the business of ``penstock.client.calling``.
"""

from __future__ import annotations

import io
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

import aiohttp
from msgspec import Struct
from multidict import CIMultiDict
from yarl import URL

from penstock.client.options import ClientOptions
from penstock.errors import BadReply
from penstock.wire.codecs import BATCH_MSGPACK, MSGPACK

__all__ = ["Lost", "Reply", "Request", "Transport"]

Handler: TypeAlias = Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]

#: aiohttp warns of larger ones, and sends what it can read in pieces.
_ONE_PIECE_BYTES: Final = 1024 * 1024
#: A reply of a hundred messages is read without stopping the socket in between.
_READ_BUFFER_BYTES: Final = 1024 * 1024
#: Idle connections are given up before most servers and proxies do, which would cost a try.
_KEEP_IDLE_S: Final = 15.0
_MAX_RETRY_AFTER_S: Final = 3600
_AGENT: Final = "penstock-python"


class Request(Struct, frozen=True, gc=False):
    """One call as it is sent, as often as it is sent."""

    method: str
    url: URL
    body: bytes | None = None
    media: str = MSGPACK
    repeatable: bool = True
    """Sending it again does no harm where the first try may have taken effect."""
    timeout_ms: int = 0
    """More than the ordinary time-out: what the call itself waits for."""
    waits: bool = False
    """It may wait at the server for long: it gets a connection that nobody else needs."""
    accepts: int = 0
    """A status that is an answer to this request, though it is not a success."""


class Reply(Struct, frozen=True, gc=False):
    """What came back."""

    status: int
    body: bytes
    retry_after_ms: int | None = None


class Lost(Exception):
    """No reply came."""

    def __init__(self, cause: str, *, sent: bool, hopeless: bool = False) -> None:
        super().__init__(cause)
        self.sent = sent
        """The request may have been acted upon."""
        self.hopeless = hopeless
        """Trying again meets the same: a certificate does not change by waiting."""


class Transport:
    """Connections to one server."""

    def __init__(
        self, credential: str | None, tls: ssl.SSLContext | None, options: ClientOptions
    ) -> None:
        self._options = options
        self._calls = _session(tls, options.max_connections)
        # Whoever waits for messages must not keep those from getting through who bring them.
        self._waits = _session(tls, options.max_connections)
        plain = {"Accept": MSGPACK, "User-Agent": _AGENT}
        if credential is not None:
            plain["Authorization"] = f"Bearer {credential}"
        self._bare = CIMultiDict(plain)
        self._headers: Mapping[str, CIMultiDict[str]] = {
            media: CIMultiDict({**plain, "Content-Type": media})
            for media in (MSGPACK, BATCH_MSGPACK)
        }

    @property
    def is_closed(self) -> bool:
        """Whether connections were given up for good."""
        return self._calls.closed

    async def exchange(self, request: Request) -> Reply:
        """Send the request once; ``Lost`` if no reply comes."""
        content = request.body
        headers = self._bare if content is None else self._headers[request.media]
        body: bytes | io.BytesIO | None = content
        if content is not None and len(content) > _ONE_PIECE_BYTES:
            body = io.BytesIO(content)
        session = self._waits if request.waits else self._calls
        try:
            async with session.request(
                request.method,
                request.url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=_timeout(
                    self._options.timeout_ms + request.timeout_ms, self._options.connect_timeout_ms
                ),
                middlewares=_ONCE if request.method == "DELETE" else None,
            ) as response:
                answer = await response.read()
                if response.status < 400:
                    return Reply(response.status, answer)
                retry_after_ms = _retry_after_ms(response.headers.get("Retry-After"))
                return Reply(response.status, answer, retry_after_ms)
        except aiohttp.ClientResponseError as error:
            raise BadReply(f"What answered does not speak HTTP: {error.message}.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _lost(error) from error

    async def close(self) -> None:
        """Give up the connections; what waits for a reply is ``Lost``."""
        await self._calls.close()
        await self._waits.close()


def _lost(error: Exception) -> Lost:
    match error:
        case aiohttp.ClientSSLError():
            return Lost(str(error), sent=False, hopeless=True)
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return Lost(str(error), sent=False)
        case TimeoutError():
            return Lost("no answer in time", sent=True)
        case _:
            return Lost(str(error) or type(error).__name__, sent=True)


async def _once(request: aiohttp.ClientRequest, send: Handler) -> aiohttp.ClientResponse:
    """Let nobody but ``penstock.client.calling`` repeat a request.

    aiohttp sends a DELETE again by itself if the connection breaks, and whoever counts on the
    answer has to know. GET and PUT are not worth the microseconds: they may be repeated anyway.
    """
    try:
        return await send(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _lost(error) from error


_ONCE: Final = (_once,)


def _session(tls: ssl.SSLContext | None, connections: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=connections, ssl=True if tls is None else tls, keepalive_timeout=_KEEP_IDLE_S
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept-Encoding",),
        read_bufsize=_READ_BUFFER_BYTES,
    )


@lru_cache(maxsize=256)
def _timeout(timeout_ms: int, connect_timeout_ms: int) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=timeout_ms / 1000, sock_connect=min(connect_timeout_ms, timeout_ms) / 1000
    )


def _retry_after_ms(value: str | None) -> int | None:
    """Whole seconds; a date, which is the other form, is not worth understanding."""
    if value is None or not value.isascii() or not value.isdigit() or len(value) > 9:
        return None
    return min(int(value), _MAX_RETRY_AFTER_S) * 1000
