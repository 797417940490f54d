"""A server that hangs is left for the one that writes, long before the client's timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import msgspec
import pytest
from msgspec.structs import replace

from penstock.broker import Broker
from penstock.client import ClientOptions, connect, hung_servers
from penstock.errors import NotWriter, Unreachable
from tests.unit.client.conftest import QUICK, application
from tests.unit.client.hosting import App, Host, problem

pytestmark = pytest.mark.timeout(60)
#: A call that only ends with its timeout fails the test by the test's own.
PATIENT = replace(QUICK, timeout_ms=600_000)


class Server:
    """One server of a store: it writes, stands by, or is paused."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.role = "standby"
        self.is_exclusive = True
        self.running = asyncio.Event()
        self.running.set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.host = Host(self)

    async def __call__(self, scope, receive, send) -> None:
        await self.running.wait()
        if scope["path"] == "/healthz":
            health = {"role": self.role, "writer": "http://one" if self.is_exclusive else None}
            await _answer(send, 200, msgspec.msgpack.encode(health))
        elif self.role == "standby":
            refusal = problem(NotWriter("This server stands by."))
            await _answer(send, refusal.status, refusal.body)
        else:
            await self.gate.wait()
            await self._app(scope, receive, send)


async def _answer(send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def servers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sequence[Server]]:
    """Three servers of one store, of which the first writes."""
    for name in ("_PATIENCE_S", "_CALM_S", "_ALARMED_S"):
        monkeypatch.setattr(hung_servers, name, 0.1)
    opened = [Server(application(broker)) for _ in range(3)]
    opened[0].role = "writer"
    async with AsyncExitStack() as stack:
        for server in opened:
            await server.host.start()
            stack.push_async_callback(server.host.stop)
        yield opened
        for server in opened:
            server.running.set()
            server.gate.set()


def _urls(servers: Sequence[Server]) -> list[str]:
    return [server.host.url for server in servers]


async def _pause_first(servers: Sequence[Server]) -> None:
    """Pause the writer; the third writes once both others were asked."""
    servers[0].running.clear()
    await servers[1].host.arrivals(1, "/healthz")
    servers[2].role = "writer"


@pytest.mark.parametrize("verb", ["publish", "claim", "stats"])
async def test_calls_move_on_from_a_paused_writer(
    servers: Sequence[Server], broker: Broker, verb: str
) -> None:
    await broker.create_queue("q", "topic = 'q'")
    async with connect(_urls(servers), options=PATIENT) as client, asyncio.TaskGroup() as group:
        await client.publish("q", b"1")
        group.create_task(_pause_first(servers))
        if verb == "publish":
            await client.publish("q", b"2")
        elif verb == "claim":
            assert [item.payload for item in await client.claim("q", wait_ms=30_000)] == [b"1"]
        else:
            assert (await client.stats("q")).depth == 1
    log = (await broker.read_log(payloads=True)).entries
    assert [entry.payload for entry in log] == [b"1", b"2"][: 1 + (verb == "publish")]


async def test_after_a_refusal_all_servers_are_asked_at_once(
    servers: Sequence[Server], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, with a pause before each, would take longer than the take-over."""
    for name in ("_PATIENCE_S", "_ALARMED_S"):  # No call of this test hangs.
        monkeypatch.setattr(hung_servers, name, 60)
    async with connect(_urls(servers), options=PATIENT) as client:
        await client.publish("q", b"1")
        servers[0].role, servers[2].role = "standby", "writer"
        await asyncio.gather(*(client.publish("q", b"2") for _ in range(3)))
        await client.publish("q", b"3")
    asked = [[seen.path for seen in server.host.requests] for server in servers]
    assert set(asked[1]) == {"/healthz"}
    assert asked[2].count("/healthz") == 1
    assert (await broker.read_log()).entries[-1].message.offset == 4


async def test_a_call_that_is_not_safe_to_repeat_ends_with_an_error(
    servers: Sequence[Server], broker: Broker
) -> None:
    options = replace(PATIENT, idempotent=False)
    async with connect(_urls(servers), options=options) as client, asyncio.TaskGroup() as group:
        await client.publish("q", b"1")
        group.create_task(_pause_first(servers))
        with pytest.raises(Unreachable, match=r"hangs.*the outcome is unknown"):
            await client.publish("q", b"2")
        await client.publish("q", b"3")
    log = (await broker.read_log(payloads=True)).entries
    assert [entry.payload for entry in log] == [b"1", b"3"]


async def test_a_slow_call_stays_with_a_server_that_writes(
    servers: Sequence[Server], broker: Broker
) -> None:
    async with connect(_urls(servers), options=PATIENT) as client, asyncio.TaskGroup() as group:
        servers[0].gate.clear()
        publishing = group.create_task(client.publish("q", b"1"))
        await servers[0].host.arrivals(3, "/healthz")
        assert not publishing.done()
        servers[0].gate.set()
    assert [server.host.connections_made for server in servers[1:]] == [0, 0]
    assert len((await broker.read_log()).entries) == 1


async def test_servers_that_all_write_are_asked_once(servers: Sequence[Server]) -> None:
    """As on a database: a call that is slow on one of them would be as slow on another."""
    for server in servers:
        server.role, server.is_exclusive = "writer", False
    options = ClientOptions(timeout_ms=700, retry_ms=0)
    async with connect(_urls(servers), options=options) as client:
        servers[0].gate.clear()
        with pytest.raises(Unreachable, match="no answer in time"):
            await client.publish("q", b"1")
    asked = [seen for server in servers for seen in server.host.requests if "health" in seen.path]
    assert len(asked) == 1
