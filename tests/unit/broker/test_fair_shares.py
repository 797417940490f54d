"""Calls of the broker take a share of the store, so that one tenant does not starve another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock.broker import Broker, BrokerOptions
from penstock.errors import PenstockError
from penstock.model.delivery import Ack, Receipt, Release
from penstock.model.message import NewMessage, Outgoing
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.shares import Shares
from penstock.testing.clock import FakeClock

CAPACITY = 10
BATCH = 4


class Gate:
    """Holds calls of the engine until it is opened, and knows which are inside."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside: list[tuple[str, str]] = []
        self._opened = asyncio.Event()
        for verb in ("publish", "claim", "settle"):
            monkeypatch.setattr(engine, verb, self._held(verb, getattr(engine, verb)))

    def _held(
        self, verb: str, call: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def held(tenant: str, *args: Any, **options: Any) -> Any:
            self.inside.append((tenant, verb))
            try:
                await self._opened.wait()
                return await call(tenant, *args, **options)
            finally:
                self.inside.remove((tenant, verb))

        return held

    def open(self) -> None:
        self._opened.set()

    def count(self, tenant: str) -> int:
        return sum(name == tenant for name, _ in self.inside)


@pytest.fixture
async def loud() -> AsyncIterator[Broker]:
    options = BrokerOptions(engine=EngineOptions(clock=FakeClock()))
    engine = await open_engine("memory://", options.engine)
    engine.shares = Shares(engine.turns, CAPACITY)
    async with Broker(engine, options, "loud") as broker:
        for tenant in ("loud", "quiet"):
            await broker.for_tenant(tenant).create_queue("q")
        yield broker


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_batches_of_one_tenant_wait_and_another_goes_by(
    loud: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(loud.engine, monkeypatch)
    batch = [NewMessage(b"x")] * BATCH
    flood = [asyncio.ensure_future(loud.publish_batch("t", batch)) for _ in range(8)]
    await turn()
    assert gate.count("loud") == CAPACITY // BATCH
    quiet = asyncio.ensure_future(loud.for_tenant("quiet").publish("t", b"x"))
    await turn()
    assert gate.count("quiet") == 1
    gate.open()
    await asyncio.gather(*flood, quiet)
    assert (await loud.stats("q")).available == 8 * BATCH


async def test_claims_and_settles_take_shares_too(
    loud: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await loud.publish_batch("t", [NewMessage(b"x")] * 6)
    held = await loud.claim("q", limit=6)
    gate = Gate(loud.engine, monkeypatch)
    claims = [asyncio.ensure_future(loud.claim("q", limit=6)) for _ in range(3)]
    await turn()
    assert gate.inside == [("loud", "claim")]
    settling = asyncio.ensure_future(
        loud.settle(
            "q",
            [Ack(held[0].receipt), *(Release(item.receipt) for item in held[1:])],
            publish=[Outgoing("t", [NewMessage(b"y")])],
        )
    )
    await turn()
    assert len(gate.inside) == 1
    gate.open()
    await asyncio.gather(*claims)
    assert all(outcome.ok for outcome in (await settling).outcomes)


async def test_a_refused_call_gives_its_share_back(loud: Broker) -> None:
    message = NewMessage(b"x")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: loud.claim("missing", limit=CAPACITY),
        lambda: loud.settle("missing", [Ack(Receipt("x"))] * CAPACITY),
        lambda: loud.publish_batch("full", [message] * CAPACITY),
        lambda: loud.publish("full", b"x"),
    ]
    await loud.create_queue("full", "topic = 'full'", max_depth=1)
    await loud.publish("full", b"x")
    for call in calls:
        for _ in range(2 * CAPACITY):
            with pytest.raises(PenstockError):
                await call()
    assert len(await loud.claim("q")) == 1
