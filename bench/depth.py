"""Depth: the same work with a thousand and with many more waiting messages.

The deep part runs in a separate process, because its memory is one of the figures.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import msgspec

import penstock
from bench.measuring import (
    PAYLOAD_BYTES,
    Figure,
    memory_figure,
    middle,
    payloads,
    peak_memory_bytes,
    per_second,
    scratch,
    seconds_figure,
)
from penstock import Ack, Broker, NewMessage

BATCH = 100
SHALLOW = 1_000
DEEP = 1_000_000
#: Messages that a round claims, acks and refills, so that the depth stays the same.
ROUND = 20_000


class Allowance(msgspec.Struct, frozen=True):
    """The size of the messages, and what the deep store may take."""

    payload_bytes: int = PAYLOAD_BYTES
    open_s: float = 2.0
    memory_mb: int = 300


USUAL = Allowance()
#: Small payloads: what waits is what costs, and the disk may be small.
DEEPEST = Allowance(payload_bytes=100, open_s=5.0, memory_mb=500)


class Deep(msgspec.Struct, frozen=True):
    """The report of the deep process."""

    deep: list[float]
    shallow: list[float]
    open_seconds: float
    memory_bytes: int


async def depth(rounds: int, deep: int = DEEP, allowance: Allowance = USUAL) -> list[Figure]:
    """Claim and ack, opening, and memory."""
    with scratch() as path:
        command = [sys.executable, "-m", "bench.depth", str(path), str(deep), str(rounds)]
        command.append(str(allowance.payload_bytes))
        done = await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.PIPE)
    found = msgspec.json.decode(done.stdout, type=Deep)
    ratio = middle([a / b for a, b in zip(found.deep, found.shallow, strict=True)])
    return [
        Figure(
            f"claim + ack at {deep:,} waiting, of {SHALLOW:,}",
            ratio,
            0.8,
            per_second(middle(found.deep)),
            per_second(middle(found.shallow)),
        ),
        seconds_figure(f"opening {deep:,} waiting", found.open_seconds, allowance.open_s),
        memory_figure(f"memory with {deep:,} waiting", found.memory_bytes, allowance.memory_mb),
    ]


async def _fill(q: Broker, topic: str, count: int, size: int) -> None:
    bodies = [body[:size] for body in payloads(1000)]
    for begin in range(0, count, 1000):
        batch = [NewMessage(bodies[i % 1000]) for i in range(min(1000, count - begin))]
        await q.publish_batch(topic, batch, durability="os")


async def _drain(q: Broker, queue: str, count: int) -> float:
    """Claim and ack ``count`` messages; returns the rate."""
    begin = time.perf_counter()
    done = 0
    while done < count:
        deliveries = await q.claim(queue, limit=BATCH, consumer="bench")
        await q.settle(queue, [Ack(delivery.receipt) for delivery in deliveries])
        done += len(deliveries)
    return done / (time.perf_counter() - begin)


async def _measure(path: Path, deep: int, rounds: int, size: int) -> Deep:
    url = f"rocksdb:{path / 'store'}"
    async with penstock.open(url) as q:
        await q.create_queue("deep", "topic = 'deep'")
        await q.create_queue("shallow", "topic = 'shallow'")
        await _fill(q, "deep", deep + ROUND, size)
    begin = time.perf_counter()
    q = await penstock.open(url)
    open_seconds = time.perf_counter() - begin
    deep_rates, shallow_rates = [], []
    for _ in range(rounds):
        deep_rates.append(await _drain(q, "deep", ROUND))
        await _fill(q, "deep", ROUND, size)
        shallow_rates.append(await _shallow(q, size))
    await q.close()
    return Deep(deep_rates, shallow_rates, open_seconds, peak_memory_bytes())


async def _shallow(q: Broker, size: int) -> float:
    """The same number of messages, with at most a thousand waiting."""
    rates = []
    for _ in range(ROUND // SHALLOW):
        await _fill(q, "shallow", SHALLOW, size)
        rates.append(await _drain(q, "shallow", SHALLOW))
    return len(rates) / sum(1 / value for value in rates)


if __name__ == "__main__":
    found = asyncio.run(_measure(Path(sys.argv[1]), *map(int, sys.argv[2:])))
    sys.stdout.buffer.write(msgspec.json.encode(found))
