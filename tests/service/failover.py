"""Servers that stand by for each other, and what befalls the one that writes.

Each server of an object store has a proxy of its own before the S3 server, so its network can be
cut without touching the others.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.client import Client, ClientOptions, connect
from penstock.model.message import NewMessage
from penstock.testing.history import Published
from tests.fault_proxy import FaultProxy
from tests.object_stores import s3_endpoint, s3_url
from tests.recording import TOPIC, History, begin_publish
from tests.service.nursery import Nursery
from tests.service.serving import unused_port

__all__ = [
    "CUTS",
    "ONCE",
    "SERVERS",
    "SOON_S",
    "Follower",
    "Servers",
    "TakeOver",
    "summary",
]

SERVERS: Final = 3
_LEASE_MS: Final = 1000
#: The default: with a shorter lease, three servers ask more than this one can answer.
_LEASE_ON_MOTO_MS: Final = 2000
SOON_S: Final = 60
#: A client that repeats nothing, of one server. A paused one accepts connections and is silent.
ONCE: Final = ClientOptions(retry_ms=0, timeout_ms=1500, connect_timeout_ms=1500)
#: Longer than the writer's lease, and than its requests may take.
_LATENCY_S: Final = 4.0

#: What a proxy does with the requests of a server that has lost its object store; each gets an
#: event that ends it. The last two let requests through when another server writes already.
_Cut = Callable[[threading.Event], int | None]
CUTS: Final[dict[str, _Cut]] = {
    "503": lambda _: 503,
    "bucket lost": lambda _: 404,
    "replies dropped": lambda _: FaultProxy.DROP,
    "latency": lambda healed: _delay(healed, _LATENCY_S),
    "silence": lambda healed: _delay(healed, SOON_S),
}


def _delay(healed: threading.Event, seconds: float) -> None:
    healed.wait(seconds)


class Servers:
    """The servers, and which of them writes."""

    def __init__(self, stores: list[str], proxies: list[FaultProxy], nursery: Nursery) -> None:
        self.stores = stores
        self._proxies = proxies
        self._nursery = nursery
        self._stack = AsyncExitStack()
        self._ports = [unused_port() for _ in stores]
        self._pids = [0] * len(stores)

    @classmethod
    @asynccontextmanager
    async def open(cls, kind: str, folder: Path) -> AsyncIterator[Servers]:
        """Servers on one empty store, of which the first writes.

        ``kind`` is ``file`` or the name of an S3 server.
        """
        proxies: list[FaultProxy] = []
        if kind == "file":
            stores = [f"slatedb+file://{folder}/store?lease_ms={_LEASE_MS}"] * SERVERS
        else:
            endpoint = s3_endpoint(kind)
            lease_ms = _LEASE_ON_MOTO_MS if kind == "moto" else _LEASE_MS
            url = s3_url(endpoint, lease_ms=lease_ms, commit_interval_ms=100)
            proxies = [FaultProxy(endpoint) for _ in range(SERVERS)]
            stores = [url.replace(endpoint, proxy.endpoint) for proxy in proxies]
        async with AsyncExitStack() as stack:
            for proxy in proxies:
                stack.callback(proxy.close)
            nursery = await stack.enter_async_context(await Nursery.open(folder))
            opened = cls(stores, proxies, nursery)
            for number in range(SERVERS):
                await opened.start(number)
            async with opened._stack:
                yield opened

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self._ports[number]}"

    async def start(self, number: int) -> None:
        flags = ("--store", self.stores[number], "--port", str(self._ports[number]))
        self._pids[number] = await self._nursery.start(*flags)
        await self._nursery.ready()

    async def kill(self, number: int) -> None:
        await self._nursery.kill(self._pids[number])

    def signal(self, number: int, signal_: signal.Signals) -> None:
        os.kill(self._pids[number], signal_)

    async def stop(self) -> list[int]:
        return [await self._nursery.stop(pid) for pid in self._pids]

    @asynccontextmanager
    async def struck(self, number: int, kind: str) -> AsyncIterator[None]:
        """A server that is killed, paused or cut off; at the end it stands by."""
        if kind == "kill":
            await self.kill(number)
            yield
            await self.start(number)
        elif kind == "pause":
            self.signal(number, signal.SIGSTOP)
            yield
            self.signal(number, signal.SIGCONT)
        else:
            proxy, healed = self._proxies[number], threading.Event()
            proxy.fault = lambda method, path: CUTS[kind](healed)
            yield
            proxy.fault = lambda method, path: None
            healed.set()
        await self.standing_by(number)

    # -- callers -----------------------------------------------------------------------

    async def client(self, *numbers: int, options: ClientOptions = ONCE) -> Client:
        urls = [self.url(number) for number in numbers or range(SERVERS)]
        return await self._stack.enter_async_context(connect(urls, options=options))

    async def clients(self) -> list[Client]:
        return [await self.client(number) for number in range(SERVERS)]

    async def writer(self, *, but: int | None = None) -> int:
        """The server that writes, once there is one; ``but`` does not count."""
        async with asyncio.timeout(SOON_S):
            while True:
                for number in range(SERVERS):
                    if number != but and await self._role(number) == "writer":
                        return number
                await asyncio.sleep(0.02)

    async def standing_by(self, number: int) -> None:
        """Returns when the server stands by."""
        async with asyncio.timeout(SOON_S):
            while await self._role(number) != "standby":  # noqa: ASYNC110  (another process)
                await asyncio.sleep(0.02)

    async def _role(self, number: int) -> str | None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[number])
        except OSError:
            return None
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(1):
                text = await reader.read()
        except (OSError, TimeoutError):
            return None
        finally:
            writer.close()
        return "writer" if b'"role":"writer"' in text else "standby"


class Follower:
    """A client that knows all servers, with the options that a client has by default."""

    def __init__(self, client: Client, history: History) -> None:
        self._client = client
        self._history = history
        self._published = 0

    async def publish(self) -> None:
        """Publish one message; the client finds the server that writes."""
        self._published += 1
        messages = [NewMessage(b"follower %d" % self._published, id=f"follower/{self._published}")]
        call = begin_publish(self._history, messages)
        reply = await self._client.publish_batch(TOPIC, messages)
        self._history.record(
            Published(call=call, messages=tuple(item.id for item in reply.messages))
        )


class TakeOver(Struct, frozen=True):
    """How long it took until another server wrote, and a call of a client had succeeded there."""

    kind: str
    server_s: float
    client_s: float

    @classmethod
    async def measure(cls, servers: Servers, follower: Follower, kind: str) -> TakeOver:
        """Strike the server that writes, and let it stand by in the end."""
        number = await servers.writer()
        began = time.monotonic()

        async def publish() -> float:
            await follower.publish()
            return time.monotonic() - began

        async with servers.struck(number, kind):
            publishing = asyncio.create_task(publish())
            await servers.writer(but=number)
            server_s = time.monotonic() - began
            client_s = await publishing
        return cls(kind, server_s, client_s)


def summary(found: Iterable[TakeOver]) -> str:
    """Medians and worst times, by what happened."""
    kinds: dict[str, list[TakeOver]] = {}
    for item in found:
        kinds.setdefault(item.kind, []).append(item)
        kinds.setdefault("all", []).append(item)
    lines = ["kind              count  server median, worst  client median, worst"]
    for kind, items in sorted(kinds.items()):
        server, client = [i.server_s for i in items], [i.client_s for i in items]
        lines.append(
            f"{kind:16} {len(items):6} {statistics.median(server):14.2f} {max(server):6.2f}"
            f" {statistics.median(client):14.2f} {max(client):6.2f}"
        )
    return "\n".join(lines)
