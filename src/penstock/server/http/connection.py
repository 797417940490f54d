"""A connection: reads requests, hands them to the application one after the other.

::

    waiting ──▶ head complete ──▶ answering ──▶ reply sent ──▶ waiting
       │                              │              │
       │ timeout, caller gone         │ Cut          │ Connection: close, rest of a body,
       ▼                              ▼              ▼ the server stops
     closed                        aborted       lingering ──▶ closed

Requests that a caller sends without waiting for replies are answered in order: their bytes stay
in the buffer until the reply before them was sent. Nothing is read while the buffer, or the
part of a body that the application has not read, is above its limit. Nothing more is answered
while the caller does not read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from penstock.errors import BadInput, PenstockError, SlowRequest, TooLarge
from penstock.server.http.chunks import ChunkDecoder
from penstock.server.http.exchange import Cut, Exchange
from penstock.server.http.request_head import CHUNKED, RequestHead, check_partial, parse_head

if TYPE_CHECKING:
    from penstock.server.http.server import HttpServer

__all__ = ["Connection"]

#: Bytes of a body, or of later requests, that are received before they are needed.
_AHEAD_BYTES: Final = 64 * 1024
#: Unsent bytes of a reply above which the application waits.
_UNSENT_BYTES: Final = 64 * 1024
#: How long the rest of a refused body is received. A caller that is still sending does not read
#: the reply yet, and closing the socket would discard it.
_LINGER_S: Final = 1.0
_END: Final = b"\r\n\r\n"
#: Stands for a head that cannot be read.
_UNREADABLE: Final = RequestHead("GET", b"/", "/", b"", "1.1", (), 0, False, False)


class Connection(asyncio.Protocol):
    """One connection of a caller."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport
        #: Received, and not yet parsed.
        self._buffer: bytes | bytearray = b""
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        #: How the body of the exchange is framed: bytes that are missing, or chunks.
        self._missing = 0
        self._chunks: ChunkDecoder | None = None
        self._reading = True
        #: Set while the caller reads too slowly; resolved when more can be sent.
        self._draining: asyncio.Future[None] | None = None
        self._is_blocked = False
        self._is_lingering = False
        #: When the connection began to wait, in the server's time.
        self._since = 0.0
        self._unsent = 0
        self._peer: object = None

    # -- the transport's events ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        # A cast: uvloop's transports implement the interface without inheriting from it.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        self._peer = self._transport.get_extra_info("peername")
        self._server.opened(self)
        self._since = self._server.time

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Report the disconnect to the application, which ends a waiting call."""
        self._buffer = b""
        self._server.closed(self)
        if self._exchange is not None:
            self._exchange.disconnect()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take the next bytes of a head, a body, or later requests."""
        if self._is_lingering:
            return
        exchange = self._exchange
        if exchange is not None and not exchange.arrived:
            data = self._feed(exchange, data)
            if not data:
                return
        if not self._buffer:
            if data == b"\r\n":
                return  # Not the beginning of a request, so it does not prolong the wait for one.
            self._buffer = data
            self._since = self._server.time
            self._look(0)
        else:
            known = len(self._buffer)
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += data
            self._look(known)

    def pause_writing(self) -> None:
        """The caller reads more slowly than the application sends."""
        self._is_blocked = True
        self._since = self._server.time

    def resume_writing(self) -> None:
        """The caller has read most of what was sent."""
        self._is_blocked = False
        if self._draining is not None and not self._draining.done():
            self._draining.set_result(None)
        if self._exchange is None:
            self._read_on()

    # -- requests ------------------------------------------------------------------------

    def _look(self, known: int) -> None:
        """Begin the next request if its head is complete; ``known`` bytes have no end of one."""
        buffer = self._buffer
        if self._exchange is not None or self._is_blocked:
            if len(buffer) > _AHEAD_BYTES:
                self._pause_reading()
                self.watch()
            return
        if buffer.startswith(b"\r\n"):
            # RFC 9112, 2.2: an empty line before the request is ignored.
            buffer = self._buffer = buffer[2:]
            known = max(0, known - 2)
        end = buffer.find(_END, max(0, known - 3))
        if end > self._server.options.head_bytes or (
            end < 0 and len(buffer) > self._server.options.head_bytes
        ):
            self._refuse(_head_too_large(self._server.options.head_bytes))
            return
        try:
            if end < 0:
                check_partial(bytes(buffer[max(0, known - 1) : known]), bytes(buffer[known:]))
                return
            head = parse_head(bytes(buffer[:end]))
        except BadInput as error:
            self._refuse(error)
            return
        self._begin(Exchange(self, head), bytes(buffer[end + 4 :]))

    def _begin(self, exchange: Exchange, rest: bytes) -> None:
        self._exchange = exchange
        self._buffer = b""
        length = exchange.head.length
        if length:
            if length == CHUNKED:
                self._chunks = ChunkDecoder()
            else:
                self._missing = length
            if rest:
                rest = self._feed(exchange, rest)
        self._buffer = rest
        if len(rest) > _AHEAD_BYTES:
            self._pause_reading()
        self._task = self._server.loop.create_task(self._answer(exchange))
        self._server.calls.add(self._task)

    def _feed(self, exchange: Exchange, data: bytes) -> bytes:
        """Give a part of the body to the exchange; returns what follows the body."""
        rest = b""
        if self._chunks is None:
            missing = self._missing
            if len(data) >= missing:
                exchange.arrived = True
                if len(data) > missing:
                    data, rest = data[:missing], data[missing:]
            self._missing = missing - len(data)
        else:
            try:
                data = self._chunks.feed(data)
            except BadInput as error:
                self._is_lingering = True
                exchange.fail(error)
                return b""
            if self._chunks.rest is not None:
                exchange.arrived = True
                rest = self._chunks.rest
                self._chunks = None
        exchange.feed(data)
        if exchange.unread > _AHEAD_BYTES and not exchange.arrived:
            self._pause_reading()
        return rest

    def _refuse(self, error: PenstockError) -> None:
        """Let the application answer with a problem document, and close the connection."""
        self._is_lingering = True
        self._begin(Exchange(self, _UNREADABLE, error), b"")

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._server.application(self._scope(exchange), exchange.receive, exchange.send)
        except Cut:
            exchange.ended = False
        finally:
            task, self._task = self._task, None
            self._exchange = None
            self._server.answered(task)
            if not exchange.ended:
                self._transport.abort()
            elif not exchange.disconnected:
                self._next(exchange)
            # Ends what still waits for the caller to leave.
            exchange.disconnect()

    def _scope(self, exchange: Exchange) -> dict[str, object]:
        head = exchange.head
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "method": head.method,
            "scheme": self._server.scheme,
            "path": head.path,
            "raw_path": head.target,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self._peer,
            "error": exchange.refusal,
        }

    def _next(self, exchange: Exchange) -> None:
        """After a reply: wait for the next request, or close the connection."""
        self._since = self._server.time
        if not exchange.keeps_alive or self._server.stopping:
            self._close(linger=not exchange.arrived or bool(self._buffer) or self._is_lingering)
            return
        self._read_on()

    def _read_on(self) -> None:
        """Begin the next request if it has arrived, and receive more."""
        if self._buffer:
            self._look(0)
        if self._exchange is None or len(self._buffer) <= _AHEAD_BYTES:
            self._resume_reading()

    # -- for exchanges -------------------------------------------------------------------

    @property
    def date(self) -> bytes:
        """The value of the Date header."""
        return self._server.date

    @property
    def stopping(self) -> bool:
        """Whether the connection is to be closed after the reply."""
        return self._server.stopping

    def write(self, data: bytes) -> bool:
        """Send bytes; returns whether more can be sent without waiting."""
        # uvloop raises if a caller hangs up between this call and ``connection_lost``.
        if not self._transport.is_closing():
            self._transport.write(data)
        return not self._is_blocked

    def write_both(self, head: bytes, body: bytes) -> bool:
        """As ``write``, without joining the two."""
        if not self._transport.is_closing():
            self._transport.writelines((head, body))
        return not self._is_blocked

    async def drained(self) -> None:
        """Wait until more can be sent, or the connection is closed."""
        self._draining = self._server.loop.create_future()
        try:
            await self._draining
        finally:
            self._draining = None

    def watch(self) -> None:
        """Abort if the application waits for a disconnect that could not be seen.

        The caller has sent so many requests behind a long poll that nothing more is read.
        """
        if not self._reading and self._exchange is not None and self._exchange.is_watching:
            self._transport.abort()

    def body_read(self) -> None:
        """Receive more: the part of the body that had arrived was read."""
        if self._exchange is not None and not self._exchange.arrived:
            self._resume_reading()

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    # -- ending --------------------------------------------------------------------------

    def stop(self) -> None:
        """Close the connection if it waits for a request, otherwise after the reply.

        A request whose head has begun to arrive has until its timeout.
        """
        if self._exchange is None and not self._buffer and not self._is_lingering:
            self._close(linger=False)

    def abort(self) -> None:
        """Abort the connection."""
        self._transport.abort()

    def check(self, time: float) -> None:
        """End a connection that has kept the server waiting for too long."""
        options = self._server.options
        waited = time - self._since
        unsent = self._transport.get_write_buffer_size()
        if unsent and unsent != self._unsent:
            self._since = time
        elif unsent:
            # The application has a timeout of its own for the replies that it is sending.
            if self._exchange is None and waited > options.reply_timeout_s:
                self._transport.abort()
        elif self._is_lingering:
            if self._exchange is None and waited > _LINGER_S:
                self._transport.abort()
        elif self._exchange is None and waited > self._idle_timeout_s:
            if self._buffer:
                self._refuse(_slow_head(options.head_timeout_s))
            else:
                self._close(linger=False)
        self._unsent = unsent

    @property
    def _idle_timeout_s(self) -> float:
        """How long to wait for a head. Of a TLS connection, replies may still be on their way: the
        transport counts only what it has not encrypted.
        """
        options = self._server.options
        if self._server.scheme == "http" or self._buffer:
            return options.head_timeout_s
        return max(options.head_timeout_s, options.reply_timeout_s)

    def _close(self, *, linger: bool) -> None:
        self._buffer = b""
        self._is_lingering = True
        self._since = self._server.time
        if not linger:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._resume_reading()


_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}


def _head_too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"The head of the request is over the limit of {limit} bytes.", field="head", limit=limit
    )


def _slow_head(timeout_s: float) -> SlowRequest:
    return SlowRequest(
        f"The head of the request took longer than {timeout_s:g} s to arrive.", field="head"
    )
