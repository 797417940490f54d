"""The examples of docs/integrations.md, as they are printed there."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import dramatiq
import pytest
from starlette.testclient import TestClient
from taskiq.api import run_receiver_task

from penstock.worker import App
from tests.integrations.programs import EXAMPLES
from tests.integrations.test_django import call
from tests.service.serving import Served

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
SECTION = re.compile(r"^## (.+?)\n.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = dict(SECTION.findall(PAGE.read_text()))


def defined(section: str, url: str = "") -> dict[str, Any]:
    """What the snippet defines, with another server."""
    # Libraries look for the module of a task.
    module = sys.modules["page"] = ModuleType("page")
    text = SNIPPETS[section].replace("http://127.0.0.1:8080", url)
    exec(compile(text, "docs/integrations.md", "exec"), vars(module))
    return vars(module)


def test_every_section_is_tested() -> None:
    assert set(SNIPPETS) == {"taskiq", "dramatiq", "Django Tasks", "FastAPI", "Airflow", "pytest"}


async def test_taskiq(served: Served) -> None:
    names = defined("taskiq", served.url)
    broker = names["broker"]
    await broker.startup()
    working = asyncio.create_task(run_receiver_task(broker))
    task = await names["add"].kiq(2, 3)
    assert (await task.wait_result(timeout=60)).return_value == 5
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    await broker.shutdown()


def test_dramatiq(served: Served) -> None:
    names = defined("dramatiq", served.url)
    worker = dramatiq.Worker(names["broker"], worker_threads=1, worker_timeout=100)
    worker.start()
    try:
        assert names["add"].send(2, 3).get_result(block=True, timeout=60_000) == 5
    finally:
        worker.stop()
        names["broker"].close()


def test_django(served: Served) -> None:
    backend = defined("Django Tasks", served.url)["TASKS"]["default"]
    assert backend["BACKEND"] == "penstock.integrations.django.PenstockBackend"
    assert call("transactions", backend["OPTIONS"])["committed"] == "no error"


def test_fastapi(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(defined("FastAPI", served.url)["api"]) as client:
        assert client.post("/orders", json={"id": 7}).status_code == 202
        assert client.post("/orders", json={"id": "seven"}).status_code == 422


def test_airflow() -> None:
    """Its example is run with Airflow itself, and is the same."""
    example = (EXAMPLES / "airflow_dags" / "charge_orders.py").read_text().splitlines()
    missing = [line for line in SNIPPETS["Airflow"].splitlines() if line not in example]
    assert missing == []


def test_pytest(penstock: Any) -> None:
    app = App("http://nowhere")

    @app.worker("billing", filter="topic = 'orders'")
    def charge(order: dict) -> str:
        return f"charged {order['amount']}"

    names = defined("pytest") | {"app": app}
    exec(compile(SNIPPETS["pytest"], "docs/integrations.md", "exec"), names)
    names["test_an_order_is_charged"](penstock)
