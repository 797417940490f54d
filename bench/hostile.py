"""Hostile requests among ordinary ones: how long one may block the loop, and how much memory.

The application is called as a server calls it, on a store on disk that publishers and consumers
use meanwhile. Every kind of body that once blocked the loop for seconds is sent once per round.
Memory is that of a server process whose callers request large replies and do not read them.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

import penstock
from bench.bounds import HOLD_MS, Longest, loop_holds, of_bound
from bench.measuring import Figure, middle, payloads, scratch
from bench.processes import Server, free_port, running
from penstock.broker import Broker, BrokerOptions
from penstock.model.message import NewMessage
from penstock.model.queue import TopicPolicy
from penstock.server.access import Access, Keys
from penstock.server.app import Application
from penstock.server.memory import uncollected
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES
from penstock.server.service import Service

MB = 2**20
BATCH_JSON = "application/vnd.penstock.batch+json"
BATCH_MSGPACK = "application/vnd.penstock.batch+msgpack"
ARROW = "application/vnd.apache.arrow.stream"
#: The largest body of a request.
LARGEST = 64 * MB
BUDGET = 128 * MB
#: Callers that request about 20 MB each and read nothing.
CALLERS = 48
#: How long they are watched.
UNREAD_S = 10.0
#: The budget, as much again for building replies, what twelve claims read before it is counted
#: (240 MB), and what the allocator keeps.
MEMORY_RATIO = 5.0

Request: TypeAlias = tuple[str, str, str, bytes]


def _bomb() -> bytes:
    sink = io.BytesIO()
    batch = pa.record_batch({"payload": [bytes(4 * LARGEST)]})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write(batch)
    return sink.getvalue()


def hostile() -> Iterator[tuple[Request, int]]:
    """Requests that are expensive to read, and the expected status of each."""
    publish = "/v1/topics/hostile/messages"
    tiny = b'{"payload":1}'
    many = b'{"messages":[' + b",".join([tiny] * (LARGEST // 14 - 10_000)) + b"]}"
    yield ("POST", publish, BATCH_JSON, many), 413
    packed = msgspec.msgpack.encode({"messages": [{"payload": b""}] * (LARGEST // 13)})
    yield ("POST", publish, BATCH_MSGPACK, packed), 413
    headers = b'{"messages":[{"payload":1,"headers":{' + b'"a":1,' * (LARGEST // 7) + b'"a":1}}]}'
    yield ("POST", publish, BATCH_JSON, headers), 413
    # Only so large is it refused for its size, and not for its depth.
    nested = b'{"messages":[{"payload":' + b"[" * (8 * MB) + b"]" * (8 * MB) + b"}]}"
    yield ("POST", publish, BATCH_JSON, nested), 413
    yield ("POST", publish, ARROW, _bomb()), 413
    grants = b'{"grants":[' + b'"publish:*",' * (LARGEST // 13) + b'"a"]}'
    yield ("POST", "/v1/keys", "application/json", grants), 413
    ids = b'{"ids":[' + b"1," * (LARGEST // 32) + b"1]}"
    yield ("POST", "/v1/queues/live/replays", "application/json", ids), 413
    # Large valid bodies are processed in pieces too, up to the commit.
    item = {"payload": {"text": "x" * 5_000, "list": list(range(900))}}
    good = json.dumps({"messages": [item] * (LARGEST // 11_000)}).encode()
    yield ("POST", "/v1/topics/checked/messages", BATCH_JSON, good), 201
    keyed = [{"payload": number, "key": f"{number}", "id": f"{number}"} for number in range(10_000)]
    for name in ("first", "second"):
        # The second time every message replaces a waiting one, unless it has the same id.
        items = [item | {"id": f"{name} {item['id']}"} for item in keyed]
        body = json.dumps({"messages": items}).encode()
        yield ("POST", publish, BATCH_JSON, body), 201


async def call(app: Application, request: Request, *more: tuple[bytes, bytes]) -> int:
    """Send the request, with more headers; returns the status."""
    method, target, media, body = request
    headers = [(b"content-type", media.encode()), (b"content-length", b"%d" % len(body)), *more]
    path, _, query = target.partition("?")
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path}
    scope |= {"query_string": query.encode(), "headers": [(b"host", b"localhost"), *headers]}  # type: ignore[dict-item]
    begins = iter(range(0, max(1, len(body)), MB))
    status = 0

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        begin = next(begins, None)
        if begin is None:
            await asyncio.Event().wait()  # The caller stays connected.
        assert begin is not None
        part = body[begin : begin + MB]
        return {"type": "http.request", "body": part, "more_body": begin + MB < len(body)}

    async def send(event: MutableMapping[str, Any]) -> None:
        nonlocal status
        status = event.get("status", status)
        await asyncio.sleep(0)  # As a server does, which waits for the caller to read.

    await app(scope, receive, send)
    return status


async def live_load(broker: Broker, stop: asyncio.Event) -> None:
    """Publish and consume ordinary messages until ``stop``."""
    messages = [NewMessage(body) for body in payloads(20)]

    async def publish() -> None:
        while not stop.is_set():
            await broker.publish_batch("live", messages)

    async def consume() -> None:
        while not stop.is_set():
            for delivery in await broker.claim("live", limit=20, wait_ms=100):
                await broker.ack(delivery)

    await asyncio.gather(publish(), publish(), consume(), consume())


async def open_application(broker: Broker) -> Application:
    """The application of a server, with a queue for the load and a topic with a schema."""
    await broker.create_queue("live", "topic = 'live'")
    schema = json.dumps({"type": "object", "required": ["text"]})
    await broker.put_topic("checked", TopicPolicy(schema_type="json-schema", schema=schema))
    clock = broker.engine.clock
    access = Access(clock, Keys(broker.engine, clock), enabled=False)
    return Application(Service(broker, access, Metrics(broker.engine)), ROUTES)


async def holds(rounds: int) -> Figure:
    """The longest time that one callback blocked the loop while reading hostile bodies."""
    found: list[Longest] = []
    requests = list(hostile())
    for _ in range(rounds):
        with scratch() as folder:
            async with penstock.open(
                f"rocksdb://{folder}/store", options=BrokerOptions()
            ) as broker:
                app = await open_application(broker)
                stop = asyncio.Event()
                load = asyncio.ensure_future(live_load(broker, stop))
                with uncollected(), loop_holds() as longest:
                    for request, status in requests:
                        answered = await call(app, request)
                        if answered != status:
                            raise RuntimeError(f"{request[:3]} was answered {answered}")
                stop.set()
                await load
                found.append(longest)
    return of_bound(
        f"longest loop hold, bodies of up to {LARGEST // MB} MiB that cost much to read",
        found,
        HOLD_MS,
    )


# -- memory ------------------------------------------------------------------------------------


def unread(rounds: int) -> Figure:
    """The peak memory of a server whose callers do not read, as a ratio to its budget."""
    grown = [float(_unread()) for _ in range(rounds)]
    found = middle(grown)
    return Figure(
        f"memory held by {CALLERS} callers that do not read, of the budget",
        found / BUDGET,
        MEMORY_RATIO,
        f"{found / MB:.0f} MiB",
        f"{BUDGET // MB} MiB",
        at_most=True,
    )


def _unread() -> int:
    with scratch() as folder, ExitStack() as stack:
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "penstock",
            "serve",
            "--store",
            f"rocksdb://{folder}/store",
        ]
        command += ["--port", str(port), "--memory-budget-bytes", str(BUDGET)]
        server = stack.enter_context(running([*command, "--log-level", "error"], port))
        asyncio.run(_fill(server.url))
        before = most = _rss(server)
        head = f"HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
        claim = '{"limit": 20}'
        requests = (
            f"GET /v1/log?format=arrow&payloads=true {head}\r\n",
            f"GET /v1/log?payloads=true {head}\r\n",
            f"POST /v1/queues/live/claims {head}Content-Length: {len(claim)}\r\n\r\n{claim}",
            f"GET /v1/queues/live/stream?credit=1000 {head}\r\n",
        )
        for number in range(CALLERS):
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            caller.sendall(requests[number % len(requests)].encode())
        until = time.monotonic() + UNREAD_S
        while time.monotonic() < until:
            most = max(most, _rss(server))
            time.sleep(0.02)
        return most - before


async def _fill(url: str) -> None:
    async with penstock.connect(url) as client:
        await client.create_queue("live", "topic = 'live'")
        for _ in range(20):
            await client.publish_batch("live", [NewMessage(bytes(MB - 1))] * 10)


def _rss(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def requests(rounds: int) -> list[Figure]:
    """The cost of hostile requests."""
    return [await holds(rounds), await asyncio.to_thread(unread, rounds)]
