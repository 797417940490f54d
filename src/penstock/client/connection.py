"""One connection: one request at a time, and its reply."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from penstock.client.body import Memory
from penstock.client.http import NotHttp, Reply, ReplyReader
from penstock.errors import BadReply

__all__ = ["Connection", "ConnectionLost"]

#: The buffer for everything but large bodies.
_INBOX_BYTES: Final = 64 * 1024


class ConnectionLost(Exception):
    """No reply was received."""

    def __init__(self, cause: str, *, sent: bool, hopeless: bool = False) -> None:
        super().__init__(cause)
        self.sent = sent
        """Whether the request may have taken effect."""
        self.hopeless = hopeless
        """Whether a retry would fail too, as with a bad certificate."""


class Connection(asyncio.BufferedProtocol):
    """A socket to the server, and the parser of its replies."""

    __slots__ = (
        "_deadline",
        "_due",
        "_inbox",
        "_loop",
        "_reader",
        "_reply",
        "_room",
        "_timer",
        "_transport",
        "idle_since",
        "is_open",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: Memory) -> None:
        self._loop = loop
        self._reader = ReplyReader(memory)
        self._inbox = memoryview(bytearray(_INBOX_BYTES))
        #: The buffer for the next bytes of a large body; None: the inbox.
        self._room: memoryview | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._transport: asyncio.Transport | None = None
        #: When the exchange in progress fails, and the timer for this or an earlier time.
        self._deadline = self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False
        """Whether another request may be sent."""
        self.idle_since = 0.0

    async def exchange(self, request: bytes, timeout_s: float) -> Reply:
        """Send the request and wait for its reply; ``ConnectionLost`` if none comes.

        A cancelled exchange closes the connection, because its reply may still arrive.
        """
        assert self._transport is not None
        assert self._reply is None
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self._reply = reply
        self._await_until(self._loop.time() + timeout_s)
        try:
            self._transport.write(request)
            return await reply
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._reply = None

    def abort(self) -> None:
        """Close the connection immediately."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    def _await_until(self, deadline: float) -> None:
        """Fail the exchange at the deadline, unless it has ended.

        The timer of an earlier exchange is kept if it is due before that, and then set anew: a
        timer per exchange took a tenth of the client's processor time for a lone publish.
        """
        self._deadline = deadline
        if self._timer is None or self._due > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._due = deadline
            self._timer = self._loop.call_at(deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._reply is None:
            return
        if self._loop.time() < self._deadline:
            self._await_until(self._deadline)
        else:
            self._fail(ConnectionLost("no answer in time", sent=True))

    # -- callbacks of the event loop ---------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        # A cast: uvloop's transports implement the interface without inheriting from it.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """The buffer for the next part of a reply."""
        self._room = self._reader.remaining()
        return self._inbox if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        """A part of a reply has arrived."""
        if self._reply is None:
            # Unsolicited: the server is closing, or out of sync.
            self.abort()
            return
        try:
            if self._room is None:
                reply = self._reader.feed(bytes(self._inbox[:nbytes]))
            else:
                reply = self._reader.filled(nbytes)
        except NotHttp as error:
            self._fail(BadReply(f"The server does not speak HTTP: {error}."))
            return
        if reply is not None:
            self._answer(reply)

    def eof_received(self) -> None:
        """The server sends nothing more."""
        self.is_open = False
        reply = self._reader.end()
        if reply is not None:
            self._answer(reply)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        self.is_open = False
        cause = "the connection ended" if error is None else str(error) or type(error).__name__
        if self._reader.begun:
            cause += " in the middle of the reply"
        self._fail(ConnectionLost(cause, sent=True))

    def _answer(self, reply: Reply) -> None:
        if not self._reader.keep:
            self.abort()
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)

    def _fail(self, error: Exception) -> None:
        self.abort()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
