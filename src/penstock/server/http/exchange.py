"""One request and its reply: ASGI's ``receive`` and ``send`` on a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from penstock.errors import PenstockError
from penstock.server.http.request_head import RequestHead

__all__ = ["Cut", "Exchange", "Link"]

_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
#: A body up to this size is copied behind its head; a larger one is passed on as it is.
_WORTH_COPYING: Final = 4 * 1024
_BODILESS: Final = frozenset({204, 304})


class Cut(Exception):
    """Raised by the application to abort the connection.

    A reply that has begun cannot become a problem document, and ending it properly would make
    it look complete.
    """


class Link(Protocol):
    """What an exchange needs from its connection."""

    @property
    def date(self) -> bytes:
        """The value of the Date header."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the connection is to be closed after the reply."""
        ...

    def write(self, data: bytes) -> bool:
        """Send bytes; returns whether more can be sent without waiting."""
        ...

    def write_both(self, head: bytes, body: bytes) -> bool:
        """As ``write``, without joining the two."""
        ...

    async def drained(self) -> None:
        """Wait until more can be sent, or the connection is closed."""
        ...

    def watch(self) -> None:
        """Abort if the application waits for a disconnect that could not be seen."""
        ...

    def body_read(self) -> None:
        """Receive more: the part of the body that had arrived was read."""
        ...


class Exchange:
    """A request that is being answered."""

    __slots__ = (
        "_arrival",
        "_bodiless",
        "_chunked",
        "_error",
        "_expects_continue",
        "_headers",
        "_link",
        "_parts",
        "_status",
        "_was_read",
        "arrived",
        "disconnected",
        "ended",
        "head",
        "keeps_alive",
        "refusal",
        "unread",
    )

    def __init__(self, link: Link, head: RequestHead, refusal: PenstockError | None = None) -> None:
        self.head = head
        self.refusal = refusal
        """Why the application is to refuse the request: its head cannot be read."""
        self.keeps_alive = head.keeps_alive
        self.arrived = not head.length
        """Whether the whole body has arrived."""
        self.disconnected = False
        self.ended = False
        """Whether the whole reply was sent."""
        self.unread = 0
        """The bytes of the body that have arrived and were not read."""
        self._link = link
        self._parts: list[bytes] = []
        self._was_read = False
        self._arrival: asyncio.Future[None] | None = None
        self._error: PenstockError | None = None
        self._expects_continue = head.expects_continue
        self._status = 0
        self._headers: Iterable[tuple[bytes, bytes]] | None = None
        self._bodiless = False
        self._chunked = False

    # -- called by the connection --------------------------------------------------------

    def feed(self, part: bytes) -> None:
        """Take a part of the body."""
        if part:
            self._parts.append(part)
            self.unread += len(part)
        self._wake()

    def fail(self, error: PenstockError) -> None:
        """Make the next ``receive`` raise the error: the body cannot be read."""
        self._error = error
        self.keeps_alive = False
        self._wake()

    def disconnect(self) -> None:
        """Report that the caller is gone."""
        self.disconnected = True
        self._wake()

    @property
    def is_watching(self) -> bool:
        """Whether the application has read the body and waits for the caller to disconnect."""
        return self._was_read and self._arrival is not None

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # -- called by the application -------------------------------------------------------

    async def receive(self) -> MutableMapping[str, Any]:
        """The next part of the body; after its end, wait for the caller to disconnect."""
        while True:
            if self._parts or (self.arrived and not self._was_read):
                return self._next_part()
            if self._error is not None:
                raise self._error
            if self.disconnected:
                return {"type": "http.disconnect"}
            if self._expects_continue:
                self._expects_continue = False
                if not self._status:
                    self._link.write(_CONTINUE)
            self._arrival = asyncio.get_running_loop().create_future()
            self._link.watch()
            try:
                await self._arrival
            finally:
                self._arrival = None

    def _next_part(self) -> MutableMapping[str, Any]:
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self.arrived:
            self._was_read = True
        else:
            self._expects_continue = False
        if parts:
            self._parts = []
            self.unread = 0
            self._link.body_read()
        return {"type": "http.request", "body": body, "more_body": not self.arrived}

    async def send(self, event: MutableMapping[str, Any]) -> None:
        """Send the head or a part of the body; waits until the connection can take more.

        After a disconnect, the last part is dropped, and an earlier one raises ``OSError``, as ASGI
        asks for: the application must stop producing.
        """
        if event["type"] == "http.response.start":
            self._status = event["status"]
            self._headers = event["headers"]
            return
        body: bytes = event.get("body", b"")
        more: bool = event.get("more_body", False)
        if self.disconnected:
            if more:
                raise OSError("the caller has disconnected")
            self.ended = True
            return
        head = b"" if self._headers is None else self._reply_head(self._headers)
        if self._bodiless:
            body = b""
        elif self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        is_free = self._write(head, body)
        self.ended = not more
        if more and not is_free:
            await self._link.drained()

    def _write(self, head: bytes, body: bytes) -> bool:
        """Send both; returns whether more can be sent without waiting."""
        if head and len(body) > _WORTH_COPYING:
            return self._link.write_both(head, body)
        data = head + body
        return not data or self._link.write(data)

    def _reply_head(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The head, with the headers that belong to the connection."""
        self._headers = None
        lines = [_LINES[self._status]]
        sized = closes = False
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            sized = sized or name == b"content-length"
            closes = closes or name == b"connection"
        self._bodiless = self._status in _BODILESS or self.head.method == "HEAD"
        is_old = self.head.version == "1.0"
        if not sized and not self._bodiless:
            # Without chunks the end of the connection is the end of the body.
            self._chunked = not is_old
            self.keeps_alive = self.keeps_alive and not is_old
            if self._chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        # The rest of a body that the application did not want is not read.
        if closes or not self.arrived or self._link.stopping:
            self.keeps_alive = False
        if not self.keeps_alive and not closes:
            lines.append(b"connection: close\r\n")
        elif self.keeps_alive and is_old:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"date: %b\r\n\r\n" % self._link.date)
        return b"".join(lines)
