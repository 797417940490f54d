"""Callers that are hostile, broken or slow: they get nothing, and cost the others nothing."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
from collections import Counter
from contextlib import AsyncExitStack
from random import Random

import pyarrow.ipc
import pytest

import penstock
from penstock.client import Client
from penstock.errors import UnknownQueue
from penstock.model.message import NewMessage
from penstock.testing.laws import law
from tests.service.attackers import ATTACKS, attack
from tests.service.serving import Serve, Served, ended
from tests.service.wire import Wire

CONNECTIONS = 1_000
#: Seconds that the server may work on others before it has answered a normal caller: of its own
#: time, which does not depend on what else the machine does.
ANSWER_CPU_S = 4
MB = 2**20


@pytest.fixture(autouse=True)
def descriptors() -> None:
    """A thousand connections are more files than a process may have open by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 4096:
        most = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _use(client: Client, server: Served, times: int = 1) -> float:
    """Publish, claim and ack; the most seconds that the server worked during a round."""
    most = 0.0
    for _ in range(times):
        before = server.cpu_s()
        await client.publish("orders", b"normal")
        (delivery,) = await client.claim("orders", wait_ms=5_000)
        await client.ack(delivery)
        most = max(most, server.cpu_s() - before)
    return most


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
        await _use(client, server, 20)
        descriptors, rss = server.descriptors(), server.rss_bytes()
        attacks = [
            asyncio.create_task(
                attack(server, kinds[number % len(kinds)], Random(number)),
                name=kinds[number % len(kinds)],
            )
            for number in range(CONNECTIONS)
        ]
        worked, rounds = 0.0, 0
        while not all(task.done() for task in attacks):
            worked = max(worked, await _use(client, server))
            rounds += 1
            await asyncio.sleep(0.05)
        answers = _answers(attacks)
        print(f"{rounds} rounds, the most {worked:.2f} s; {answers}")
        assert worked < ANSWER_CPU_S
        assert rounds > 1
        # What was half said was not done (P2), and a wrong request has at most a refusal.
        assert answers["pipelined requests", 200] == answers["pipelined requests", 0] * 100
        assert {status for _, status in answers if status} <= {200, 400, 408, 413, 431}
        with pytest.raises(UnknownQueue):
            await client.queue("hostile")
        await _settles(server, descriptors + 10)
        grown = (server.rss_bytes() - rss) // MB
        assert grown < 250, f"{grown} MB are left of them"
        await _use(client, server, 20)
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


MESSAGES = "/v1/topics/orders/messages"


@law("E1")
async def test_a_body_over_the_limit(serve: Serve) -> None:
    """Announced or not, it is refused, and the rest of it is not taken for another request."""
    server = serve("--max-body-bytes", str(MB), store="memory://")
    async with await Wire.post(server, MESSAGES, f"Content-Length: {100 * MB}") as announced:
        reply = await announced.reply()
        assert (reply.status, json.loads(reply.body)["limit"]) == (413, MB)
        assert reply.headers["content-type"] == "application/problem+json"
        await announced.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not await announced.rest()
    # A caller who sends and never looks gets to read the answer, whenever it looks.
    for size in (10, 20, 40):
        async with await Wire.post(server, MESSAGES, "Transfer-Encoding: chunked") as chunked:
            await chunked.send((b"20000\r\n" + b"x" * 0x20000 + b"\r\n") * size)
            assert (await chunked.reply()).status == 413
            assert not await chunked.rest()
    async with await Wire.post(server, MESSAGES, f"Content-Length: {MB}") as exact:
        await exact.send(b"x" * MB)
        assert (await exact.reply()).status == 201
    assert server.call("GET", "/v1/log/end").json() == {"offset": 1}


@law("P2")
async def test_a_body_that_comes_too_slowly(serve: Serve) -> None:
    """It is told so, and nothing of it is stored (P2); the next caller has its own time."""
    server = serve("--body-timeout-s", "1", store="memory://")
    async with await Wire.post(server, MESSAGES, "Content-Length: 1000") as slow:
        await slow.send(b"half")
        reply = await slow.reply()
        assert reply.status == 408
        assert json.loads(reply.body)["type"] == "urn:penstock:problem:slow-request"
        assert not await slow.rest()
    async with await Wire.post(server, MESSAGES, "Content-Length: 4") as quick:
        await quick.send(b"full")
        assert (await quick.reply()).status == 201
    assert server.call("GET", "/v1/log/end").json() == {"offset": 1}


@pytest.mark.slow
async def test_large_bodies_at_the_same_time_are_refused_before_memory_runs_out(
    serve: Serve,
) -> None:
    """60 bodies of 4 MB where 32 MB are allowed: some are taken, the others told to come back."""
    size = 4 * MB
    server = serve(
        *("--max-body-bytes", str(size), "--max-payload-bytes", str(size)),
        *("--memory-budget-bytes", str(32 * MB)),
    )
    rss = server.rss_bytes()
    async with AsyncExitStack() as stack:
        wires = [
            await stack.enter_async_context(
                await Wire.post(server, MESSAGES, f"Content-Length: {size}")
            )
            for _ in range(60)
        ]
        replies = [asyncio.create_task(wire.reply()) for wire in wires]
        # Everything but the last byte: all that are not refused are held at the same time.
        sending = [asyncio.create_task(wire.send(b"x" * (size - 1))) for wire in wires]
        async with asyncio.timeout(60):
            while sum(task.done() for task in replies) < 60 - 8:
                assert server.rss_bytes() - rss < 200 * MB
                assert (await asyncio.to_thread(server.call, "GET", "/healthz")).status == 200
                await asyncio.sleep(0.02)
            await asyncio.gather(*sending)
        for wire in wires:
            await wire.send(b"x")
        answers = [await task for task in replies]
    statuses = Counter(answer.status for answer in answers)
    print(statuses)
    assert set(statuses) == {201, 503}
    assert statuses[201] <= 8
    for answer in answers:
        if answer.status == 503:
            assert json.loads(answer.body)["type"] == "urn:penstock:problem:busy"
            assert int(answer.headers["retry-after"]) > 0
    assert server.call("GET", "/v1/log/end").json() == {"offset": statuses[201]}
    async with await Wire.post(server, MESSAGES, f"Content-Length: {size}") as again:
        await again.send(b"x" * size)
        assert (await again.reply()).status == 201
    assert server.stop() == 0


async def test_the_largest_head_that_a_call_may_need(serve: Serve) -> None:
    """16 KiB of message headers, every character of which JSON writes as six."""
    server = serve(store="memory://")
    given = json.dumps({f"h{number}": "\x01" * 1000 for number in range(16)})
    assert len(given) > 96_000
    framing = f"Penstock-Headers: {given}\r\nContent-Length: 1"
    async with await Wire.post(server, MESSAGES, framing) as wire:
        await wire.send(b"x")
        reply = await wire.reply()
        assert reply.status == 201, reply.body


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
        await _use(client, server)
    assert server.stop() == 0


async def test_whoever_hangs_up_while_waiting_is_handed_nothing(serve: Serve) -> None:
    server = serve(store="memory://")
    async with penstock.connect(server.url) as client:
        await client.create_queue("orders", "topic = 'orders'")
        body = b'{"wait_ms": 30000}'
        framing = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        waiting = [await Wire.post(server, "/v1/queues/orders/claims", framing) for _ in range(100)]
        for wire in waiting:
            await wire.send(body)
        await _waits(server, 100)
        for wire in waiting:
            wire.close()
        await _waits(server, 0)
        await client.publish("orders", b"x")
        (delivery,) = await client.claim("orders")
        assert delivery.attempts == 1


async def test_a_server_that_is_attacked_stops_all_the_same(serve: Serve) -> None:
    server = serve("--header-timeout-s", "2", "--body-timeout-s", "2", "--grace-s", "5")
    kinds, quiet = list(ATTACKS), server.descriptors()
    attacks = [
        asyncio.create_task(attack(server, kinds[number % len(kinds)], Random(number)))
        for number in range(100)
    ]
    async with asyncio.timeout(30):
        while server.descriptors() < quiet + 40:  # noqa: ASYNC110  (it cannot tell us)
            await asyncio.sleep(0.02)
    server.process.send_signal(signal.SIGTERM)
    assert await ended(server.process) == 0
    await asyncio.gather(*attacks, return_exceptions=True)


async def _waits(server: Served, count: int) -> None:
    async with asyncio.timeout(30):
        while True:
            metrics = await asyncio.to_thread(server.call, "GET", "/metrics")
            if f"penstock_waits_active {count}.0\n" in metrics.body.decode():
                return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_whoever_asks_for_the_log_and_does_not_read_it(serve: Serve) -> None:
    """The HTTP server keeps what is not read: one stream is bounded, and another goes on."""
    server = serve()
    async with penstock.connect(server.url) as client:
        for _ in range(16):
            await client.publish_batch("orders", [NewMessage(bytes(MB - 1))] * 10)
    rss = server.rss_bytes()
    path = "/v1/log?format=arrow&payloads=true"
    async with await Wire.to(server) as idle:
        await idle.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        offset = 0
        while offset < 160:
            answer = await asyncio.to_thread(server.call, "GET", f"{path}&from={offset}")
            offsets = pyarrow.ipc.open_stream(answer.body).read_all()["offset"].to_pylist()
            assert offsets == list(range(offset, offset + len(offsets)))
            assert 14 < len(offsets) < 30 or offsets[-1] == 159
            offset = offsets[-1] + 1
        grown = (server.rss_bytes() - rss) // MB
        assert grown < 400, f"{grown} MB for one that does not read, and one that does"
    assert server.stop() == 0


@pytest.mark.slow
async def test_replies_that_nobody_reads_are_bounded_and_cut(serve: Serve) -> None:
    """Claims, pages and Arrow reads of 30 MB each, by 40 callers of whom none reads."""
    server = serve("--memory-budget-bytes", str(64 * MB), "--reply-timeout-s", "2")
    async with penstock.connect(server.url) as client:
        for _ in range(6):
            await client.publish_batch("orders", [NewMessage(bytes(MB - 1))] * 10)
        rss = server.rss_bytes()
        head = "HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        claim = '{"limit": 30}'
        requests = [
            f"GET /v1/log?format=arrow&payloads=true {head}\r\n",
            f"GET /v1/log?payloads=true {head}\r\n",
            f"POST /v1/queues/orders/claims {head}Content-Length: {len(claim)}\r\n\r\n{claim}",
            f"GET /v1/queues/orders/stream?credit=1000 {head}\r\n",
        ]
        async with AsyncExitStack() as stack:
            most = 0
            for number in range(40):
                wire = await stack.enter_async_context(await Wire.to(server))
                await wire.send(requests[number % len(requests)].encode())
                most = max(most, server.rss_bytes() - rss)
                # What is small is answered all the while.
                assert (await asyncio.to_thread(server.call, "GET", "/healthz")).status == 200
            async with asyncio.timeout(60):
                while _gauge(server, "penstock_memory_held_bytes"):
                    most = max(most, server.rss_bytes() - rss)
                    await asyncio.sleep(0.1)
            print(f"{most // MB} MB at most; {_gauge(server, 'penstock_replies_cut_total')} cut")
            assert _gauge(server, "penstock_replies_cut_total") >= 4
            # The budget, twice over for what is made of it, and what the engine caches.
            assert most < 400 * MB
            await client.publish("other", b"x")
    assert server.stop() == 0


def _gauge(server: Served, name: str) -> float:
    text = server.call("GET", "/metrics").body.decode()
    return float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0])
