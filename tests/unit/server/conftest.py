"""The application on the memory engine, called as a server calls it, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import msgspec
import pytest

from penstock.broker import Broker, BrokerOptions
from penstock.server.access import Access, Keys
from penstock.server.app import Application
from penstock.server.health import ROUTES as HEALTH
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES as NATIVE
from penstock.server.service import Service, ServiceLimits
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    def msgpack(self) -> Any:
        return msgspec.msgpack.decode(self.body)


class Door:
    """Calls an ASGI application."""

    def __init__(self, app: Application, broker: Broker, clock: FakeClock) -> None:
        self.app = app
        self.broker = broker
        self.clock = clock
        self.service = app.service
        self.keys = app.service.access.keys
        self.headers: dict[str, str] = {}

    async def call(
        self,
        method: str,
        target: str,
        body: bytes | str | dict | list | None = None,
        headers: dict[str, str] | None = None,
        *,
        leave: asyncio.Event | None = None,
        parts: list[bytes] | None = None,
    ) -> Answer:
        path, _, query = target.partition("?")
        sent = {**self.headers, **(headers or {})}
        if isinstance(body, dict | list):
            body = json.dumps(body)
            sent.setdefault("content-type", "application/json")
        raw = body.encode() if isinstance(body, str) else body or b""
        if parts is None:
            sent.setdefault("content-length", str(len(raw)))
            parts = [raw]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), text.encode()) for name, text in sent.items()],
        }
        waiting = list(parts)
        answer: dict[str, Any] = {}
        chunks: list[bytes] = []

        async def receive() -> dict[str, Any]:
            if waiting:
                part = waiting.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(waiting)}
            await (leave or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                answer.update(event)
            else:
                chunks.append(event.get("body", b""))
                self.sent(chunks)

        await self.app(scope, receive, send)
        found = {name.decode(): text.decode() for name, text in answer.get("headers", [])}
        return Answer(answer.get("status", 0), found, b"".join(chunks))

    def sent(self, chunks: list[bytes]) -> None:
        """Overridden by tests that look at a stream while it is sent."""


def application(broker: Broker, access: Access, limits: ServiceLimits | None = None) -> Application:
    metrics = broker.options.listener
    if not isinstance(metrics, Metrics):
        metrics = Metrics(broker.engine)
    service = Service(broker, access, metrics, limits=limits)
    return Application(service, (*NATIVE, *HEALTH))


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    clock = FakeClock()
    metrics = Metrics()
    options = BrokerOptions(engine=EngineOptions(clock=clock), listener=metrics)
    engine = await open_engine("memory://", options.engine)
    metrics.watch(engine)
    async with Broker(engine, options) as broker:
        yield Door(
            application(broker, Access(clock, Keys(engine, clock), enabled=False)), broker, clock
        )
