"""Doors beside the native one, on the memory engine, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import pytest

from penstock.broker import Broker, BrokerOptions
from penstock.model.webhooks import WebhookOptions
from penstock.server.access import Access, Keys, Tokens
from penstock.server.app import Application
from penstock.server.doors import load_doors
from penstock.server.health import ROUTES as HEALTH
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES as NATIVE
from penstock.server.service import Service
from penstock.settings import Settings
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from tests.unit.server.conftest import Door

#: Opens a server with a door: its name, and whether auth is on.
Open: TypeAlias = Callable[..., Door]


def only(door: Door) -> Any:
    """The door beside the native one."""
    (found,) = door.app._doors
    return found


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    options = BrokerOptions(
        engine=EngineOptions(clock=FakeClock(), jitter=lambda ceiling_ms: ceiling_ms),
        # Receivers of webhooks listen on the loopback interface.
        webhooks=WebhookOptions(allow_private=True),
    )
    engine = await open_engine("memory://", options.engine)
    async with Broker(engine, options) as opened:
        yield opened


@pytest.fixture
def through(broker: Broker) -> Open:
    """The broker behind the native door and the named ones."""

    def open_doors(
        names: str, *, auth: bool = False, tokens: Tokens | None = None, **settings: Any
    ) -> Door:
        clock = broker.engine.clock
        assert isinstance(clock, FakeClock)
        access = Access(clock, Keys(broker.engine, clock), tokens, enabled=auth)
        service = Service(broker, access, Metrics(broker.engine))
        found = Settings(store="memory://", door=names, **settings)
        doors = [opener(service, found) for opener in load_doors(names)]
        return Door(Application(service, (*NATIVE, *HEALTH), doors), broker, clock)

    return open_doors
