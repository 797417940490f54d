"""Fairness: how a tenant that floods the store affects one that publishes occasionally."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import quantiles
from typing import Self

import penstock
from bench.measuring import Figure, middle, payloads, scratch
from penstock import Broker, NewMessage

#: Batch size and clients of the flooding tenant; no larger batch is allowed.
BATCH = 10_000
CLIENTS = 4
#: Small payloads: routing and storing so many messages is what takes the time.
_PAYLOAD_BYTES = 100
#: Pause between two publishes of the quiet tenant, in seconds.
_PAUSE_S = 0.01
#: Clients of each tenant when both publish as fast as they can.
_MANY, _FEW = 6, 2


async def fairness(seconds: float, rounds: int) -> list[Figure]:
    """The quiet tenant's publish p99 and its share of the throughput, during a flood."""
    ratios: list[float] = []
    alone: list[float] = []
    beside: list[float] = []
    parts: list[float] = []
    for _ in range(rounds):
        with scratch() as path:
            async with penstock.open(f"rocksdb:{path / 'store'}", tenant="quiet") as quiet:
                loud = quiet.for_tenant("loud")
                await _single(quiet)
                alone.append(await _p99(quiet, seconds))
                async with _flood(loud, CLIENTS):
                    beside.append(await _p99(quiet, seconds))
                parts.append(await _part(quiet, loud, seconds))
        ratios.append(beside[-1] / alone[-1])
    return [
        Figure(
            "publish p99 beside a tenant that floods with batches of 10,000, of alone",
            middle(ratios),
            40.0,
            f"{middle(beside) * 1000:.0f} ms",
            f"{middle(alone) * 1000:.1f} ms",
            at_most=True,
        ),
        Figure(
            f"part of the throughput that {_FEW} clients have beside {_MANY} of another tenant",
            middle(parts),
            0.4,
            f"{middle(parts):.2f}",
            "0.50",
        ),
    ]


async def _single(q: Broker) -> None:
    await q.publish("t", b"quiet")


async def _p99(q: Broker, seconds: float) -> float:
    """The p99 of single publishes with a pause after each."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < 2:
        begin = time.perf_counter()
        await _single(q)
        took.append(time.perf_counter() - begin)
        await asyncio.sleep(_PAUSE_S)
    return quantiles(took, n=100)[98]


class _flood:  # noqa: N801  (used like a function)
    """Clients that publish batches until the block ends."""

    def __init__(self, q: Broker, clients: int) -> None:
        self._batch = [NewMessage(body[:_PAYLOAD_BYTES]) for body in payloads(BATCH)]
        self._q = q
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self.published = 0
        #: Set after the first batch.
        self.begun = asyncio.Event()

    async def __aenter__(self) -> Self:
        work: Callable[[], Awaitable[None]] = self._publish
        self._tasks = [asyncio.ensure_future(work()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _publish(self) -> None:
        while True:
            await self._q.publish_batch("t", self._batch)
            self.published += BATCH
            self.begun.set()


async def _part(quiet: Broker, loud: Broker, seconds: float) -> float:
    """The share of the quiet tenant, which has fewer clients, when both publish."""
    async with _flood(loud, _MANY) as many, _flood(quiet, _FEW) as few:
        await asyncio.sleep(seconds)
        await many.begun.wait()
        await few.begun.wait()
        return few.published / (few.published + many.published)
