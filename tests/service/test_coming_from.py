"""docs/coming-from.md holds what it says: its Penstock blocks run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import State
from penstock.testing.inline import inline
from tests.service.serving import Serve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page defines, one block after the other."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        exec(compile(block, "docs/coming-from.md", "exec"), names)
    return names


def test_every_system_has_a_pair_of_blocks() -> None:
    foreign = re.findall(r"```py\n# (.*?)\n", PAGE)
    assert foreign == ["Celery", "dramatiq", "SQS", "RabbitMQ"]
    assert len(BLOCKS) == 5
    assert all(block.startswith("# Penstock\n") for block in BLOCKS)


async def test_a_task_of_celery(page: dict[str, Any]) -> None:
    async with inline(page["app"]) as q:
        handle = await page["checkout"]()
        assert await q.run_until_idle() == []
        q.clock.advance(10_000)
        [handled] = await q.run_until_idle()
        assert handled.state is State.DONE
        assert await page["wait"](handle) == {"order": 7, "paid": 250}
        await page["charge"].send(8, amount=2_000)
        [rejected] = await q.run_until_idle()
        assert (rejected.state, rejected.error) == (State.FAILED, "over the limit")


async def test_a_chain(page: dict[str, Any]) -> None:
    async with inline(page["app"]) as q:
        await page["pay"].send(7)
        handled = await q.run_until_idle()
        assert [item.state for item in handled] == [State.DONE, State.DONE]
        tasks = [entry.message.headers["task"] for entry in (await q.read_log()).entries]
        assert tasks == ["pay", "pack"]


async def test_the_slot_of_a_periodic_task(page: dict[str, Any]) -> None:
    async with inline(page["app"]) as q:
        half_past_two = (2 * 60 + 30) * 60_000
        q.clock.advance((half_past_two - q.clock.now()) % (24 * 3600_000))
        await q.publish_periodic()
        await q.publish_periodic()
        [handled] = await q.run_until_idle()
        assert (handled.queue, handled.state) == ("billing", State.DONE)


async def test_an_actor_of_dramatiq(page: dict[str, Any]) -> None:
    async with inline(page["mail"]) as q:
        handle = await page["enqueue"]()
        assert (await q.queue("mail")).policy.max_attempts == 4
        q.clock.advance(5_000)
        [handled] = await q.run_until_idle()
        assert handled.state is State.DONE
        assert await handle.result(0) == "sent to a@example.org"


def test_a_loop_of_sqs(page: dict[str, Any], serve: Serve) -> None:
    server = serve()
    assert page["poll"](server.url) == [b'{"order":7}']
    with penstock.sync.connect(server.url) as q:
        assert q.stats("orders").done == 1
        # The id is remembered.
        assert q.publish("orders", {"order": 7}, partition_key="customer-7", id="order-7").duplicate


async def test_a_binding_of_rabbitmq(page: dict[str, Any]) -> None:
    async with penstock.open("memory://") as q:
        assert await page["bind_and_consume"](q) == [b"first"]
        assert [info.name for info in await q.queues()] == ["eu-orders"]
        assert (await q.stats("eu-orders")).done == 1


async def test_numbers_that_the_page_states() -> None:
    limits, policy, topic = penstock.Limits(), penstock.QueuePolicy(), penstock.TopicPolicy()
    assert limits.payload_bytes == 1024 * 1024
    assert (policy.done_retention_s, topic.dedup_window_ms) == (3600, 3600_000)
