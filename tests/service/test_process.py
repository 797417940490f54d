"""The process: it says when it is ready, ends well when told to, and loses nothing by a kill."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

import penstock
from penstock.model.message import NewMessage
from penstock.testing.laws import law
from tests.service.serving import Serve, Served, ended, read_line, unused_port
from tests.service.wire import Wire

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(path: str, body: str, length: int | None = None) -> bytes:
    """A request, of which the body may be the beginning only."""
    announced = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {announced}\r\n\r\n{body}".encode()


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for another process."""
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110  (it cannot tell us)
            await asyncio.sleep(0.02)


def gauge(server: Served, name: str) -> float:
    text = server.call("GET", "/metrics").body.decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


# -- starting ------------------------------------------------------------------------------


def test_it_answers_as_soon_as_it_says_so(serve: Serve) -> None:
    server = serve()
    assert server.told == {"url": server.url, "store": serve.store, "auth": False, "key": None}
    assert server.call("GET", "/readyz").json()["status"] == "ready"
    assert server.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        server.call("GET", "/healthz")


def test_a_store_that_is_in_use_is_refused(serve: Serve) -> None:
    first = serve()
    second, log = serve.begin("--json")
    assert second.wait(60) == 7
    assert "is already open" in log.read_text()
    assert first.call("GET", "/readyz").status == 200
    assert first.stop() == 0


def test_files_of_the_store_are_its_owners_alone_while_it_is_served(serve: Serve) -> None:
    """Those that RocksDB creates later have the mode that the umask of the process gives them."""
    server = serve()
    modes = {file.name: file.stat().st_mode & 0o777 for file in (serve.folder / "store").iterdir()}
    assert {"CURRENT", "PENSTOCK"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    status = Path(f"/proc/{server.pid}/status").read_text()
    assert "Umask:\t0077\n" in status
    assert server.stop() == 0


@law("E1")
def test_a_port_that_is_in_use_is_refused(serve: Serve) -> None:
    """By a stranger, and by another server; before the store is touched."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        process, log = serve.begin("--json", store=f"rocksdb://{serve.folder}/new", port=port)
        assert process.wait(60) == 3
        assert f"Cannot listen on 127.0.0.1:{port}: something else listens there" in log.read_text()
    first = serve()
    process, log = serve.begin("--json", store=f"rocksdb://{serve.folder}/new", port=first.port)
    assert process.wait(60) == 3
    assert "something else listens there" in log.read_text()
    assert not (serve.folder / "new").exists()


def test_of_servers_that_start_at_once_on_a_port_one_gets_it(serve: Serve) -> None:
    """The HTTP server would let them share it, and each caller would meet one at random."""
    port = unused_port()
    begun = [
        serve.begin("--json", store=f"rocksdb://{serve.folder}/{number}", port=port)[0]
        for number in range(3)
    ]
    refused = [process for process in begun if not read_line(process, 60)]
    assert [process.wait(60) for process in refused] == [3, 3]


async def test_whoever_started_it_may_close_its_output(serve: Serve) -> None:
    port = unused_port()
    process, _ = serve.begin(port=port)
    assert process.stdout is not None
    process.stdout.close()
    async with penstock.connect(f"http://127.0.0.1:{port}") as client:
        await client.publish("orders", b"x")
    process.send_signal(signal.SIGTERM)
    assert await ended(process) == 0


# -- stopping ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
async def test_what_is_under_way_is_answered(number: signal.Signals, serve: Serve) -> None:
    server = serve()
    assert server.call("PUT", "/v1/queues/jobs", {"filter": "topic = 'jobs'"}).status == 200
    async with (
        await Wire.to(server) as claim,
        await Wire.to(server) as stream,
        await Wire.to(server) as publish,
    ):
        await claim.send(post("/v1/queues/jobs/claims", '{"wait_ms": 30000}'))
        await stream.send(
            b"GET /v1/queues/jobs/stream HTTP/1.1\r\nHost: localhost\r\n"
            b"Penstock-Request-Id: 1\r\n\r\n"
        )
        assert "text/event-stream" in await stream.head()
        await publish.send(post("/v1/topics/orders/messages", '{"order":', length=11))
        # The three, and the one that asks.
        await eventually(lambda: gauge(server, "penstock_calls_active") == 4)
        await eventually(lambda: gauge(server, "penstock_waits_active") == 2)
        server.process.send_signal(number)
        assert (await claim.rest()).endswith('{"deliveries":[]}')
        assert (await stream.rest()).endswith("0\r\n\r\n")
        # It is stopping by now, and the publish that it has half of is still taken.
        await publish.send(b"7}")
        reply = await publish.rest()
        assert reply.startswith("HTTP/1.1 201")
        assert '"durability":"fsync"' in reply
    assert await ended(server.process) == 0
    assert "WARNING" not in server.said()
    async with penstock.open(serve.store) as broker:
        (delivery,) = await broker.claim("orders")
        assert delivery.payload == b'{"order":7}'
        assert (await broker.stats("jobs")).grants == 0


async def test_idle_connections_do_not_hold_up_a_stop(serve: Serve) -> None:
    """Kept alive after a call, opened without one, and in the middle of a request's head.

    The last kind is not told from a slow caller: it has until its time-out.
    """
    server = serve("--header-timeout-s", "1", "--grace-s", "600")
    connections = [await Wire.to(server) for _ in range(60)]
    for connection in connections[:20]:
        await connection.send(GET)
        assert (await connection.reply()).status == 200
    for connection in connections[20:40]:
        await connection.send(GET[:-10])
    server.process.send_signal(signal.SIGTERM)
    # Its grace period is longer than a test may take.
    assert await ended(server.process) == 0
    for connection in connections:
        connection.close()


@law("P2")
async def test_a_call_that_never_ends_is_given_up_after_the_grace_period(serve: Serve) -> None:
    """Its caller is cut; nothing of it is in the store (P2)."""
    server = serve("--grace-s", "1")
    async with await Wire.to(server) as publish:
        await publish.send(post("/v1/topics/orders/messages", '{"order":', length=11))
        await eventually(lambda: gauge(server, "penstock_calls_active") == 2)
        server.process.send_signal(signal.SIGTERM)
        assert await ended(server.process) == 0
        assert (await publish.rest())[:12] in {"", "HTTP/1.1 500"}
    assert "still in progress after 1 s" in server.said()
    async with penstock.open(serve.store) as broker:
        assert await broker.log_end() == 0


def test_being_told_twice_is_being_told_once(serve: Serve) -> None:
    server = serve()
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    assert server.stop() == 0
    assert server.said().count("Stopping.") == 1


async def test_a_copy_of_the_folder_of_a_stopped_server_is_a_store(serve: Serve) -> None:
    server = serve()
    async with penstock.connect(server.url) as client:
        await client.publish_batch("orders", [NewMessage(b"%d" % n) for n in range(100)])
        await client.ack((await client.claim("orders"))[0])
    assert server.stop() == 0
    copytree(serve.folder / "store", serve.folder / "copy")
    copy = f"rocksdb://{serve.folder}/copy"
    assert serve.run("verify", "--store", copy).returncode == 0
    server = serve(store=copy)
    async with penstock.connect(server.url) as client:
        rest = await client.claim("orders", limit=1_000)
        assert [int(item.payload) for item in rest] == list(range(1, 100))
    assert server.stop() == 0


# -- being killed ----------------------------------------------------------------------------


@law("P1")
async def test_what_was_acknowledged_is_there_after_kill_9(serve: Serve) -> None:
    server = serve(port=unused_port())
    async with penstock.connect(server.url) as client:
        for number in range(20):
            await client.publish("orders", {"order": number}, id=f"order-{number}")
        done, held = await client.claim("orders", limit=2)
        await client.ack(done, b"result")
        server.kill()
        # The same client, over the restart: it did not have to know.
        server = serve(port=server.port)
        # P4: the same ids again store nothing.
        again = await client.publish("orders", {"order": 0}, id="order-0")
        assert again.duplicate
        await client.ack(held)
        rest = await client.claim("orders", limit=100)
        assert [json.loads(item.payload)["order"] for item in rest] == list(range(2, 20))
        result = await client.result("orders", done.message.id)
        assert result is not None
        assert result.result == b"result"
    assert server.stop() == 0
    report = serve.run("verify", "--store", serve.store)
    assert report.returncode == 0, report.stdout
