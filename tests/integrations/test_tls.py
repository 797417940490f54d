"""Each library reaches a server that has a certificate of its own authority and asks for one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dramatiq
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from msgspec import Struct
from taskiq import TaskiqMessage

from penstock import sync
from penstock.integrations import dramatiq as on_dramatiq
from penstock.integrations import fastapi as on_fastapi
from penstock.integrations import taskiq as on_taskiq
from tests.integrations.test_airflow import Airflow
from tests.integrations.test_django import call
from tests.service.certificates import self_signed
from tests.service.serving import Serve


class Secured(Struct, frozen=True):
    """The URL of the server, and what a client needs beside it."""

    url: str
    options: dict[str, str]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    serve = Serve(folder)
    pair, client = self_signed(folder), self_signed(folder, "client")
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    try:
        served = serve("--auth", *tls, "--tls-client-ca", str(client.cert), store="memory://")
        files = {"ca": str(pair.cert), "cert": str(client.cert), "key": str(client.key)}
        yield Secured(served.url, {"credential": str(served.told["key"]), **files})
    finally:
        serve.end()


async def test_taskiq(secured: Secured) -> None:
    options: Any = secured.options
    broker = on_taskiq.PenstockBroker(secured.url, **options)
    await broker.startup()
    message = TaskiqMessage(task_id="1", task_name="t", labels={}, args=[], kwargs={})
    await broker.kick(broker.formatter.dumps(message))
    assert (await broker.verbs.stats("taskiq")).available == 1
    await broker.shutdown()


def test_dramatiq(secured: Secured) -> None:
    options: Any = secured.options
    broker = on_dramatiq.PenstockBroker(secured.url, **options)
    broker.declare_queue("default")
    message: dramatiq.Message[Any] = dramatiq.Message("default", "a", (), {}, {})
    broker.enqueue(message)
    assert broker.verbs.stats("default").available == 1
    broker.close()


def test_fastapi(secured: Secured) -> None:
    options: Any = secured.options
    api = FastAPI(lifespan=on_fastapi.lifespan(secured.url, **options))

    @api.get("/")
    async def end(q: on_fastapi.Queue) -> int:
        return await q.log_end()

    with TestClient(api) as client:
        assert client.get("/").status_code == 200


def test_django(secured: Secured, tmp_path: Path) -> None:
    # The credential is in a file, which is read again when it changes.
    options = secured.options | {"url": secured.url, "credential_file": str(tmp_path / "key")}
    (tmp_path / "key").write_text(options.pop("credential"))
    policy = {"max_attempts": 3, "backoff": {"base_ms": 1}}
    assert call("results", options | {"policy": policy})["done"][:2] == ["SUCCESSFUL", 5]


_PRODUCER = """
import asyncio
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from penstock.integrations.airflow.trigger import Producer

async def first():
    trigger = MessageQueueTrigger(
        scheme="penstock", conn_id="secured", queue_name="airflow", filter="topic = 'orders'"
    ).trigger
    producer = Producer(trigger)
    stream = producer.open_stream()
    held, _ = await anext(stream)
    print(held.lease.payload.decode())
    await stream.aclose()
    await producer.aclose()

asyncio.run(first())
"""


@pytest.mark.slow
def test_airflow(secured: Secured, tmp_path: Path) -> None:
    files: dict[str, Any] = dict(secured.options)
    parts = urlsplit(secured.url)
    connection = {
        "conn_type": "http",
        "host": parts.hostname,
        "port": parts.port,
        "schema": "https",
        "password": files.pop("credential"),
        "extra": files,
    }
    options: Any = secured.options
    with sync.connect(secured.url, **options) as q:
        q.ensure_queue("airflow", "topic = 'orders'")
        q.publish("orders", b"seven")
    airflow = Airflow(tmp_path, json.dumps(connection), "secured")
    assert airflow.run("-c", _PRODUCER).splitlines()[-1] == "seven"
