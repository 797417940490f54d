"""A server for Spark's processes: the real application on a real socket, on a clock of the test.

It runs in a thread of its own, since a test of Spark is an ordinary blocking program. Time
stands still until the test moves it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from penstock import NewMessage
from penstock.broker import Broker, BrokerOptions
from penstock.model.delivery import Delivery
from penstock.model.message import Published
from penstock.server.access import Access, Keys
from penstock.server.app import Application
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES
from penstock.server.service import Service
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from tests.unit.client.hosting import Host

T = TypeVar("T")

HOUR_MS = 3600 * 1000


class Hosted:
    """One broker and its server, from ``start`` to ``stop``."""

    def __init__(self, store: str, *, archive: bool = False, auth: bool = False) -> None:
        self._store = store
        self._auth = auth
        self._archive = archive
        self.clock = FakeClock()
        self.broker: Broker
        self.host: Host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return self.host.url

    def start(self) -> Hosted:
        self.run(self._start())
        return self

    async def _start(self) -> None:
        options = BrokerOptions(engine=EngineOptions(clock=self.clock, archive=self._archive))
        self.broker = Broker(await open_engine(self._store, options.engine), options)
        self.keys = Keys(self.broker.engine, self.clock)
        access = Access(self.clock, self.keys, enabled=self._auth)
        service = Service(self.broker, access, Metrics(self.broker.engine))
        self.host = Host(Application(service, ROUTES))
        await self.host.start()

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        self.run(self.host.stop())
        self.run(self.broker.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- what a test does ----------------------------------------------------------------

    def run(self, work: Awaitable[T]) -> T:
        """Wait for something that belongs to the server's loop."""

        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(60)

    def ask(self, call: Callable[[Broker], Awaitable[T]]) -> T:
        """What a verb of the broker answers: ``server.ask(lambda q: q.log_end())``."""

        async def wait() -> T:
            return await call(self.broker)

        return self.run(wait())

    def key(self, *grants: str) -> str:
        """A new key with these grants only."""

        async def make() -> str:
            return (await self.keys.create("default", grants)).key

        return self.run(make())

    def advance(self, ms: int) -> None:
        """Let time pass."""

        async def move() -> None:
            self.clock.advance(ms)

        self.run(move())

    def publish(self, topic: str, *messages: NewMessage | bytes) -> list[Published]:
        """Publish in one batch; what is not a message is its payload."""
        batch = [one if isinstance(one, NewMessage) else NewMessage(one) for one in messages]
        return list(self.ask(lambda q: q.publish_batch(topic, batch)).messages)

    def payloads(self, topic: str) -> Counter[bytes | None]:
        """What the log has of a topic, and how often."""
        found: Counter[bytes | None] = Counter()
        position, end = 0, self.ask(lambda q: q.log_end())
        while position < end:
            page = self.run(self.broker.read_log(position, limit=1_000, payloads=True))
            found.update(entry.payload for entry in page.entries if entry.message.topic == topic)
            position = page.next_offset
        return found

    def claim(self, queue: str, limit: int = 1, consumer: str = "tester") -> list[Delivery]:
        return list(self.ask(lambda q: q.claim(queue, consumer=consumer, limit=limit)))

    def forget(self) -> None:
        """Let retention remove everything that was published before, as far as it may."""
        # The segment that is written to stays, so there has to be another.
        self.advance(2 * HOUR_MS)
        self.publish("after-forgetting", b"")
        self.advance(23 * HOUR_MS)
        while self.ask(lambda q: q.sweep()).more:
            pass

    def options(self, **more: Any) -> Mapping[str, str]:
        """Options of the format for this server."""
        return {"url": self.url, **{name: _text(value) for name, value in more.items()}}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
