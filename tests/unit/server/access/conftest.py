"""A store in memory, a clock that the test moves, and keys that are made of counted bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest

from penstock.server.access import Keys
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def engine(clock: FakeClock) -> AsyncIterator[Engine]:
    engine = await open_engine("memory://", EngineOptions(clock=clock))
    yield engine
    await engine.close()


@pytest.fixture
def keys(engine: Engine, clock: FakeClock) -> Keys:
    numbers = count(1)
    return Keys(engine, clock, lambda size: next(numbers).to_bytes(size))
