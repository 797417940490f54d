"""A client, and the real application on a real socket of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker import Broker, BrokerOptions
from penstock.client import Client, ClientOptions, connect
from penstock.model.queue import Backoff
from penstock.server.access import Access, Keys
from penstock.server.app import Application
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES
from penstock.server.service import Service
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from tests.unit.client.hosting import Host

#: Impatient, so that a test of retries is quick; the ids are the same in every run.
QUICK = ClientOptions(
    backoff=Backoff(base_ms=1, max_ms=5), timeout_ms=5_000, id_prefix=lambda: "client"
)


async def open_broker(clock: FakeClock) -> Broker:
    # The same randomness for every store: identities and receipts can be compared.
    engine = EngineOptions(clock=clock, jitter=lambda ceiling_ms: ceiling_ms, random=bytes)
    options = BrokerOptions(engine=engine)
    return Broker(await open_engine("memory://", options.engine), options)


def application(broker: Broker, *, auth: bool = False) -> Application:
    clock = broker.options.engine.clock
    access = Access(clock, Keys(broker.engine, clock), enabled=auth)
    return Application(Service(broker, access, Metrics(broker.engine)), ROUTES)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def broker(clock: FakeClock) -> AsyncIterator[Broker]:
    """What is behind the server."""
    async with await open_broker(clock) as opened:
        yield opened


@pytest.fixture
async def host(broker: Broker) -> AsyncIterator[Host]:
    hosted = Host(application(broker))
    await hosted.start()
    yield hosted
    await hosted.stop()


@pytest.fixture
async def q(host: Host) -> AsyncIterator[Client]:
    async with connect(host.url, options=QUICK) as client:
        yield client
