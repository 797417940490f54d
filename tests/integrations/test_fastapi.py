"""A FastAPI application that publishes, sends tasks and works."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import penstock
from penstock import sync
from penstock.errors import QueueFull, Unreachable
from penstock.integrations.fastapi import Queue, install_error_handler, lifespan
from tests.integrations.programs import EXAMPLES
from tests.service.serving import Served


@contextmanager
def example(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("PENSTOCK_URL", url)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import fastapi_app

    try:
        yield fastapi_app.api
    finally:
        del sys.modules["fastapi_app"]


def test_the_example(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with example(served.url, monkeypatch) as api, TestClient(api) as client:
        published = client.post("/orders", json={"id": 7})
        assert published.status_code == 202
        assert client.get("/sum", params={"left": 2, "right": 3}).json() == 5
    with sync.connect(served.url) as q:
        assert q.message(published.json()).payload == b'{"id":7}'


@pytest.mark.parametrize(
    "error, status, retry_after",
    [
        (QueueFull("Queue 'a' is full.", queue="a", limit=1, retry_after_ms=2_500), 503, "3"),
        (Unreachable("No answer."), 503, "1"),
        (penstock.errors.Forbidden("Not with this key."), 500, None),
    ],
)
def test_errors(error: Exception, status: int, retry_after: str | None) -> None:
    api = FastAPI(lifespan=lifespan("memory://"))
    install_error_handler(api)

    @api.post("/")
    async def fail(q: Queue) -> None:
        assert await q.log_end() == 0
        raise error

    with TestClient(api, raise_server_exceptions=False) as client:
        reply = client.post("/")
        assert reply.status_code == status
        assert reply.headers.get("retry-after") == retry_after


async def test_the_connection_ends_with_the_application() -> None:
    app = penstock.App()

    @app.task()
    async def task() -> None: ...

    api = FastAPI(lifespan=lifespan("memory://", app=app))
    with TestClient(api):
        assert app.verbs is not None
    with pytest.raises(penstock.errors.BadInput, match="not connected"):
        _ = app.verbs


async def test_an_application_that_fails_at_once_ends_the_workers_too() -> None:
    app = penstock.App()

    @app.task()
    async def task() -> None: ...

    async def fail() -> None:
        async with lifespan("memory://", app=app, work=True)(None):
            raise RuntimeError("another part of the application")

    started = asyncio.create_task(fail())
    done, _ = await asyncio.wait({started}, timeout=60)
    assert done, "the workers go on"
    with pytest.raises(RuntimeError, match="another part"):
        await started
