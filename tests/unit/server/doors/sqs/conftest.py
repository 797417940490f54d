"""The application with the SQS door, on the memory engine."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from msgspec import Struct

from penstock.broker import Broker, BrokerOptions
from penstock.server.access import Access, Keys
from penstock.server.app import Application
from penstock.server.doors.sqs.door import new_door
from penstock.server.health import ROUTES as HEALTH
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES as NATIVE
from penstock.server.service import Service
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from tests.unit.server.conftest import Answer, Door

JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"
HOST = "queue.example.org"


class Sqs(Struct, frozen=True):
    """Calls the door without a client."""

    door: Door

    async def json(self, action: str, body: object) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"x-amz-target": f"AmazonSQS.{action}", "content-type": JSON, "host": HOST}
        return await self.door.call("POST", "/", raw, headers)

    async def form(self, body: bytes, path: str = "/") -> Answer:
        return await self.door.call("POST", path, body, {"content-type": FORM, "host": HOST})

    async def ask(self, action: str, **members: Any) -> Any:
        """A call that has to succeed."""
        answer = await self.json(action, members)
        assert answer.status == 200, answer.body
        return answer.json()

    async def queue(self, name: str = "jobs", **members: Any) -> str:
        made = await self.ask("CreateQueue", QueueName=name, **members)
        return str(made["QueueUrl"])


async def _sqs(*, auth: bool) -> AsyncIterator[Sqs]:
    # Signatures are made at the time of the machine.
    clock = FakeClock(time.time_ns() // 1_000_000)
    options = BrokerOptions(engine=EngineOptions(clock=clock))
    engine = await open_engine("memory://", options.engine)
    async with Broker(engine, options) as broker:
        access = Access(clock, Keys(engine, clock), enabled=auth)
        service = Service(broker, access, Metrics(engine))
        numbers = count(1)
        door = new_door(service, lambda: f"id-{next(numbers)}")
        yield Sqs(Door(Application(service, (*NATIVE, *HEALTH), (door,)), broker, clock))
        await door.stop()


@pytest.fixture
async def sqs() -> AsyncIterator[Sqs]:
    async for one in _sqs(auth=False):
        yield one


@pytest.fixture
async def guarded() -> AsyncIterator[Sqs]:
    async for one in _sqs(auth=True):
        yield one
