"""A broker in memory that remembers what it was asked, and time that the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import pytest

from penstock import Broker, BrokerOptions, EngineOptions, PenstockError
from penstock.api import ANONYMOUS
from penstock.consume import Consumption
from penstock.model.delivery import (
    ClaimOrder,
    Delivery,
    Extend,
    SettleAndClaimReply,
    Settlement,
    SettleReply,
)
from penstock.model.duration import Duration
from penstock.model.message import NewMessage, Outgoing
from penstock.model.settling_exceptions import SettlingException
from penstock.storage.contract import Engine
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock


class ClockPace:
    """The pace of a clock that is moved by hand."""

    claim_grace_ms = 0

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def now(self) -> int:
        return self._clock.now()

    async def sleep(self, ms: int) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self._clock.call_at(
            self.now() + ms, lambda: None if over.done() else over.set_result(None)
        )
        try:
            await over
        finally:
            alarm.cancel()


async def turns(count: int = 60) -> None:
    """Let everything happen that needs no time; the store in memory needs none."""
    for _ in range(count):
        await asyncio.sleep(0)


async def publish(q: Broker, count: int, topic: str = "t") -> list[int]:
    """Publish that many messages, numbered; their ids in order."""
    messages = [NewMessage(b"%d" % number) for number in range(count)]
    return [item.id for item in (await q.publish_batch(topic, messages)).messages]


async def pass_time(clock: FakeClock, ms: int) -> None:
    """Move the clock from alarm to alarm, and let each be acted upon."""
    end = clock.now() + ms
    await turns()
    while (at := clock.next_alarm()) is not None and at <= end:
        clock.advance(max(0, at - clock.now()))
        await turns()
    clock.advance(end - clock.now())
    await turns()


class Spy(Broker):
    """A broker that remembers its calls, and fails when it is told to."""

    def __init__(self, engine: Engine, options: BrokerOptions) -> None:
        super().__init__(engine, options)
        #: The limit of each claim.
        self.claims: list[int] = []
        #: How many of them settled, too.
        self.combined = 0
        #: How many calls only settled.
        self.settles = 0
        self.claimed: list[Delivery] = []
        #: The receipts of each extension.
        self.extensions: list[list[str]] = []
        #: What the next calls raise, by verb.
        self.faults: dict[str, list[PenstockError]] = {}
        #: The settlements that were answered, by type.
        self.settled: Counter[type[Settlement | SettlingException]] = Counter()
        self.most_in_flight = 0
        #: Holds back the answers to settlements, if there is one.
        self.gate: asyncio.Event | None = None

    async def claim(
        self,
        queue: str | Sequence[str],
        *,
        limit: int = 1,
        consumer: str = ANONYMOUS,
        lease_ms: Duration | None = None,
        wait_ms: Duration = 0,
        order: ClaimOrder = "given",
        where: str | None = None,
    ) -> list[Delivery]:
        self._fail("claim")
        self.claims.append(limit)
        deliveries = await super().claim(
            queue,
            limit=limit,
            consumer=consumer,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            order=order,
            where=where,
        )
        self.claimed += deliveries
        names = [queue] if isinstance(queue, str) else queue
        in_flight = sum([(await self.stats(name)).in_flight for name in names])
        self.most_in_flight = max(self.most_in_flight, in_flight)
        return deliveries

    async def settle(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        *,
        publish: Sequence[Outgoing] = (),
    ) -> SettleReply:
        extended = [str(item.receipt) for item in settlements if isinstance(item, Extend)]
        self._fail("extend" if extended else "settle")
        if extended:
            self.extensions.append(extended)
        else:
            self.settles += 1
        reply = await super().settle(queue, settlements, publish=publish)
        self.settled.update(type(item) for item in settlements)
        if self.gate is not None and not extended:
            await self.gate.wait()
        return reply

    async def settle_and_claim(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        *,
        publish: Sequence[Outgoing] = (),
        limit: int = 1,
        consumer: str = ANONYMOUS,
        lease_ms: Duration | None = None,
        wait_ms: Duration = 0,
        where: str | None = None,
    ) -> SettleAndClaimReply:
        self._fail("settle")
        self._fail("claim")
        self.claims.append(limit)
        self.combined += 1
        reply = await super().settle_and_claim(
            queue,
            settlements,
            publish=publish,
            limit=limit,
            consumer=consumer,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            where=where,
        )
        self.settled.update(type(item) for item in settlements)
        self.claimed += reply.deliveries
        self.most_in_flight = max(self.most_in_flight, (await self.stats(queue)).in_flight)
        if self.gate is not None:
            await self.gate.wait()
        return reply

    def _fail(self, verb: str) -> None:
        if self.faults.get(verb):
            raise self.faults[verb].pop(0)


class Consume(Protocol):
    """Makes a consumption on the test's clock."""

    def __call__(
        self,
        queue: str | Sequence[str] = "q",
        *,
        consumer: str | None = None,
        max_in_flight: int = 32,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> Consumption: ...


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def q(clock: FakeClock) -> AsyncIterator[Spy]:
    # The longest wait that the backoff allows, every time.
    engine_options = EngineOptions(clock=clock, jitter=lambda ceiling_ms: ceiling_ms)
    engine = await open_engine("memory://", engine_options)
    broker = Spy(engine, BrokerOptions(engine=engine_options))
    await broker.create_queue("q")
    yield broker
    await broker.close()


@pytest.fixture
async def consume(q: Spy, clock: FakeClock) -> AsyncIterator[Consume]:
    made: list[Consumption] = []

    def make(
        queue: str | Sequence[str] = "q",
        *,
        consumer: str | None = None,
        max_in_flight: int = 32,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> Consumption:
        consumption = Consumption(
            q,
            queue,
            consumer=consumer,
            max_in_flight=max_in_flight,
            lease_ms=lease_ms,
            order=order,
            where=where,
            stop=stop,
            pace=ClockPace(clock),
        )
        made.append(consumption)
        return consumption

    yield make
    for consumption in made:
        await consumption.aclose()
