"""taskiq on Penstock: its own receiver, its own worker command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from taskiq import SimpleRetryMiddleware
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import ResultGetError
from taskiq.receiver import Receiver

import penstock
from penstock.api import QueueApi
from penstock.integrations.taskiq import PenstockBroker
from penstock.model.states import State
from tests.integrations.programs import run, running
from tests.service.serving import Served


@pytest.fixture
async def q() -> AsyncIterator[QueueApi]:
    async with penstock.open("memory://") as opened:
        yield opened


@asynccontextmanager
async def working(
    broker: PenstockBroker, ack: AcknowledgeType = AcknowledgeType.WHEN_SAVED
) -> AsyncIterator[None]:
    """A worker in this process."""
    broker.is_worker_process = True
    finish = asyncio.Event()
    receiver = Receiver(broker, run_startup=True, max_async_tasks=10, ack_type=ack)
    listening = asyncio.create_task(receiver.listen(finish))
    try:
        yield
    finally:
        finish.set()
        await listening


async def test_a_task_is_run_and_its_result_is_in_the_ack(q: QueueApi) -> None:
    broker = PenstockBroker(q)

    @broker.task(task_name="add")
    async def add(left: int, right: int) -> int:
        return left + right

    await broker.startup()
    sent = await add.kicker().with_labels(priority=9).kiq(2, 3)
    assert not await sent.is_ready()
    with pytest.raises(ResultGetError):
        await broker.result_backend.get_result(sent.task_id)
    async with working(broker):
        result = await sent.wait_result(check_interval=0.01, timeout=30)
    assert result.return_value == 5
    assert not result.is_err
    (message,) = (await q.find("taskiq", id=sent.task_id)).messages
    assert message.priority == 9
    assert message.headers["task"] == "add"
    ended = await q.result("taskiq", message.id)
    assert ended is not None
    assert ended.result is not None
    assert (await q.stats("taskiq")).depth == 0


async def test_a_task_id_is_run_once(q: QueueApi) -> None:
    broker, ran = PenstockBroker(q), []

    @broker.task(task_name="note")
    async def note(value: str) -> None:
        ran.append(value)

    await broker.startup()
    await note.kicker().with_task_id("only-once").kiq("first")
    sent = await note.kicker().with_task_id("only-once").kiq("second")
    async with working(broker):
        await sent.wait_result(check_interval=0.01, timeout=30)
    assert ran == ["first"]


@pytest.mark.parametrize("no_result_on_retry", [True, False])
async def test_a_retry_is_another_message_with_the_same_result(
    q: QueueApi, no_result_on_retry: bool
) -> None:
    broker = PenstockBroker(q).with_middlewares(
        SimpleRetryMiddleware(default_retry_count=5, no_result_on_retry=no_result_on_retry)
    )
    attempts = 0

    @broker.task(task_name="flaky", retry_on_error=True)
    async def flaky() -> int:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ValueError("not yet")
        return attempts

    await broker.startup()
    sent = await flaky.kiq()
    async with working(broker):
        result = await sent.wait_result(check_interval=0.01, timeout=30)
    assert result.return_value == 3
    assert (await q.stats("taskiq")).done == 3


async def test_an_error_is_a_result(q: QueueApi) -> None:
    broker = PenstockBroker(q)

    @broker.task(task_name="fail")
    async def fail() -> None:
        raise ValueError("no such order")

    await broker.startup()
    sent = await fail.kiq()
    async with working(broker):
        result = await sent.wait_result(check_interval=0.01, timeout=30)
    assert result.is_err
    with pytest.raises(ValueError, match="no such order"):
        result.raise_for_error()


async def test_a_delayed_task_waits_in_the_store(q: QueueApi) -> None:
    broker = PenstockBroker(q)

    @broker.task(task_name="later", delay=60)
    async def later() -> None: ...

    await broker.startup()
    await later.kiq()
    assert (await q.stats("taskiq")).delayed == 1


async def test_an_ack_before_the_result_leaves_none(
    q: QueueApi, caplog: pytest.LogCaptureFixture
) -> None:
    broker = PenstockBroker(q)

    @broker.task(task_name="early")
    async def early() -> int:
        return 1

    await broker.startup()
    sent = await early.kiq()
    async with working(broker, AcknowledgeType.WHEN_RECEIVED):
        (message,) = (await q.find("taskiq", id=sent.task_id)).messages
        assert await q.result("taskiq", message.id, wait_ms=30_000)
    assert await sent.is_ready()
    with pytest.raises(ResultGetError):
        await sent.get_result()
    assert "Can't set result in result backend." in caplog.text


async def test_a_task_whose_workers_die_ends_with_an_error(q: QueueApi) -> None:
    broker = PenstockBroker(q, max_attempts=1)

    @broker.task(task_name="doomed")
    async def doomed() -> None: ...

    await broker.startup()
    sent = await doomed.kiq()
    (delivery,) = await q.claim("taskiq")
    await q.nack(delivery, "the worker was killed")
    result = await sent.wait_result(timeout=30)
    assert result.is_err
    assert "the worker was killed" in str(result.error)
    page = await q.peek("taskiq", State.FAILED)
    assert len(page.items) == 1


def test_the_example(served: Served, tmp_path: Path) -> None:
    with running(
        served.url,
        *("-m", "taskiq", "worker", "taskiq_app:broker", "--workers", "1"),
        log=tmp_path / "worker.log",
    ):
        assert run(served.url, "taskiq_app.py") == "2 + 3 = 5\n"
