"""Routing: many queues, three of them matching, against three queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import penstock
from bench.measuring import Figure, Work, alternate, middle, payloads, per_second, scratch
from penstock import Broker, NewMessage

BATCH = 100
MATCHING = 3
QUEUES = 1_000
CREATED_TOGETHER = 100


async def routing(seconds: float, rounds: int, queues: int = QUEUES) -> Figure:
    """The publish rate with many queues relative to that with 3."""
    few: list[float] = []
    many: list[float] = []
    with scratch() as path:
        async with (
            penstock.open(f"rocksdb:{path / 'few'}") as small,
            penstock.open(f"rocksdb:{path / 'many'}") as large,
        ):
            await _create(small, MATCHING)
            await _create(large, queues)
            for _ in range(rounds):
                mine, other = await alternate(_publisher(large), _publisher(small), seconds)
                many.append(mine)
                few.append(other)
    ratio = middle([a / b for a, b in zip(many, few, strict=True)])
    return Figure(
        f"publish with {queues:,} queues, {MATCHING} of them matching, "
        f"against those {MATCHING} alone",
        ratio,
        0.5,
        per_second(middle(many)),
        per_second(middle(few)),
    )


async def _create(q: Broker, queues: int) -> None:
    filters = [
        f"topic = 'orders' AND country = '{country}' AND amount >= 10"
        for country in (["DE"] * MATCHING + [f"country-{number}" for number in range(queues)])
    ]
    await create_queues(q, filters[:queues])


async def create_queues(q: Broker, filters: Sequence[str]) -> None:
    """Create ``queue-0``, ``queue-1`` …; those that are created together share commits."""
    for begin in range(0, len(filters), CREATED_TOGETHER):
        part = filters[begin : begin + CREATED_TOGETHER]
        await asyncio.gather(
            *(q.create_queue(f"queue-{begin + nth}", text) for nth, text in enumerate(part))
        )


def _publisher(q: Broker) -> Work:
    bodies = payloads(BATCH)
    amounts = count(10)

    async def publish() -> int:
        batch = [NewMessage(body, {"country": "DE", "amount": next(amounts)}) for body in bodies]
        await q.publish_batch("orders", batch)
        return BATCH

    return publish
