"""The HTTP server: accepts connections and ends those that take too long."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any, Final, TypeAlias

from msgspec import Struct

from penstock.model.clock import Clock
from penstock.server.http.connection import Connection

__all__ = ["Asgi", "HttpOptions", "HttpServer"]

log = logging.getLogger("penstock.server")

Event: TypeAlias = MutableMapping[str, Any]
#: An ASGI application.
Asgi: TypeAlias = Callable[
    [Event, Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]
]

#: Connections that the kernel queues while the server is busy.
_BACKLOG: Final = 1024
#: Connections that are accepted before anything else is done.
_ACCEPTS: Final = 64
#: How often connections are checked for timeouts, which are late by up to this much.
_TICK_S: Final = 0.25
#: How long to wait before accepting again when the system has no descriptors or memory.
_PAUSE_S: Final = 0.5
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: How long a caller may take to read the rest of a reply and confirm the end of a TLS connection.
_TLS_END_S: Final = 5.0


class HttpOptions(Struct, frozen=True, kw_only=True):
    """The limits of a server."""

    connections: int = 10_000
    head_bytes: int = 256 * 1024
    head_timeout_s: float = 10.0
    """For a head to arrive, and for the next request on a connection to begin."""
    reply_timeout_s: float = 30.0
    """For a caller to read something of a reply that the application has sent."""


class HttpServer:
    """Serves an ASGI application on a bound socket, on the running event loop."""

    def __init__(
        self,
        application: Asgi,
        listener: socket.socket,
        clock: Clock,
        options: HttpOptions,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.application = application
        self.options = options
        self.scheme = "http" if tls is None else "https"
        self.loop = asyncio.get_running_loop()
        self.time = 0.0
        """For timeouts: it passes only while the server has connections and serves them."""
        self._ticked = 0.0
        self.date = b""
        self.stopping = False
        self._listener = listener
        self._clock = clock
        self._tls = tls
        self._connections: set[Connection] = set()
        self.calls: set[asyncio.Task[None]] = set()
        """Requests that are being answered, also those whose caller has left."""
        #: Accepted, and not connected yet: TLS handshakes.
        self._connecting: set[asyncio.Task[None]] = set()
        self._accepting = False
        self._ticking: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def start(self) -> None:
        """Listen and accept connections."""
        self._listener.setblocking(False)
        # Listen also if connections of an earlier server linger on the port.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.listen(_BACKLOG)
        self._accept_more()

    def stop(self) -> None:
        """Accept nothing more, and close each connection after its reply."""
        if self.stopping:
            return
        self.stopping = True
        self._accept_no_more()
        self._listener.close()
        for connection in tuple(self._connections):
            connection.stop()
        self._end()

    async def ended(self) -> None:
        """Wait until every connection is closed and every call has ended."""
        await self._ended.wait()

    async def abort(self) -> None:
        """Abort every connection, and cancel the calls in progress."""
        self.stop()
        for connection in tuple(self._connections):
            connection.abort()
        tasks = [*self.calls, *self._connecting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- called by connections -----------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Count a connection."""
        if self._ticking is None:
            self._ticked = self.loop.time()
            self._set_date()
            self._ticking = self.loop.call_later(_TICK_S, self._tick)
        self._connections.add(connection)
        if self.stopping:
            connection.stop()

    def closed(self, connection: Connection) -> None:
        """Accept another connection in its place."""
        self._connections.discard(connection)
        self._has_room()

    def answered(self, task: asyncio.Task[None] | None) -> None:
        """Forget a call."""
        if task is not None:
            self.calls.discard(task)
        if self.stopping:
            self._end()

    # -- accepting -----------------------------------------------------------------------

    def _accept_more(self) -> None:
        if not self._accepting and not self.stopping:
            self._accepting = True
            self.loop.add_reader(self._listener, self._accept)

    def _accept_no_more(self) -> None:
        if self._accepting:
            self._accepting = False
            self.loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            if len(self._connections) + len(self._connecting) >= self.options.connections:
                # The others wait in the kernel's queue.
                self._accept_no_more()
                return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.warning("Cannot accept a connection: %s.", error.strerror)
                self._accept_no_more()
                self.loop.call_later(_PAUSE_S, self._accept_more)
                return
            accepted.setblocking(False)
            task = self.loop.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connected)

    async def _connect(self, accepted: socket.socket) -> None:
        timeouts = {} if self._tls is None else self._tls_timeouts()
        try:
            await self.loop.connect_accepted_socket(
                lambda: Connection(self), accepted, ssl=self._tls, **timeouts
            )
        except (OSError, TimeoutError) as error:
            # SSLError is an OSError: a caller without TLS, or without a certificate.
            log.debug("A connection failed: %s.", error)
            accepted.close()

    def _tls_timeouts(self) -> dict[str, float]:
        return {
            "ssl_handshake_timeout": self.options.head_timeout_s,
            "ssl_shutdown_timeout": _TLS_END_S,
        }

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        self._has_room()

    def _has_room(self) -> None:
        if self.stopping:
            self._end()
        elif len(self._connections) + len(self._connecting) < self.options.connections:
            self._accept_more()

    def _end(self) -> None:
        if not self._connections and not self._connecting and not self.calls:
            self._ended.set()

    # -- time ----------------------------------------------------------------------------

    def _set_date(self) -> None:
        self.date = formatdate(self._clock.now() // 1000, usegmt=True).encode()

    def _tick(self) -> None:
        """End connections that are late.

        If the process did not run for a while, requests may have arrived and not been read yet.
        Such a time does not count against the callers.
        """
        now = self.loop.time()
        self.time += min(now - self._ticked, 2 * _TICK_S)
        self._ticked = now
        self._set_date()
        self._ticking = self.loop.call_later(_TICK_S, self._tick) if self._connections else None
        for connection in tuple(self._connections):
            connection.check(self.time)
