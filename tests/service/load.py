"""A steady load on a server, and what it looked like second by second.

Producers publish at a fixed rate, whatever the server does; consumers claim, ack most, nack and
reject some. Latencies are taken where a program would notice them: around ``publish``, and from
before a publish to the claim that hands it out.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from random import Random
from statistics import median
from typing import Final

from msgspec import Struct

from penstock.client import Client
from penstock.model.delivery import Ack, Delivery, Nack, Reject, Settlement

TOPIC, QUEUE = "orders", "jobs"
_CONSUMERS: Final = 4
_TICKS: Final = 20
"""Bursts a second; a producer that sleeps for every message measures its own timers."""
_SENT: Final = struct.Struct(">d")


class Seen(Struct):
    """Latencies in seconds since the last look."""

    publish: list[float] = []
    deliver: list[float] = []


class Load:
    """Producers and consumers of one client."""

    def __init__(self, client: Client, rate: int, seed: int) -> None:
        self._client = client
        self._rate = rate
        self._random = Random(seed)
        self._loop = asyncio.get_running_loop()
        self.seen = Seen()
        self.counts: Counter[str] = Counter()

    async def produce(self, seconds: float) -> None:
        """Publish at the rate for so long."""
        begun = self._loop.time()
        async with asyncio.TaskGroup() as group:
            for tick in range(int(seconds * _TICKS)):
                await asyncio.sleep(max(0.0, begun + tick / _TICKS - self._loop.time()))
                for _ in range(self._rate // _TICKS):
                    group.create_task(self._publish())

    async def _publish(self) -> None:
        sent = self._loop.time()
        size = self._random.randint(100, 1900)
        await self._client.publish(TOPIC, _SENT.pack(sent) + self._random.randbytes(size))
        self.seen.publish.append(self._loop.time() - sent)
        self.counts["published"] += 1

    async def consume(self) -> None:
        """Claim and settle until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(_CONSUMERS):
                group.create_task(self._consume(f"c{number}"))

    async def _consume(self, name: str) -> None:
        while True:
            claimed = await self._client.claim(
                QUEUE, limit=50, consumer=name, lease_ms=30_000, wait_ms=5_000
            )
            if claimed:
                now = self._loop.time()
                self.seen.deliver += [now - _sent(item) for item in claimed if item.attempts == 1]
                reply = await self._client.settle(QUEUE, [self._verb(item) for item in claimed])
                self.counts.update(outcome.state for outcome in reply.outcomes if outcome.state)
                self.counts["stale"] += sum(not outcome.ok for outcome in reply.outcomes)

    def _verb(self, item: Delivery) -> Settlement:
        chance = self._random.random()
        if chance < 0.01:
            return Reject(item.receipt, "never")
        return Nack(item.receipt, "again") if chance < 0.05 else Ack(item.receipt)


class Sample(Struct, frozen=True):
    """One look at a server under load."""

    at_s: float
    rss_mb: float
    store_mb: float
    descriptors: int
    publish_ms: float
    """The median; so are the others."""
    deliver_ms: float
    slowest_ms: float
    """The slowest publish."""
    done: int
    failed: int
    live: int
    log_start: int
    log_end: int


def milliseconds(values: list[float]) -> float:
    """The median, or 0 where there is nothing."""
    return round(median(values) * 1000, 2) if values else 0.0


def _sent(item: Delivery) -> float:
    sent: float = _SENT.unpack_from(item.payload)[0]
    return sent
