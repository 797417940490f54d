"""The HTTP server with a small application, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import pytest

from penstock.errors import BadInput
from penstock.server.http import Cut, HttpOptions, HttpServer
from penstock.server.http.connection import Connection
from penstock.server.serve import _bound
from penstock.testing.clock import FakeClock

Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]

PATIENCE_S = 30
KB = 1024


class App:
    """Answers with the method, the path and the body; a path says how."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.left = asyncio.Event()
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()
        self.sent = 0

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.calls.append(path)
        if scope["error"] is not None:
            await reply(send, scope["error"].status, scope["error"].field.encode())
        elif path == "/refuse":
            await reply(send, 413, b"too large")
        elif path == "/wait":
            self.waiting.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
        elif path == "/gate":
            self.waiting.set()
            await self.go.wait()
            await reply(send, 200, b"gate")
        elif path == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in (b"one", b"", b"two"):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        elif path == "/cut":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise Cut
        elif path == "/endless":
            await self._endless(send)
        elif path == "/large":
            await reply(send, 200, b"x" * 4_000_000)
        elif path == "/none":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            try:
                body = await read(receive)
            except BadInput as error:
                await reply(send, error.status, str(error.field).encode())
            else:
                await reply(send, 200, f"{scope['method']} {path} {len(body)}".encode())

    async def _endless(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not self.left.is_set():
            self.waiting.set()
            await send({"type": "http.response.body", "body": b"x" * 256 * KB, "more_body": True})
            self.sent += 256 * KB
            self.waiting.clear()
        await send({"type": "http.response.body", "body": b""})


async def read(receive: Receive) -> bytes:
    body = b""
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return body
        body += event["body"]
        if not event["more_body"]:
            return body


async def reply(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Peer:
    """A caller."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Running:
    """A server and its callers."""

    def __init__(self, app: App, server: HttpServer, port: int) -> None:
        self.app = app
        self.server = server
        self.port = port
        self.peers: list[Peer] = []

    async def peer(self, data: bytes = b"") -> Peer:
        made = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.peers.append(made)
        if data:
            await made.send(data)
        return made

    async def until(self, holds: Callable[[Connection], bool]) -> None:
        """Wait until it holds for a connection of the server."""
        while not any(map(holds, self.server._connections)):  # noqa: ASYNC110
            await asyncio.sleep(0)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Running]:
    app = App()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = HttpServer(app, listener, FakeClock(), HttpOptions(**options))
        server.start()
        run = Running(app, server, port)
        try:
            yield run
        finally:
            await server.abort()
            await server.ended()
            for peer in run.peers:
                await peer.close()


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: a", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


# -- requests ------------------------------------------------------------------------------


async def test_requests_one_after_the_other() -> None:
    async with running() as run:
        peer = await run.peer()
        for size in (0, 1, 10, 70_000, 700_000):
            await peer.send(post("/a", b"x" * size))
            text = await peer.until(f"POST /a {size}".encode())
            assert text.startswith(b"HTTP/1.1 200 OK\r\ncontent-length: ")
            assert b"\r\ndate: " in text
            assert b"connection" not in text


async def test_the_last_small_part_of_a_reply_is_not_held_back() -> None:
    """Nagle's algorithm would hold it back for the 40 ms of a delayed acknowledgement."""
    with _bound("127.0.0.1", 0) as listener:
        app = App()
        server = HttpServer(app, listener, FakeClock(), HttpOptions())
        server.start()
        peer = await Running(app, server, listener.getsockname()[1]).peer(get("/"))
        await peer.until(b"GET / 0")
        (connection,) = server._connections
        accepted = connection._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await peer.close()
        await server.abort()
        await server.ended()


async def test_requests_that_do_not_wait_for_replies_are_answered_in_order() -> None:
    async with running() as run:
        requests = [
            get("/a"),
            post("/b", b"12345"),
            get("/c", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n",
            get("/stream"),
            get("/none"),
            get("/large"),
            get("/d", "Connection: close"),
            get("/never"),
        ]
        peer = await run.peer(b"".join(requests))
        text = await peer.rest()
        found = [text.index(part) for part in (b"GET /a 0", b"POST /b 5", b"POST /c 3", b"two")]
        assert found == sorted(found)
        assert text.endswith(b"GET /d 0")
        assert run.app.calls == ["/a", "/b", "/c", "/stream", "/none", "/large", "/d"]


async def test_a_long_head_that_arrives_while_another_request_is_answered() -> None:
    """More than is received ahead: the rest of it has to be received afterwards."""
    async with running() as run:
        long = get("/b", "X-Long: " + "x" * 200 * KB)
        peer = await run.peer(get("/gate") + long[: 150 * KB])
        async with asyncio.timeout(PATIENCE_S):
            await run.until(lambda connection: not connection._reading)
        sending = asyncio.create_task(peer.send(long[150 * KB :]))
        run.app.go.set()
        await peer.until(b"GET /b 0")
        await sending


async def test_a_request_that_arrives_byte_by_byte() -> None:
    async with running() as run:
        request = (
            b"\r\n"
            + get("/a", "Transfer-Encoding: chunked", method="POST")
            + b"3\r\nabc\r\n0\r\n\r\n"
            + post("/b", b"12345")
        )
        peer = await run.peer()
        for index in range(len(request)):
            await peer.send(request[index : index + 1])
            await asyncio.sleep(0)
        await peer.until(b"POST /a 3")
        await peer.until(b"POST /b 5")


async def test_a_caller_that_asks_before_it_sends_the_body() -> None:
    async with running() as run:
        head = get("/a", "Content-Length: 3", "Expect: 100-continue", method="POST")
        peer = await run.peer(head)
        assert await peer.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await peer.send(b"abc")
        assert (await peer.until(b"POST /a 3")).startswith(b"HTTP/1.1 200")
        # A refusal takes the place of the 100, and nobody knows whether the body comes.
        await peer.send(head.replace(b"/a", b"/refuse"))
        text = await peer.rest()
        assert text.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in text


async def test_a_request_for_the_head_alone() -> None:
    async with running() as run:
        peer = await run.peer(get("/a", method="HEAD") + get("/b"))
        text = await peer.until(b"GET /b 0")
        assert b"content-length: 9\r\n" in text
        assert b"HEAD /a" not in text
        await peer.send(get("/stream", method="HEAD") + get("/b"))
        text = await peer.until(b"GET /b 0")
        assert b"one" not in text


async def test_an_old_version() -> None:
    async with running() as run:
        peer = await run.peer(get("/a", "Connection: keep-alive", version="1.0"))
        assert b"connection: keep-alive" in await peer.until(b"GET /a 0")
        await peer.send(get("/stream", "Connection: keep-alive", version="1.0"))
        text = await peer.rest()
        # The end of the connection is the end of the reply.
        assert text.endswith(b"\r\n\r\nonetwo")
        assert b"chunked" not in text
        peer = await run.peer(get("/a", version="1.0"))
        assert b"connection: close" in await peer.rest()


async def test_a_stream_and_an_empty_reply() -> None:
    async with running() as run:
        peer = await run.peer(get("/stream"))
        text = await peer.until(b"0\r\n\r\n")
        assert text.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
        await peer.send(get("/none"))
        assert b"chunked" not in await peer.until(b"\r\n\r\n")


# -- refusals ------------------------------------------------------------------------------


async def test_a_head_that_cannot_be_read_ends_the_connection() -> None:
    async with running() as run:
        for request in (
            b"GET / HTTP/1.1\n\n",
            get("/a") + b"nonsense\r\n\r\n",
            get("/a") + b"G\x00",
            b"GET / HTTP/1.1\r\nX: \n",
        ):
            peer = await run.peer(request + get("/after") if request.endswith(b"\n") else request)
            text = await peer.rest()
            assert text.endswith(b"\r\n\r\nhead"), request
            assert b"HTTP/1.1 400" in text
        assert "/after" not in run.app.calls


async def test_a_head_over_the_limit() -> None:
    async with running(head_bytes=4 * KB) as run:
        for request in (b"GET /" + b"x" * 5 * KB, get("/" + "x" * 5 * KB)):
            peer = await run.peer(request)
            assert (await peer.rest()).startswith(b"HTTP/1.1 413")
        peer = await run.peer(get("/" + "x" * 3 * KB))
        await peer.until(b" 0")


async def test_a_refused_body_is_received_until_the_caller_reads() -> None:
    async with running() as run:
        peer = await run.peer(get("/refuse", "Content-Length: 9000000", method="POST"))
        # The reply is complete before the body is; closing now would discard it.
        for _ in range(90):
            await peer.send(b"x" * 100_000)
        text = await peer.rest()
        assert text.startswith(b"HTTP/1.1 413")
        assert text.endswith(b"too large")


async def test_chunks_that_cannot_be_read_end_the_connection() -> None:
    async with running() as run:
        peer = await run.peer(get("/a", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n")
        text = await peer.rest()
        assert text.startswith(b"HTTP/1.1 400")
        assert text.endswith(
            b"connection: close\r\ndate: " + run.server.date + b"\r\n\r\nTransfer-Encoding"
        )


# -- callers that leave, do not read or do not write ---------------------------------------


async def test_a_caller_that_leaves_is_reported() -> None:
    async with running() as run:
        peer = await run.peer(get("/wait"))
        async with asyncio.timeout(PATIENCE_S):
            await run.app.waiting.wait()
            peer.writer.close()
            await run.app.left.wait()


async def test_a_reply_that_is_cut_does_not_look_complete() -> None:
    async with running() as run:
        peer = await run.peer(get("/cut"))
        text = b""
        with suppress(ConnectionResetError):
            text = await peer.rest()
        assert not text.endswith(b"0\r\n\r\n")


async def test_a_caller_that_does_not_read_holds_up_its_application() -> None:
    async with running() as run:
        await run.peer(get("/endless"))
        async with asyncio.timeout(PATIENCE_S):
            await run.until(lambda connection: connection._is_blocked)
        # What the buffers of the two sockets take, and one part more.
        assert run.app.sent < 32_000_000
        run.app.left.set()


async def test_timeouts() -> None:
    async with running(head_timeout_s=0.3, reply_timeout_s=0.3) as run:
        silent = await run.peer()
        half = await run.peer(get("/a")[:-3])
        used = await run.peer(get("/a"))
        unread = await run.peer(get("/large"))
        assert await silent.rest() == b""
        assert (await half.rest()).startswith(b"HTTP/1.1 408")
        assert (await used.rest()).endswith(b"GET /a 0")
        async with asyncio.timeout(PATIENCE_S):
            while run.server.open_connections:  # noqa: ASYNC110  (it is another's task)
                await asyncio.sleep(0.05)
        unread.writer.transport.abort()


async def test_a_server_that_did_not_run_does_not_blame_its_callers() -> None:
    async with running(head_timeout_s=2) as run:
        peer = await run.peer(get("/a"))
        await peer.until(b"GET /a 0")
        before = run.server.time
        run.server._ticked -= 1_000
        async with asyncio.timeout(PATIENCE_S):
            while run.server.time == before:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await peer.send(get("/b"))
        await peer.until(b"GET /b 0")


async def test_a_call_has_all_the_time_that_it_takes() -> None:
    async with running(head_timeout_s=0.2, reply_timeout_s=0.2) as run:
        peer = await run.peer(get("/gate"))
        other = await run.peer()
        # Its own timeout has passed by then.
        await other.rest()
        run.app.go.set()
        await peer.until(b"gate")


# -- connections ---------------------------------------------------------------------------


async def test_the_number_of_connections() -> None:
    async with running(connections=2) as run:
        first, second = await run.peer(get("/a")), await run.peer(get("/a"))
        await first.until(b"GET /a 0")
        await second.until(b"GET /a 0")
        third = await run.peer(get("/b"))
        # It is answered as soon as another connection is closed.
        await first.send(get("/c"))
        await first.until(b"GET /c 0")
        assert "/b" not in run.app.calls
        await first.close()
        await third.until(b"GET /b 0")


async def test_a_stop_answers_what_has_begun() -> None:
    async with running() as run:
        idle = await run.peer(get("/a"))
        await idle.until(b"GET /a 0")
        busy = await run.peer(get("/gate"))
        half = await run.peer(get("/b")[:-3])
        async with asyncio.timeout(PATIENCE_S):
            await run.app.waiting.wait()
            await run.until(lambda connection: bool(connection._buffer))
            run.server.stop()
            assert await idle.rest() == b""
            run.app.go.set()
            text = await busy.rest()
            assert b"connection: close" in text
            assert text.endswith(b"gate")
            await half.send(get("/b")[-3:])
            assert (await half.rest()).endswith(b"GET /b 0")
            await run.server.ended()
        with pytest.raises(ConnectionRefusedError):
            await run.peer()


async def test_an_abort_cancels_the_calls() -> None:
    async with running() as run:
        peer = await run.peer(get("/gate"))
        async with asyncio.timeout(PATIENCE_S):
            await run.app.waiting.wait()
            await run.server.abort()
            await run.server.ended()
            assert await peer.rest() == b""


async def test_an_application_that_sends_to_a_caller_that_left_is_stopped() -> None:
    async with running() as run:
        peer = await run.peer(get("/endless"))
        async with asyncio.timeout(PATIENCE_S):
            await run.app.waiting.wait()
            await peer.close()
            while run.server.calls:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert not run.app.left.is_set()


async def test_a_stop_waits_for_a_call_whose_caller_left() -> None:
    async with running() as run:
        peer = await run.peer(get("/gate"))
        async with asyncio.timeout(PATIENCE_S):
            await run.app.waiting.wait()
            await peer.close()
            while run.server.open_connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            run.server.stop()
            assert not run.server._ended.is_set()
            run.app.go.set()
            await run.server.ended()


async def test_requests_behind_a_long_poll_do_not_hide_that_the_caller_left() -> None:
    async with running() as run:
        peer = await run.peer(get("/wait"))
        async with asyncio.timeout(PATIENCE_S):
            await run.app.waiting.wait()
            with suppress(ConnectionError):
                await peer.send(get("/a") * 20_000)
            await run.app.left.wait()


async def test_an_empty_line_does_not_prolong_the_wait_for_a_request() -> None:
    async with running(head_timeout_s=1) as run:
        peer = await run.peer()
        async with asyncio.timeout(PATIENCE_S):
            await run.until(lambda _: True)
            (connection,) = run.server._connections
            before = connection._since
            run.server.time += 0.9
            await peer.send(b"\r\n")
            await peer.send(get("/a"))
            await peer.until(b"GET /a 0")
            run.server.time += 0.9
            connection.data_received(b"\r\n")
            assert connection._since == before + 0.9
            run.server.time += 0.9
            connection.check(run.server.time)
            assert await peer.rest() == b""
