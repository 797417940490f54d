"""A receiver of webhooks on a free port of this machine, which answers as the test says."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ssl
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec


class Received(NamedTuple):
    """One call."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body, type=dict[str, Any])

    def is_signed_with(self, secret: str) -> bool:
        """Checked as a receiver would: by the text of the convention, not by our code."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        head = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}."
        digest = hmac.new(key, head.encode() + self.body, hashlib.sha256).digest()
        return self.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


class Receiver:
    """Answers each call with the next of ``answers``; the last one for ever."""

    def __init__(
        self, *answers: str, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self._tls = tls
        self._host = host
        self.answers = list(answers) or ["200 OK"]
        self.calls: list[Received] = []
        #: Calls wait for this before they are answered.
        self.open = asyncio.Event()
        self.open.set()
        self.active = self.most_active = 0
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{self._host}:{self.port}/hook?a=1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self.open.set()
        self._server.close()
        await self._server.wait_closed()

    async def received(self, count: int) -> list[Received]:
        """Wait for so many calls."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.calls) >= count)
        return self.calls

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            raw = dict(line.split(": ", 1) for line in head[1:] if line)
            body = await reader.readexactly(int(headers["content-length"]))
            self.active += 1
            self.most_active = max(self.active, self.most_active)
            async with self._news:
                self.calls.append(Received(head[0].split()[1], raw, body))
                self._news.notify_all()
            await self.open.wait()
            self.active -= 1
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            writer.write(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
