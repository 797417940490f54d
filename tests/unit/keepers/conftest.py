"""A store in memory, a clock that the test moves, and no keepers but the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import penstock
from penstock import Broker, BrokerOptions, EngineOptions, Limits
from penstock.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def q(clock: FakeClock) -> AsyncIterator[Broker]:
    engine = EngineOptions(clock=clock, limits=Limits(log_retention_ms=60_000))
    options = BrokerOptions(engine=engine)
    async with penstock.open("memory://", options=options, keepers=False) as broker:
        yield broker
