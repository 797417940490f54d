"""``examples/proxy.py``: a transport of one's own, through a proxy that allows CONNECT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from examples.proxy import main, through
from penstock.broker import Broker
from penstock.client import connect
from penstock.errors import UnknownQueue, Unreachable
from penstock.worker import App
from tests.unit.client.conftest import QUICK
from tests.unit.client.hosting import Host


class Proxy:
    """Tunnels connections, and records where they go."""

    def __init__(self) -> None:
        self.tunnels: list[str] = []
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.decode().split("\r\n", 1)[0].split(" ")
        assert method == "CONNECT"
        self.tunnels.append(target)
        host, _, port = target.rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    found = Proxy()
    await found.start()
    yield found
    await found.stop()


async def test_calls_go_through_the_proxy(host: Host, proxy: Proxy, broker: Broker) -> None:
    async with connect(host.url, options=QUICK, transport=through(proxy.url)) as q:
        await q.publish("orders", {"amount": 120})
        with pytest.raises(UnknownQueue):
            await q.stats("missing")
    assert await broker.log_end() == 1
    assert proxy.tunnels == [host.url.removeprefix("http://")] * 2


async def test_the_program_publishes(
    host: Host, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    await main(proxy.url, host.url)
    assert "published message" in capsys.readouterr().out


async def test_without_the_proxy_nothing_is_sent(host: Host, proxy: Proxy) -> None:
    await proxy.stop()
    async with connect(host.url, options=QUICK, transport=through(proxy.url)) as q:
        with pytest.raises(Unreachable, match="proxy"):
            await q.publish("orders", b"x")
    assert not host.requests
    await proxy.start()


async def test_an_app_uses_the_proxy(host: Host, proxy: Proxy) -> None:
    app = App(host.url, options=QUICK, transport=through(proxy.url))
    async with app.connected() as q:
        await q.publish("orders", b"x")
    assert proxy.tunnels == [host.url.removeprefix("http://")]
