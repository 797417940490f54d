"""docs/workers.md and examples/worker.py hold what they say: every block in them runs."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import State
from penstock.testing.inline import inline
from penstock.worker import Timing

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "workers.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page defines, one block after the other."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        exec(compile(block, "docs/workers.md", "exec"), names)
    return names


def test_the_page_has_its_blocks() -> None:
    assert len(BLOCKS) == 13


@pytest.mark.parametrize("test", ["test_an_order_is_charged", "test_a_rate_limit_is_waited_for"])
async def test_the_tests_of_the_page_pass(page: dict[str, Any], test: str) -> None:
    await page[test]()


async def test_a_bad_address_is_rejected_and_the_delays_are_as_said(page: dict[str, Any]) -> None:
    async with inline(page["app"]) as q:
        await q.publish("mail", "nobody")
        handled = {item.queue: item for item in await q.run_until_idle()}
    assert handled["mail"].state is State.FAILED
    assert handled["mail"].error == "'nobody' is no address"


async def test_what_an_invoice_publishes(page: dict[str, Any]) -> None:
    async with inline(page["app"]) as q:
        await q.publish("paid", page["Receipt"](7, 250))
        end = await q.log_end()
        await q.run_until_idle()
        page_of_log = await q.read_log(end, payloads=True)
        shown = {(item.message.topic, item.payload) for item in page_of_log.entries}
    assert shown == {
        ("mail", b"customer-7@example.com"),
        ("ledger", b'{"order":7,"paid":250}'),
    }


async def test_the_middleware_refuses(page: dict[str, Any]) -> None:
    async with inline(page["app"]) as q:
        await q.publish("mail", "a@b", headers={"tenant": "blocked"})
        handled = {item.queue: item for item in await q.run_until_idle()}
    assert handled["mail"].error == "blocked"


def test_the_observer_prints(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    page["observe"](Timing(queue="q", handler="charge", seconds=0.25, outcome="done"))
    assert capsys.readouterr().out == "charge on q: done in 0.250 s\n"


async def test_consume_without_an_app(page: dict[str, Any]) -> None:
    async with penstock.open("memory://") as q:
        await q.create_queue("billing")
        for number in range(5):
            await q.publish("orders", page["Order"](number, 100))
        assert await asyncio.wait_for(page["work"](q, 5), 60) == 500
        assert (await q.stats("billing")).done == 5


async def test_tasks_and_periodic_tasks_run(page: dict[str, Any]) -> None:
    async with inline(page["tasks"]) as q:
        handle = await page["charge_order"].send(page["Order"](7, 250), currency="CHF")
        await page["send_mail"].send("someone@example.org")
        await q.run_until_idle()
        assert await handle.result(0) == page["Receipt"](7, 250)
        q.clock.advance(5 * 60_000 - q.clock.now() % (5 * 60_000))
        await q.publish_periodic()
        handled = await q.run_until_idle()
        assert [(item.queue, item.error) for item in handled] == [("tasks", None)]


def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "worker.py"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "order 1: charged 101" in done.stdout
    assert "receipt for order 3, charged at attempt 2" in done.stdout
    assert "no card covers 5000" in done.stdout
    assert "billing: 5 done, 1 failed; mail: 5 done" in done.stdout
    assert done.stderr == ""


async def test_the_loop_over_batches(page: dict[str, Any]) -> None:
    async with penstock.open("memory://") as q:
        await q.create_queue("billing")
        for number in range(3):
            await q.publish("orders", page["Order"](number, 100))
        working = asyncio.create_task(page["work_in_batches"](q))
        async with asyncio.timeout(60):
            while (await q.stats("billing")).done < 2:  # noqa: ASYNC110  (it settles by itself)
                await asyncio.sleep(0)
        assert (await q.stats("billing")).failed == 1
    await asyncio.wait_for(working, 60)
