"""Depth in a database: claim and ack with a thousand and with a million waiting messages.

Payloads have 100 bytes and are published in batches of a thousand, to fill the queue fast.
Messages that were published together share one row of delivery state. A million publishes of one
message each leave a million rows; for the second figure the rows are split to get that.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from bench.measuring import Figure
from bench.sql_stores import BATCH, DIALECTS, QUEUE, TENANT, ack, figure, make_queue, store
from penstock import NewMessage
from penstock.storage.contract import Engine
from penstock.storage.engines import open_engine
from tests.databases import Server

__all__ = ["depth"]

SHALLOW: Final = 1_000
#: Messages per publish while a queue is filled.
_FILL: Final = 1_000
#: Concurrent publishes while a queue is filled.
_FILLERS: Final = 4
#: Messages that a round claims, acks and refills, so that the depth stays the same.
_ROUND: Final = 5_000
_BYTES: Final = 100

#: Moves the messages of one queue to another, with one row per message. A row with one member
#: names it by its index, in 16 bits.
_TAKE_APART: Final = {
    "postgresql": """
        INSERT INTO penstock_run
        SELECT {to}, phase, rank, row_key + i, segment, 1, until, partition_key, consumer,
            decode(lpad(to_hex((((row_key + i) & 255) << 8 | ((row_key + i) >> 8 & 63))::integer),
                4, '0'), 'hex'), record
        FROM penstock_run, generate_series(0, size - 1) AS i
        WHERE queue = {source};
        DELETE FROM penstock_run WHERE queue = {source}""",
    "mysql": """
        INSERT INTO penstock_run
        SELECT {to}, phase, `rank`, row_key + seq, segment, 1, until, partition_key, consumer,
            unhex(lpad(hex(((row_key + seq) & 255) << 8 | ((row_key + seq) >> 8 & 63)), 4, '0')),
            record
        FROM penstock_run JOIN seq_0_to_4095 ON seq < size
        WHERE queue = {source};
        DELETE FROM penstock_run WHERE queue = {source}""",
}


async def depth(server: Server, dialect: str, rounds: int, deep: int) -> list[Figure]:
    """Messages published in batches, and individually."""
    name = f"{DIALECTS[dialect]}: claim + ack at {deep:,} waiting, of {SHALLOW:,}"
    figures = []
    for apart in (False, True):
        async with store(server, "depth") as url:
            engine = await open_engine(url)
            filling = _Filling(server, engine, dialect, apart=apart)
            await filling.prepare()
            pairs = await _measure(filling, engine, rounds, deep)
            await engine.close()
        how = "published one by one" if apart else "published by 1,000"
        figures.append(figure(f"{name}, {how}", 0.8, pairs))
    return figures


async def _measure(
    filling: _Filling, engine: Engine, rounds: int, deep: int
) -> list[tuple[float, float]]:
    count = min(_ROUND, deep)
    await filling.fill("deep", deep)
    pairs = []
    for _ in range(rounds):
        slow = await _drain(engine, "deep", count)
        await filling.fill("deep", count)
        pairs.append((slow, await _shallow(filling, engine, count)))
    return pairs


async def _shallow(filling: _Filling, engine: Engine, count: int) -> float:
    """The same number of messages, with at most a thousand waiting."""
    rates = []
    for _ in range(count // SHALLOW):
        await filling.fill("shallow", SHALLOW)
        rates.append(await _drain(engine, "shallow", SHALLOW))
    return len(rates) / sum(1 / value for value in rates)


async def _drain(engine: Engine, queue: str, count: int) -> float:
    """Claim and ack ``count`` messages; returns the rate."""
    begin = time.perf_counter()
    done = 0
    while done < count:
        deliveries = await engine.claim(TENANT, queue, "bench", BATCH, None)
        if not deliveries:
            raise AssertionError(f"{queue} is empty after {done} messages")
        done += await ack(engine, queue, deliveries)
    return done / (time.perf_counter() - begin)


class _Filling:
    """Fills queues with messages that share rows, or with one row per message."""

    def __init__(self, server: Server, engine: Engine, dialect: str, *, apart: bool) -> None:
        self._server = server
        self._engine = engine
        self._dialect = dialect
        self._apart = apart
        self._bodies = [os.urandom(_BYTES) for _ in range(_FILL)]

    async def prepare(self) -> None:
        for queue in ("deep", "shallow"):
            # Messages to be split are published to the queue that the store has already.
            topic = "nothing" if self._apart else queue
            await make_queue(self._engine, queue, f"topic = '{topic}'")

    async def fill(self, queue: str, count: int) -> None:
        starts = iter(range(0, count, _FILL))
        topic = QUEUE if self._apart else queue

        async def publish() -> None:
            for start in starts:
                bodies = self._bodies[: min(_FILL, count - start)]
                messages = [NewMessage(one) for one in bodies]
                await self._engine.publish(TENANT, topic, messages)

        await asyncio.gather(*(publish() for _ in range(_FILLERS)))
        if self._apart:
            await asyncio.to_thread(self._take_apart, queue)

    def _take_apart(self, queue: str) -> None:
        rows = self._server.sql("SELECT name, number FROM penstock_queue", "depth")
        numbers = {name: int(number) for name, number in rows}
        statement = _TAKE_APART[self._dialect].format(to=numbers[queue], source=numbers[QUEUE])
        self._server.sql(statement, "depth")
