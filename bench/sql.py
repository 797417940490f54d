"""The SQL engine on PostgreSQL: publish against a bare table, claim and ack against a table queue.

Both sides have the same server, payloads of 1 KiB, a hundred messages per call and as many callers,
with one connection each on the bare side; the engine pools its own. Everything is durable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bench.measuring import Figure, Work, alternate
from bench.messages import check
from bench.pgmq import Table, TableQueue, connections
from bench.sql_stores import BATCH, QUEUE, TENANT, Client, figure, store, supply, together
from penstock import NewMessage
from penstock.storage.contract import Engine
from penstock.storage.engines import open_engine
from tests.databases import Server

__all__ = ["consuming", "publishing"]

#: Concurrent callers, per measurement.
CALLERS: Final = (1, 8)
#: Batches per turn, of all callers together.
_TURN: Final = 32
#: Waiting messages per second of measuring.
_WAITING: Final = 8_000


async def publishing(server: Server, seconds: float, rounds: int) -> list[Figure]:
    """Batches of a hundred against the same payloads in a table of two columns."""
    return [await _publish(server, callers, seconds, rounds) for callers in CALLERS]


async def _publish(server: Server, callers: int, seconds: float, rounds: int) -> Figure:
    async with store(server, "publish") as url, connections(url, callers) as opened:
        table = Table()
        await table.create(opened[0])
        engine = await open_engine(url)
        ours = together([_publisher(engine) for _ in opened], _TURN // callers)
        bare = together([_inserter(table, one) for one in opened], _TURN // callers)
        pairs = [await alternate(ours, bare, seconds) for _ in range(rounds)]
        await engine.close()
    return figure(
        f"PostgreSQL: publish, 100 a batch, {_callers(callers)}, against a bare INSERT", 0.8, pairs
    )


def _publisher(engine: Engine) -> Work:
    bodies = supply()

    async def publish() -> int:
        messages = [NewMessage(next(bodies)) for _ in range(BATCH)]
        await engine.publish(TENANT, QUEUE, messages)
        return BATCH

    return publish


def _inserter(table: Table, connection: Any) -> Work:
    bodies = supply()

    async def insert() -> int:
        await table.insert(connection, [next(bodies) for _ in range(BATCH)])
        return BATCH

    return insert


async def consuming(server: Server, seconds: float, rounds: int) -> list[Figure]:
    """Claim and ack, a hundred per call, against a table queue like PGMQ's."""
    return [await _consume(server, callers, seconds, rounds) for callers in CALLERS]


async def _consume(server: Server, callers: int, seconds: float, rounds: int) -> Figure:
    """Both sides drain the same backlog, published before each round."""
    batches = max(_TURN, round(seconds * _WAITING / BATCH))
    pairs: list[tuple[float, float]] = []
    async with store(server, "consume") as url, connections(url, callers) as opened:
        queue = TableQueue()
        await queue.create(opened[0])
        engine = await open_engine(url)
        clients = [Client(engine, number) for number in range(callers)]
        readers = [_reader(queue, connection) for connection in opened]
        for _ in range(rounds):
            await _fill(lambda: queue.send(opened[0], _batch()), batches)
            theirs = await _drain(readers, batches * BATCH)
            await _fill(clients[0].publish, batches)
            ours = await _drain([client.consume for client in clients], batches * BATCH)
            pairs.append((ours, theirs))
        await engine.close()
    return figure(
        f"PostgreSQL: claim + ack, 100 a batch, {_callers(callers)}, against a table as PGMQ's",
        1.0,
        pairs,
    )


def _batch() -> list[bytes]:
    bodies = supply()
    return [next(bodies) for _ in range(BATCH)]


def _reader(queue: TableQueue, connection: Any) -> Work:
    async def read() -> int:
        rows = await queue.read(connection, BATCH)
        for _, message in rows:
            check(message)
        if rows:
            await queue.delete(connection, [number for number, _ in rows])
        return len(rows)

    return read


async def _fill(publish: Callable[[], Awaitable[object]], batches: int) -> None:
    for _ in range(batches):
        await publish()


async def _drain(consumers: list[Work], count: int) -> float:
    """Consume everything, with all consumers concurrently; returns the rate."""
    done = 0

    async def consume(work: Work) -> None:
        nonlocal done
        while done < count and (number := await work()):
            done += number

    begin = time.perf_counter()
    await asyncio.gather(*map(consume, consumers))
    spent = time.perf_counter() - begin
    if done != count:
        raise AssertionError(f"{done} messages came back of {count}")
    return done / spent


def _callers(number: int) -> str:
    return "one caller" if number == 1 else f"{number} callers"
