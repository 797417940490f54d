"""docs/how-to/ holds what it says: the Python in its pages runs."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import State
from penstock.testing.inline import inline

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks(name: str) -> list[str]:
    return BLOCK.findall((FOLDER / name).read_text())


def page(name: str) -> dict[str, Any]:
    """What a page defines, one block after the other."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(name):
        exec(compile(block, f"docs/how-to/{name}", "exec"), names)
    return names


def test_every_page_with_code_has_a_test() -> None:
    followed = Path(__file__).parents[1] / "service" / "test_how_to_pages.py"
    source = Path(__file__).read_text() + followed.read_text()
    for path in FOLDER.glob("*.md"):
        assert not blocks(path.name) or f'"{path.name}"' in source


async def test_retries() -> None:
    async with inline(page("retries.md")["app"]) as q:
        for amount in (50, -1, 101):
            await q.publish("orders", {"amount": amount})
        charged, rejected, limited = await q.run_until_idle()
        assert (charged.state, charged.result) == (State.DONE, b"charged")
        assert rejected.state is State.FAILED
        assert (limited.state, limited.error) == (State.DELAYED, "rate limited")
        q.clock.advance(30_000)
        assert [item.attempts for item in await q.run_until_idle()] == [2]
        policy = (await q.queue("billing")).policy
    ceilings = [policy.backoff.ceiling_ms(attempt) for attempt in range(1, policy.max_attempts)]
    assert (len(ceilings), sum(ceilings) // 1000) == (7, 63)


async def test_ordering() -> None:
    names = page("ordering.md")
    async with inline(names["app"]) as q:
        await names["publish"](q)
        await q.run_until_idle()
        assert (await q.queue("ledger")).policy.ordering is penstock.Ordering.PARTITION
    assert names["seen"] == ["open", "deposit", "close"]


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    found = sqlite3.connect(":memory:")
    yield found
    found.close()


async def test_messages_in_messages_out() -> None:
    async with inline(page("exactly-once.md")["app"]) as q:
        await q.publish("orders", {"id": 7, "amount": 5})
        await q.run_until_idle()
        [invoice] = [
            entry.payload
            for entry in (await q.read_log(payloads=True)).entries
            if entry.message.topic == "invoices"
        ]
    assert invoice is not None
    assert json.loads(invoice) == {"order": 7, "amount": 5}


async def test_an_outbox_publishes_once(database: sqlite3.Connection) -> None:
    names = page("exactly-once.md")
    database.executescript(names["SCHEMA"])
    for amount in (5, 6):
        names["order"](database, amount)
    rows = database.execute("SELECT id, topic, payload FROM outbox").fetchall()
    async with penstock.open("memory://") as q:
        await names["publish_outbox"](database, q)
        # The loop was killed before its deletes.
        database.executemany("INSERT INTO outbox VALUES (?, ?, ?)", rows)
        await names["publish_outbox"](database, q)
        entries = (await q.read_log(payloads=True)).entries
    assert [entry.payload for entry in entries] == [
        b'{"id": 1, "amount": 5}',
        b'{"id": 2, "amount": 6}',
    ]
    assert database.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


async def test_a_second_delivery_changes_nothing(database: sqlite3.Connection) -> None:
    names = page("exactly-once.md")
    database.executescript(names["SCHEMA"])
    async with penstock.open("memory://") as q:
        await q.create_queue("accounting", "topic = 'orders'")
        await q.publish("orders", {"amount": 5})
        async with q.consume("accounting") as leases:
            lease = await anext(leases)
            names["invoice"](database, lease)
            # The worker was killed before its ack.
            await lease.release()
        await names["consume"](database, q, 1)
        assert (await q.stats("accounting")).done == 1
    assert database.execute("SELECT amount FROM invoices").fetchall() == [(5,)]


async def test_several_urls_are_taken() -> None:
    with pytest.raises(penstock.errors.Unreachable):
        await page("several-servers.md")["connect_and_publish"]()


async def test_tuning() -> None:
    names = page("tuning.md")
    orders = [{"order": number} for number in range(600)]
    async with penstock.open("memory://") as q:
        await q.create_queue("billing", "topic = 'orders'")
        await names["one_after_the_other"](q, orders[:3])
        await names["concurrently"](q, orders[:3])
        await names["in_batches"](q, orders)
        handled = await names["consume"](q, 606)
        assert sorted(order["order"] for order in handled) == sorted([0, 1, 2] * 2 + [*range(600)])
        assert (await q.stats("billing")).done == 606


PROGRAM = """
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

async def main(app):
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    configure(spans, reader)
    running = asyncio.ensure_future(app.run())
    while True:
        try:
            app.verbs
        except penstock.errors.BadInput:
            await asyncio.sleep(0)
        else:
            break
    print((await order(app)).decode())
    app.stop()
    await running
    for span in spans.get_finished_spans():
        print("span", f"{span.context.trace_id:032x}", span.name)
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
        print("metric", metric.name)

asyncio.run(main(app))
"""


def test_one_trace_from_the_request_to_the_log_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*blocks("monitoring.md"), PROGRAM])],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "charged"
    [line] = [json.loads(x) for x in done.stderr.splitlines() if '"shop"' in x]
    spans = [line.split(" ", 2)[1:] for line in rest if line.startswith("span")]
    trace = {name for trace_id, name in spans if trace_id == line["trace_id"]}
    assert trace == {"POST /orders", "publish orders", "handle billing", "settle billing"}
    assert "claim billing" in {name for _, name in spans}
    assert {line.removeprefix("metric ") for line in rest if line.startswith("metric")} == {
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
        "penstock.client.settled.messages",
    }
