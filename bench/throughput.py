"""Throughput against bare RocksDB: publishing in batches, by many tasks, and the whole cycle."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from itertools import cycle

import penstock
from bench.bare import Bare
from bench.measuring import Figure, Work, alternate, middle, payloads, per_second, scratch
from penstock import Ack, Broker, NewMessage

BATCH = 100
TASKS = 64
CLIENTS = 8


async def publish_in_batches(seconds: float, rounds: int) -> Figure:
    """One client, a hundred messages per call."""

    def work(q: Broker) -> Work:
        supply = _supply()

        async def publish() -> int:
            await q.publish_batch("t", [NewMessage(next(supply)) for _ in range(BATCH)])
            return BATCH

        return publish

    name = "publish, 100 a batch, one client"
    return await _against_bare(name, 0.5, BATCH, work, seconds, rounds)


async def publish_by_many(seconds: float, rounds: int) -> Figure:
    """64 concurrent tasks, one message per call; the group commit batches them."""

    def work(q: Broker) -> Work:
        supply = _supply()

        async def publish_some() -> None:
            for _ in range(10):
                await q.publish("t", next(supply))

        async def publish() -> int:
            await asyncio.gather(*(publish_some() for _ in range(TASKS)))
            return TASKS * 10

        return publish

    name = "publish, 64 tasks, one a call"
    return await _against_bare(name, 0.35, TASKS, work, seconds, rounds)


async def whole_cycle(seconds: float, rounds: int) -> Figure:
    """Publish, claim, ack: 8 clients, batches of 100, every message checked."""

    def work(q: Broker) -> Work:
        clients = [_Client(q, number) for number in range(CLIENTS)]

        async def run() -> int:
            # Several cycles each, so that clients do not wait for the slowest after each one.
            return sum(await asyncio.gather(*(client.cycles(4) for client in clients)))

        return run

    name = "publish, claim, ack, 8 clients, 100 a batch"
    return await _against_bare(name, 0.3, BATCH, work, seconds, rounds)


async def _against_bare(
    name: str,
    target: float,
    commit: int,
    work_on: Callable[[Broker], Work],
    seconds: float,
    rounds: int,
) -> Figure:
    """Our work on a store with one queue, against bare synced batches of ``commit`` payloads."""
    ours: list[float] = []
    bare: list[float] = []
    with scratch() as path:
        reference = Bare(path / "bare")
        async with penstock.open(f"rocksdb:{path / 'store'}") as q:
            await q.create_queue("q", "topic = 't'")
            work = work_on(q)
            for _ in range(rounds):
                mine, other = await alternate(work, lambda: reference.commit(commit), seconds)
                ours.append(mine)
                bare.append(other)
        reference.close()
    ratio = middle([mine / other for mine, other in zip(ours, bare, strict=True)])
    return Figure(name, ratio, target, per_second(middle(ours)), per_second(middle(bare)))


class _Client:
    """Publishes a batch, claims one, checks all its messages, and acks it."""

    def __init__(self, q: Broker, number: int) -> None:
        self._q = q
        self._name = f"client-{number}"
        self._supply = _supply()

    async def cycles(self, count: int) -> int:
        return sum([await self._cycle() for _ in range(count)])

    async def _cycle(self) -> int:
        messages = [NewMessage(next(self._supply)) for _ in range(BATCH)]
        await self._q.publish_batch("t", messages)
        deliveries = await self._q.claim("q", limit=BATCH, consumer=self._name)
        for delivery in deliveries:
            payload = delivery.payload
            if int.from_bytes(payload[:4], "big") != zlib.crc32(payload[4:]):
                raise AssertionError("a payload came back changed")
        reply = await self._q.settle("q", [Ack(delivery.receipt) for delivery in deliveries])
        if not all(outcome.ok for outcome in reply.outcomes):
            raise AssertionError("an ack was refused")
        return len(deliveries)


def _supply() -> cycle[bytes]:
    return cycle(
        zlib.crc32(payload[4:]).to_bytes(4, "big") + payload[4:] for payload in payloads(1000)
    )
