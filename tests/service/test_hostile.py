"""Callers that are hostile, broken or slow: they get nothing, and cost the others nothing."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
from collections import Counter
from contextlib import suppress
from random import Random

import pytest

import penstock
from penstock.client import Client
from penstock.errors import UnknownQueue
from tests.service.attackers import ATTACKS, attack
from tests.service.serving import Serve, Served, ended

CONNECTIONS = 1_000
#: What a normal call may take meanwhile, on a machine that other tests keep busy.
ANSWER_S = 8
MB = 2**20


@pytest.fixture(autouse=True)
def descriptors() -> None:
    """A thousand connections are more files than a process may have open by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 4096:
        most = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _use(client: Client, times: int = 1) -> float:
    """Publish, claim and ack; the slowest of the rounds in seconds."""
    slowest = 0.0
    for _ in range(times):
        begun = asyncio.get_running_loop().time()
        await client.publish("orders", b"normal")
        (delivery,) = await client.claim("orders", wait_ms=5_000)
        await client.ack(delivery)
        slowest = max(slowest, asyncio.get_running_loop().time() - begun)
    return slowest


async def _settles(server: Served, descriptors: int) -> None:
    """Wait until the server has let go of its connections."""
    async with asyncio.timeout(30):
        while server.descriptors() > descriptors:  # noqa: ASYNC110  (it cannot tell us)
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_thousand_hostile_connections(serve: Serve) -> None:
    """Everybody else is answered in time, and nothing is left of them."""
    server = serve("--header-timeout-s", "2", "--body-timeout-s", "2")
    kinds = list(ATTACKS)
    async with penstock.connect(server.url) as client:
        await _use(client, 20)
        descriptors, rss = server.descriptors(), server.rss_bytes()
        attacks = [
            asyncio.create_task(
                attack(server, kinds[number % len(kinds)], Random(number)),
                name=kinds[number % len(kinds)],
            )
            for number in range(CONNECTIONS)
        ]
        slowest, rounds = 0.0, 0
        while not all(task.done() for task in attacks):
            slowest = max(slowest, await _use(client))
            rounds += 1
            await asyncio.sleep(0.05)
        answers = _answers(attacks)
        print(f"{rounds} rounds, the slowest {slowest:.2f} s; {answers}")
        assert slowest < ANSWER_S
        assert rounds > 5
        # What was half said was not done (P2), and a wrong request has at most a refusal.
        assert answers["pipelined requests", 200] == answers["pipelined requests", 0] * 100
        assert {status for _, status in answers if status} <= {200, 400, 408, 413, 431}
        with pytest.raises(UnknownQueue):
            await client.queue("hostile")
        await _settles(server, descriptors + 10)
        grown = (server.rss_bytes() - rss) // MB
        assert grown < 250, f"{grown} MB are left of them"
        await _use(client, 20)
    assert server.stop() == 0
    assert "ERROR" not in server.said()
    assert "Traceback" not in server.said()


def _answers(attacks: list[asyncio.Task[bytes]]) -> Counter[tuple[str, int]]:
    """How often each kind of connection got which status; 0 counts the connections."""
    seen: Counter[tuple[str, int]] = Counter()
    for task in attacks:
        seen[task.get_name(), 0] += 1
        for status in re.findall(rb"HTTP/1\.\d (\d+) ", task.result()):
            seen[task.get_name(), int(status)] += 1
    return seen


# -- bodies ----------------------------------------------------------------------------------


class Sender:
    """A request with a body that is sent in pieces.

    On a bare socket: a server that refuses a body answers and closes while it still comes, and
    streams forget what they have read when they cannot write.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._read = b""

    @classmethod
    async def to(cls, server: Served, path: str, framing: str) -> Sender:
        sock = socket.socket()
        sock.setblocking(False)
        sender = cls(sock)
        await sender._loop.sock_connect(sock, (server.host, server.port))
        await sender.send(f"POST {path} HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode())
        return sender

    async def send(self, content: bytes) -> None:
        with suppress(ConnectionError):
            await self._loop.sock_sendall(self._sock, content)

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next reply on the connection."""
        async with asyncio.timeout(30):
            while b"\r\n\r\n" not in self._read:
                await self._more()
            head, _, self._read = self._read.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            length = int(headers["content-length"])
            while len(self._read) < length:
                await self._more()
        body, self._read = self._read[:length], self._read[length:]
        return int(first.split()[1]), headers, body

    async def is_over(self) -> bool:
        """Whether the server has closed the connection, without another word."""
        async with asyncio.timeout(30):
            try:
                return not self._read and not await self._loop.sock_recv(self._sock, 1)
            except ConnectionError:
                return True

    async def _more(self) -> None:
        part = await self._loop.sock_recv(self._sock, 1 << 16)
        assert part, f"the connection was closed after {self._read!r}"
        self._read += part

    def close(self) -> None:
        self._sock.close()


MESSAGES = "/v1/topics/orders/messages"


async def test_e1_a_body_over_the_limit(serve: Serve) -> None:
    """Announced or not, it is refused, and the connection is not taken for another request."""
    server = serve("--max-body-bytes", str(MB), store="memory://")
    announced = await Sender.to(server, MESSAGES, f"Content-Length: {100 * MB}")
    status, headers, body = await announced.reply()
    assert (status, headers["content-type"]) == (413, "application/problem+json")
    assert json.loads(body)["limit"] == MB
    # The rest of the body is not wanted, so nothing else can follow on this connection.
    await announced.send(b"x" * MB)
    assert await announced.is_over()
    chunked = await Sender.to(server, MESSAGES, "Transfer-Encoding: chunked")
    for _ in range(20):
        await chunked.send(b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
    assert (await chunked.reply())[0] == 413
    assert await chunked.is_over()
    exact = await Sender.to(server, MESSAGES, f"Content-Length: {MB}")
    await exact.send(b"x" * MB)
    assert (await exact.reply())[0] == 201
    assert server.call("GET", "/v1/log/end").json() == {"offset": 1}
    for sender in (announced, chunked, exact):
        sender.close()


async def test_a_body_that_comes_too_slowly(serve: Serve) -> None:
    """It is told so, and nothing of it is stored (P2); the next caller has its own time."""
    server = serve("--body-timeout-s", "1", store="memory://")
    begun = asyncio.get_running_loop().time()
    slow = await Sender.to(server, MESSAGES, "Content-Length: 1000")
    await slow.send(b"half")
    status, _, body = await slow.reply()
    assert (status, json.loads(body)["type"]) == (408, "urn:penstock:problem:slow-request")
    assert 0.9 < asyncio.get_running_loop().time() - begun < ANSWER_S
    assert await slow.is_over()
    slow.close()
    quick = await Sender.to(server, MESSAGES, "Content-Length: 4")
    await quick.send(b"full")
    assert (await quick.reply())[0] == 201
    quick.close()
    assert server.call("GET", "/v1/log/end").json() == {"offset": 1}


@pytest.mark.slow
async def test_large_bodies_at_the_same_time_are_refused_before_memory_runs_out(
    serve: Serve,
) -> None:
    """60 bodies of 4 MB where 32 MB are allowed: some are taken, the others told to come back."""
    size = 4 * MB
    server = serve(
        *("--max-body-bytes", str(size), "--max-payload-bytes", str(size)),
        *("--max-total-body-bytes", str(32 * MB)),
    )
    rss = server.rss_bytes()
    senders = [await Sender.to(server, MESSAGES, f"Content-Length: {size}") for _ in range(60)]
    replies = [asyncio.create_task(sender.reply()) for sender in senders]
    # Everything but the last byte: all that are not refused are held at the same time.
    sending = [asyncio.create_task(sender.send(b"x" * (size - 1))) for sender in senders]
    async with asyncio.timeout(60):
        while sum(task.done() for task in replies) < 60 - 8:
            assert server.rss_bytes() - rss < 200 * MB
            assert server.call("GET", "/healthz").status == 200
            await asyncio.sleep(0.02)
        await asyncio.gather(*sending)
    for sender in senders:
        await sender.send(b"x")
    answers = [await task for task in replies]
    statuses = Counter(status for status, _, _ in answers)
    print(statuses)
    assert set(statuses) == {201, 503}
    assert statuses[201] <= 8
    for status, headers, body in answers:
        if status == 503:
            assert json.loads(body)["type"] == "urn:penstock:problem:busy"
            assert int(headers["retry-after"]) > 0
    assert server.call("GET", "/v1/log/end").json() == {"offset": statuses[201]}
    for sender in senders:
        sender.close()
    again = await Sender.to(server, MESSAGES, f"Content-Length: {size}")
    await again.send(b"x" * size)
    assert (await again.reply())[0] == 201
    again.close()
    assert server.stop() == 0


async def test_the_largest_head_that_a_call_may_need(serve: Serve) -> None:
    """16 KiB of message headers, every character of which JSON writes as six."""
    server = serve(store="memory://")
    given = json.dumps({f"h{number}": "\x01" * 1000 for number in range(16)})
    assert len(given) > 96_000
    sender = await Sender.to(server, MESSAGES, f"Penstock-Headers: {given}\r\nContent-Length: 1")
    await sender.send(b"x")
    status, _, body = await sender.reply()
    assert status == 201, body
    sender.close()


# -- connections -------------------------------------------------------------------------------


async def test_connections_do_not_take_the_files_that_the_store_needs(serve: Serve) -> None:
    """A store that cannot open its next log is over; whoever connects needs no credential."""
    server = serve("--header-timeout-s", "60", files=200)
    assert "At most 100 connections, not 10000" in server.said()
    async with penstock.connect(server.url) as client:
        await client.publish("orders", b"x")
        idle = [socket.create_connection((server.host, server.port)) for _ in range(300)]
        for _ in range(60):
            # More than a write buffer: files are closed and opened.
            await client.publish("orders", b"x" * 500_000)
        assert server.descriptors() < 180
        for connection in idle:
            connection.close()
        await _use(client)
    assert server.stop() == 0


async def test_whoever_hangs_up_while_waiting_is_handed_nothing(serve: Serve) -> None:
    server = serve(store="memory://")
    async with penstock.connect(server.url) as client:
        await client.create_queue("orders", "topic = 'orders'")
        body = b'{"wait_ms": 30000}'
        framing = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        waiting = [await Sender.to(server, "/v1/queues/orders/claims", framing) for _ in range(100)]
        for sender in waiting:
            await sender.send(body)
        await _waits(server, 100)
        for sender in waiting:
            sender.close()
        await _waits(server, 0)
        await client.publish("orders", b"x")
        (delivery,) = await client.claim("orders")
        assert delivery.attempts == 1


async def test_a_server_that_is_attacked_stops_all_the_same(serve: Serve) -> None:
    server = serve("--header-timeout-s", "2", "--body-timeout-s", "2", "--grace-s", "5")
    kinds = list(ATTACKS)
    attacks = [
        asyncio.create_task(attack(server, kinds[number % len(kinds)], Random(number)))
        for number in range(100)
    ]
    await asyncio.sleep(0.5)
    begun = asyncio.get_running_loop().time()
    server.process.send_signal(signal.SIGTERM)
    assert await ended(server.process) == 0
    assert asyncio.get_running_loop().time() - begun < 5 + ANSWER_S
    await asyncio.gather(*attacks, return_exceptions=True)


async def _waits(server: Served, count: int) -> None:
    async with asyncio.timeout(30):
        while True:
            metrics = await asyncio.to_thread(server.call, "GET", "/metrics")
            if f"penstock_waits_active {count}.0\n" in metrics.body.decode():
                return
            await asyncio.sleep(0.05)
