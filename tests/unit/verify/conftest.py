"""A sound store with something in every place, and a liar in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock import Broker, BrokerOptions, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from tests.unit.verify.liar import Liar, Stock, stock_up


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def q(clock: FakeClock) -> AsyncIterator[Broker]:
    """A broker that nobody sweeps and routes: it stays as the test leaves it."""
    options = EngineOptions(clock=clock, jitter=lambda ceiling_ms: ceiling_ms)
    engine = await open_engine("memory://", options)
    async with Broker(engine, BrokerOptions(engine=options)) as broker:
        yield broker


@pytest.fixture
async def stock(q: Broker, clock: FakeClock) -> Stock:
    return await stock_up(q, clock)


@pytest.fixture
def liar(stock: Stock) -> Liar:
    return Liar(stock.store)
