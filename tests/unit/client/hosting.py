"""An ASGI application on a socket of loopback, in this process, with faults on request.

It is the real server's application on a real connection, so that what a client meets is what it
would meet; only the process around it is replaced by one that can lose a reply, cut it short,
reset the connection or answer like a proxy does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any, TypeAlias

from msgspec import Struct

from penstock.errors import PenstockError
from penstock.wire.codecs import PROBLEM_JSON, encode_json
from penstock.wire.problems import retry_after_s, to_problem

Event: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]],
    Awaitable[None],
]


class Fault(Enum):
    """What becomes of a request."""

    DROP = auto()
    """The connection is reset before the request is acted upon."""
    LOSE = auto()
    """It is acted upon; then the connection is reset."""
    CUT = auto()
    """It is acted upon, and half of the reply is sent."""
    HANG = auto()
    """It is acted upon, and nothing is sent."""
    GARBAGE = auto()
    """The answer is not HTTP."""


class Answer(Struct, frozen=True):
    """An answer that the application never gave."""

    status: int
    body: bytes = b"<html>gateway</html>"
    content_type: str = "text/html"
    headers: tuple[tuple[str, str], ...] = ()


def problem(error: PenstockError) -> Answer:
    """What the server says when it raises this."""
    seconds = retry_after_s(error)
    headers = () if seconds is None else (("Retry-After", str(seconds)),)
    return Answer(error.status, encode_json(to_problem(error)), PROBLEM_JSON, headers)


class Seen(Struct, frozen=True):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Host:
    """Serves one application until it is stopped."""

    def __init__(self, app: App) -> None:
        self.app: Any = app
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[_Connection] = set()
        self._faults: list[tuple[str, Fault | Answer]] = []
        self._arrived = asyncio.Event()
        self.requests: list[Seen] = []
        self.connections_made = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen, on the same port as before if there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self._port, ssl=tls
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and reset every connection, as the end of a process does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.reset()
        tasks = [item.task for item in self._connections if item.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def fault(self, fault: Fault | Answer, path: str = "", times: int = 1) -> None:
        """What becomes of the next requests whose path contains ``path``."""
        self._faults += [(path, fault)] * times

    async def arrivals(self, count: int, path: str = "") -> list[Seen]:
        """The requests for a path, once there are so many."""
        async with asyncio.timeout(60):
            while len(found := [seen for seen in self.requests if path in seen.path]) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return found

    def take_fault(self, seen: Seen) -> Fault | Answer | None:
        self.requests.append(seen)
        self._arrived.set()
        for index, (path, fault) in enumerate(self._faults):
            if path in seen.path:
                del self._faults[index]
                return fault
        return None

    async def run(self, seen: Seen, gone: asyncio.Event) -> tuple[int, bytes, bytes]:
        """Status, head and body of the application's reply."""
        path, _, query = seen.path.partition("?")
        scope = {
            "type": "http",
            "method": seen.method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (name.lower().encode(), value.encode()) for name, value in seen.headers.items()
            ],
        }
        read = False
        status, head, parts = 0, b"", list[bytes]()

        async def receive() -> Event:
            nonlocal read
            if not read:
                read = True
                return {"type": "http.request", "body": seen.body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(event: Event) -> None:
            nonlocal status, head
            if event["type"] == "http.response.start":
                status = event["status"]
                lines = [b"%s: %s\r\n" % (name, value) for name, value in event["headers"]]
                head = b"".join(lines)
            else:
                parts.append(event.get("body", b""))

        await self.app(scope, receive, send)
        return status, head, b"".join(parts)


class _Connection(asyncio.Protocol):
    def __init__(self, host: Host) -> None:
        self._host = host
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._host.connections_made += 1
        self._host._connections.add(self)
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        self._more.set()
        self._host._connections.discard(self)

    def reset(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self) -> None:
        with suppress(ConnectionResetError):
            while not self._gone.is_set():
                await self._answer(await self._request())

    async def _request(self) -> Seen:
        while b"\r\n\r\n" not in self._buffer:
            await self._wait()
        head, _, _ = bytes(self._buffer).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = dict(line.split(": ", 1) for line in lines)
        end = len(head) + 4 + int(headers.get("Content-Length", "0"))
        while len(self._buffer) < end:
            await self._wait()
        body = bytes(self._buffer[len(head) + 4 : end])
        del self._buffer[:end]
        return Seen(method, path, headers, body)

    async def _wait(self) -> None:
        if self._gone.is_set():
            raise ConnectionResetError
        self._more.clear()
        await self._more.wait()

    async def _answer(self, seen: Seen) -> None:
        assert self._transport is not None
        fault = self._host.take_fault(seen)
        match fault:
            case Fault.DROP:
                self.reset()
                return
            case Fault.GARBAGE:
                self._transport.write(b"\x00\x01 this is not HTTP\r\n\r\n")
                self._transport.close()
                return
            case Answer():
                self._write(fault.status, _head(fault), fault.body)
                return
        status, head, body = await self._host.run(seen, self._gone)
        match fault:
            case Fault.LOSE:
                self.reset()
            case Fault.CUT:
                self._write(status, head, body, cut=True)
                self._transport.close()
            case Fault.HANG:
                await self._gone.wait()
            case _ if not self._gone.is_set():
                self._write(status, head, body)

    def _write(self, status: int, head: bytes, body: bytes, *, cut: bool = False) -> None:
        assert self._transport is not None
        if b"content-length" not in head.lower() and status != 204:
            head += b"content-length: %d\r\n" % len(body)
        sent = body[: len(body) // 2] if cut else body
        self._transport.write(b"HTTP/1.1 %d X\r\n%s\r\n%s" % (status, head, sent))


def _head(answer: Answer) -> bytes:
    lines = [("content-type", answer.content_type), *answer.headers]
    return "".join(f"{name}: {value}\r\n" for name, value in lines).encode()
