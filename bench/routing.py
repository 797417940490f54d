"""Routing: a thousand queues, three of them matching, against three queues."""

from __future__ import annotations

from itertools import count

import penstock
from bench.measuring import Figure, Work, alternate, middle, payloads, per_second, scratch
from penstock import Broker, NewMessage

BATCH = 100
MATCHING = 3
QUEUES = 1_000


async def routing(seconds: float, rounds: int) -> Figure:
    """The publish rate with 1,000 queues relative to that with 3."""
    few: list[float] = []
    many: list[float] = []
    with scratch() as path:
        async with (
            penstock.open(f"rocksdb:{path / 'few'}") as small,
            penstock.open(f"rocksdb:{path / 'many'}") as large,
        ):
            await _create(small, MATCHING)
            await _create(large, QUEUES)
            for _ in range(rounds):
                mine, other = await alternate(_publisher(large), _publisher(small), seconds)
                many.append(mine)
                few.append(other)
    ratio = middle([a / b for a, b in zip(many, few, strict=True)])
    return Figure(
        "publish with 1,000 queues of which 3 match, of 3 queues",
        ratio,
        0.5,
        per_second(middle(many)),
        per_second(middle(few)),
    )


async def _create(q: Broker, queues: int) -> None:
    for number in range(queues):
        country = "DE" if number < MATCHING else f"country-{number}"
        await q.create_queue(
            f"queue-{number}", f"topic = 'orders' AND country = '{country}' AND amount >= 10"
        )


def _publisher(q: Broker) -> Work:
    bodies = payloads(BATCH)
    amounts = count(10)

    async def publish() -> int:
        batch = [NewMessage(body, {"country": "DE", "amount": next(amounts)}) for body in bodies]
        await q.publish_batch("orders", batch)
        return BATCH

    return publish
