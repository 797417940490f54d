"""A connection on which HTTP is written by hand, as well or as badly as a test wants.

On a bare socket: a server that refuses a body answers and closes while it still comes, and
streams of asyncio forget what they have read when they cannot write.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final, Self

from msgspec import Struct

from tests.service.serving import Served

#: Longer than anything takes that is not stuck.
PATIENCE_S: Final = 30


class Reply(Struct, frozen=True):
    """One reply; the names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """One connection."""

    def __init__(self) -> None:
        self._sock = socket.socket()
        self._sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._read = b""

    @classmethod
    async def to(cls, server: Served) -> Self:
        """Connected."""
        wire = cls()
        await wire._loop.sock_connect(wire._sock, (server.host, server.port))
        return wire

    @classmethod
    async def post(cls, server: Served, path: str, framing: str) -> Self:
        """Connected, with the head of a request sent; ``framing`` are headers."""
        if "content-type:" not in framing.lower():
            framing = f"Content-Type: application/octet-stream\r\n{framing}"
        wire = await cls.to(server)
        await wire.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode())
        return wire

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def send(self, content: bytes) -> None:
        """Send it, or as much of it as the server takes."""
        with suppress(ConnectionError):
            await self._loop.sock_sendall(self._sock, content)

    async def head(self) -> str:
        """The head of the next reply."""
        async with asyncio.timeout(PATIENCE_S):
            while b"\r\n\r\n" not in self._read:
                await self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        return head.decode()

    async def reply(self) -> Reply:
        """The next reply."""
        first, *lines = (await self.head()).split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        async with asyncio.timeout(PATIENCE_S):
            while len(self._read) < length:
                await self._more()
        body, self._read = self._read[:length], self._read[length:]
        return Reply(int(first.split()[1]), headers, body)

    async def rest(self) -> str:
        """Everything until the connection is closed or cut."""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                while part := await self._loop.sock_recv(self._sock, 1 << 16):
                    self._read += part
        rest, self._read = self._read, b""
        return rest.decode()

    async def _more(self) -> None:
        part = await self._loop.sock_recv(self._sock, 1 << 16)
        assert part, f"the connection was closed after {self._read!r}"
        self._read += part

    def close(self) -> None:
        self._sock.close()
