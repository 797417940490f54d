"""A store that is being used is never accused of what is only movement.

The store here is as busy as can be: between any two calls that verify makes, random verbs
change it, time passes and retention removes, and pages are so short that everything is seen
at another moment. A real server is calmer than that.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

import penstock
from penstock import Broker, BrokerOptions, EngineOptions, Limits, Message, NewMessage
from penstock.model.delivery import Event, LogPage, MessageDeliveries, Page, QueueStats
from penstock.model.message import Offset
from penstock.model.queue import QueueInfo
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.model import Oracle
from penstock.verify import verify
from tests.crash.program import Program

#: Short enough that the log loses entries while it is read.
LOG_RETENTION_MS: Final = 5_000
PAGE: Final = 3


class Busy:
    """The verbs of a broker, with a random program going on between them."""

    def __init__(self, broker: Broker, program: Program, steps: int) -> None:
        self._broker = broker
        self._program = program
        self._steps = steps
        #: The program does one thing at a time; verify does not.
        self._turn = asyncio.Lock()
        self.calls = 0

    async def _stir(self) -> None:
        self.calls += 1
        async with self._turn:
            for _ in range(self._steps):
                await self._program.step()

    async def queues(self) -> tuple[QueueInfo, ...]:
        await self._stir()
        return await self._broker.queues()

    async def queue(self, name: str) -> QueueInfo:
        await self._stir()
        return await self._broker.queue(name)

    async def stats(self, queue: str) -> QueueStats:
        await self._stir()
        return await self._broker.stats(queue)

    async def peek(
        self,
        queue: str,
        state: State,
        *,
        limit: int,
        cursor: str | None = None,
        payloads: bool = False,
    ) -> Page:
        await self._stir()
        # The oracle's cursors are of another form than the broker lets pass.
        broker, size = self._broker, min(limit, PAGE)
        return await broker.engine.peek(
            broker.tenant, queue, state, None, size, cursor, payloads=payloads
        )

    async def read_log(self, start: int, *, limit: int, payloads: bool = False) -> LogPage:
        await self._stir()
        return await self._broker.read_log(start, limit=min(limit, PAGE), payloads=payloads)

    async def log_end(self) -> Offset:
        await self._stir()
        return await self._broker.log_end()

    async def message(self, message_id: int) -> MessageDeliveries:
        await self._stir()
        return await self._broker.message(message_id)

    async def history(self, message_id: int) -> tuple[Event, ...]:
        await self._stir()
        return await self._broker.history(message_id)


async def open_program(kind: str, clock: FakeClock, seed: int) -> tuple[Broker, Program]:
    """A store in the middle of a random program, that forgets as fast as it can."""
    options = EngineOptions(
        clock=clock,
        jitter=lambda ceiling_ms: ceiling_ms // 2,
        limits=Limits(log_retention_ms=LOG_RETENTION_MS),
    )
    engine: Engine = Oracle(options)
    if kind != "oracle":
        engine = await open_engine(kind, options)
    broker = Broker(engine, BrokerOptions(engine=options))
    program = Program(engine, clock, seed)
    await program.begin()
    for name in ("jobs", "ordered"):
        await broker.update_queue(name, done_retention_s=5, failed_retention_s=20)
    return broker, program


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "kind, steps",
    [("memory://", 0), ("memory://", 1), ("memory://", 2), ("oracle", 0), ("oracle", 1)],
)
async def test_movement_is_no_violation(kind: str, seed: int, steps: int) -> None:
    clock = FakeClock()
    broker, program = await open_program(kind, clock, seed)
    try:
        for _ in range(150):
            await program.step()
        busy = Busy(broker, program, steps)
        report = await verify(busy, clock=clock)
        assert report.violations == ()
        assert report.quiescent == (steps == 0)
        assert report.log_entries > 20
        assert report.deliveries > 10
        assert busy.calls > 100
    finally:
        await broker.close()


async def test_producers_and_consumers_go_on() -> None:
    """The same with tasks of one program, over a store on which nothing else waits."""
    async with penstock.open("memory://") as q, asyncio.timeout(60):
        await q.create_queue("jobs", "n >= 0", max_attempts=3)
        under_way, verified = asyncio.Event(), asyncio.Event()
        workers = [
            asyncio.create_task(_produce(q, under_way, verified)),
            asyncio.create_task(_consume(q, verified)),
            asyncio.create_task(_consume(q, verified)),
        ]
        try:
            await under_way.wait()
            for _ in range(3):
                report = await verify(q)
                assert report.violations == ()
                assert not report.quiescent
        finally:
            verified.set()
            await asyncio.gather(*workers)
        calm = await verify(q)
        assert calm.ok
        assert calm.quiescent
        assert all(check.skipped is None and not check.unresolved for check in calm.checks)


async def _produce(q: Broker, under_way: asyncio.Event, verified: asyncio.Event) -> None:
    number = 0
    while not verified.is_set():
        stats = await q.stats("jobs")
        if stats.done > 200:
            under_way.set()
        if stats.depth < 300:
            batch = [NewMessage(b"%d" % n, headers={"n": n}) for n in range(number, number + 20)]
            await q.publish_batch("jobs", batch)
            number += 20
        await asyncio.sleep(0)


async def _consume(q: Broker, verified: asyncio.Event) -> None:
    while not verified.is_set():
        for delivery in await q.claim("jobs", limit=10, consumer="worker"):
            match _number(delivery.message) % 7:
                case 0:
                    await q.nack(delivery, "again", delay_ms=0)
                case 1 if delivery.attempts == 1:
                    await q.release(delivery)
                case 2:
                    await q.reject(delivery, "no")
                case _:
                    await q.ack(delivery)
            await asyncio.sleep(0)
        # Also when the queue is empty: otherwise nothing else would ever run.
        await asyncio.sleep(0)


def _number(message: Message) -> int:
    number = message.headers["n"]
    assert isinstance(number, int)
    return number
