"""Connections: kept, bounded, and given up when they are not good any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from msgspec.structs import replace

from penstock.client.address import parse_address
from penstock.client.connection import ConnectionLost
from penstock.client.http import Reply
from penstock.client.transport import Request, Transport
from penstock.errors import BadReply
from tests.unit.client.conftest import QUICK

pytestmark = pytest.mark.timeout(60)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REQUEST = Request("GET", "/x")


class Peer:
    """A server that says what the test says, byte by byte."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.heads: list[bytes] = []
        self.arrived = asyncio.Event()
        self.answer: Callable[[bytes], bytes | None] = lambda head: OK
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.connections:
            writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                self.arrived.set()
                said = self.answer(head)
                if said is not None:
                    writer.write(said)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    made = Peer()
    yield made
    await made.stop()


async def transport(peer: Peer, **options: int) -> Transport:
    address = parse_address(await peer.start())
    return Transport(address, None, None, replace(QUICK, **options))


async def test_a_request_as_it_is_sent(peer: Peer) -> None:
    wire = await transport(peer)
    assert await wire.exchange(REQUEST) == Reply(200, b"ok")
    await wire.exchange(Request("POST", "/y?z=1", b"\r\n\r\n"))
    first, second, _ = peer.heads
    assert first.startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nContent-Length: 0\r\n\r\n" in first
    assert b"Content-Type" not in first
    assert b"\r\nContent-Type: application/msgpack\r\nContent-Length: 4\r\n\r\n" in second
    await wire.close()


async def test_a_connection_that_the_server_closed_is_not_used_again(peer: Peer) -> None:
    """No try is lost on it: the end of an idle connection is noticed."""
    wire = await transport(peer)
    await wire.exchange(REQUEST)
    peer.connections[0].close()
    await peer.connections[0].wait_closed()
    await asyncio.sleep(0)
    assert (await wire.exchange(REQUEST)).status == 200
    assert len(peer.connections) == 2
    await wire.close()


async def test_a_server_that_wants_to_close_is_heard(peer: Peer) -> None:
    peer.answer = lambda head: OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    wire = await transport(peer)
    for _ in range(3):
        await wire.exchange(REQUEST)
    assert len(peer.connections) == 3
    await wire.close()


async def test_what_nobody_asked_for_ends_the_connection(peer: Peer) -> None:
    """A second answer would be taken for that of the next request."""
    peer.answer = lambda head: OK + OK
    wire = await transport(peer)
    for _ in range(2):
        assert await wire.exchange(REQUEST) == Reply(200, b"ok")
    assert len(peer.connections) == 2
    await wire.close()


async def test_a_late_answer_is_not_taken_for_the_next_requests(peer: Peer) -> None:
    peer.answer = lambda head: None
    wire = await transport(peer, timeout_ms=50)
    with pytest.raises(ConnectionLost, match="in time") as caught:
        await wire.exchange(REQUEST)
    assert caught.value.sent
    peer.answer = lambda head: OK.replace(b"ok", b"no")
    peer.connections[0].write(OK)
    assert (await wire.exchange(REQUEST)).body == b"no"
    assert len(peer.connections) == 2
    await wire.close()


async def test_whoever_is_cancelled_takes_the_connection_along(peer: Peer) -> None:
    peer.answer = lambda head: None
    wire = await transport(peer)
    call = asyncio.create_task(wire.exchange(REQUEST))
    await peer.arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    peer.answer = lambda head: OK
    await wire.exchange(REQUEST)
    assert len(peer.connections) == 2
    await wire.close()


async def test_connections_are_bounded(peer: Peer) -> None:
    peer.answer = lambda head: None
    wire = await transport(peer, max_connections=2)
    calls = [asyncio.create_task(wire.exchange(REQUEST)) for _ in range(5)]
    async with asyncio.timeout(60):
        while len(peer.heads) < 2:
            peer.arrived.clear()
            await peer.arrived.wait()
        # Answering one lets the next one through, on the same connection.
        peer.answer = lambda head: OK
        for writer in list(peer.connections):
            writer.write(OK)
        replies = await asyncio.gather(*calls)
    assert len(peer.connections) == 2
    assert [reply.status for reply in replies] == [200] * 5
    await wire.close()


async def test_an_answer_that_breaks_off_is_lost(peer: Peer) -> None:
    peer.answer = lambda head: OK[:-1]
    wire = await transport(peer)
    call = asyncio.create_task(wire.exchange(REQUEST))
    await peer.arrived.wait()
    peer.connections[0].close()
    with pytest.raises(ConnectionLost, match="in the middle of the reply") as caught:
        await call
    assert caught.value.sent
    await wire.close()


async def test_an_answer_up_to_the_end_of_the_connection(peer: Peer) -> None:
    peer.answer = lambda head: b"HTTP/1.0 200 OK\r\n\r\nhello"
    wire = await transport(peer)
    call = asyncio.create_task(wire.exchange(REQUEST))
    await peer.arrived.wait()
    peer.connections[0].close()
    assert await call == Reply(200, b"hello")
    await wire.close()


async def test_what_does_not_speak_http_is_a_bad_reply(peer: Peer) -> None:
    peer.answer = lambda head: b"-ERR unknown command 'GET'\r\n"
    wire = await transport(peer)
    with pytest.raises(BadReply, match="does not speak HTTP"):
        await wire.exchange(REQUEST)
    await wire.close()


async def test_a_large_answer_in_chunks(peer: Peer) -> None:
    body = bytes(range(256)) * 2048
    parts = [body[begin : begin + 5000] for begin in range(0, len(body), 5000)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    peer.answer = lambda request: head + chunks + b"0\r\n\r\n"
    wire = await transport(peer)
    for _ in range(2):
        assert (await wire.exchange(REQUEST)).body == body
    assert len(peer.connections) == 1
    await wire.close()


async def test_closing_ends_what_is_under_way(peer: Peer) -> None:
    peer.answer = lambda head: None
    wire = await transport(peer)
    call = asyncio.create_task(wire.exchange(REQUEST))
    await peer.arrived.wait()
    await wire.close()
    with pytest.raises(ConnectionLost):
        await call
    with pytest.raises(ConnectionLost, match="closed"):
        await wire.exchange(REQUEST)


async def test_the_timer_of_an_earlier_exchange_does_not_end_a_longer_one(peer: Peer) -> None:
    wire = await transport(peer, timeout_ms=50)
    await wire.exchange(REQUEST)
    peer.answer = lambda head: None
    late = asyncio.get_running_loop().call_later(0.2, lambda: peer.connections[0].write(OK))
    reply = await wire.exchange(replace(REQUEST, timeout_ms=60_000))
    assert reply == Reply(200, b"ok")
    assert late.when() <= asyncio.get_running_loop().time()
    assert len(peer.connections) == 1
    await wire.close()


async def test_a_shorter_exchange_ends_before_the_timer_of_an_earlier_one(peer: Peer) -> None:
    wire = await transport(peer, timeout_ms=50)
    await wire.exchange(replace(REQUEST, timeout_ms=60_000))
    peer.answer = lambda head: None
    with pytest.raises(ConnectionLost, match="in time"):
        await wire.exchange(REQUEST)
    assert len(peer.connections) == 1
    await wire.close()
