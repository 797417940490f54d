"""Metrics through OpenTelemetry: what is counted and timed, with which attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import penstock
from penstock import Ack, Extend, NewMessage
from penstock.errors import BadName, StaleReceipt, UnknownQueue
from penstock.testing.inline import inline
from penstock.worker import App


class Reader:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])
        # The global provider can be set only once.
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: self.provider)

    def read(self, name: str, *attributes: str) -> dict[tuple[object, ...], int]:
        """How much an instrument has counted or how often it was recorded, by attributes."""
        data = self._reader.get_metrics_data()
        found: dict[tuple[object, ...], int] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            if metric.name == name:
                for point in metric.data.data_points:
                    assert point.attributes["messaging.system"] == "penstock"
                    key = tuple(point.attributes.get(attribute) for attribute in attributes)
                    count = getattr(point, "count", None)
                    found[key] = found.get(key, 0) + (point.value if count is None else count)
        return found


OPERATION = ("messaging.operation.name", "messaging.destination.name", "error.type")
SETTLED = ("messaging.destination.name", "penstock.settlement", "penstock.verdict")


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    found = Reader(monkeypatch)
    yield found
    found.provider.shutdown()


async def check_verbs(q: Any, reader: Reader) -> None:
    await q.create_queue("jobs", "topic = 't'")
    await q.publish("t", [1, 2, 3])
    await q.publish_batch("t", [NewMessage(b"2"), NewMessage(b"3")])
    with pytest.raises(BadName):
        await q.publish("no such/name", b"")
    first, second, third = await q.claim("jobs", limit=3)
    assert await q.claim("jobs") == []
    with pytest.raises(UnknownQueue):
        await q.claim("missing")
    await q.ack(first)
    with pytest.raises(StaleReceipt):
        await q.nack(first)
    await q.extend(second, 30_000)
    await q.settle("jobs", [Extend(second.receipt, 30_000), Ack(second.receipt)])
    await q.publish("t", b"4")
    reply = await q.settle_and_claim("jobs", [Ack(third.receipt), Ack(first.receipt)])
    assert len(reply.deliveries) == 1
    assert reader.read("messaging.client.operation.duration", *OPERATION) == {
        ("publish", "t", None): 3,
        ("publish", "no such/name", "BadName"): 1,
        ("claim", "jobs", None): 1,
        ("claim", "missing", "UnknownQueue"): 1,
        ("settle", "jobs", None): 4,
    }
    topic = "messaging.destination.name"
    assert reader.read("messaging.client.sent.messages", topic) == {("t",): 4}
    assert reader.read("messaging.client.consumed.messages", topic) == {("jobs",): 4}
    # An ack may be repeated.
    assert reader.read("penstock.client.settled.messages", *SETTLED) == {
        ("jobs", "ack", "ok"): 4,
        ("jobs", "nack", "stale"): 1,
    }


async def test_the_verbs_of_a_store(reader: Reader) -> None:
    async with penstock.open("memory://") as q:
        await check_verbs(q, reader)


async def test_handlings_by_outcome(reader: Reader) -> None:
    app = App("http://nowhere")

    @app.worker("jobs")
    async def handler(payload: bytes) -> None:
        match payload:
            case b"error":
                raise ValueError
            case b"reject":
                raise penstock.Reject("no")
            case b"retry":
                raise penstock.Retry("later", delay_ms=10)

    async with inline(app) as q:
        for payload in (b"fine", b"error", b"reject", b"retry"):
            await q.publish("jobs", payload)
        await q.run_until_idle()
    found = reader.read(
        "messaging.process.duration", "messaging.destination.name", "penstock.outcome"
    )
    assert {key: count > 0 for key, count in found.items()} == {
        ("jobs", outcome): True for outcome in ("done", "error", "reject", "retry")
    }


async def test_deliveries_of_a_consumption(reader: Reader) -> None:
    async with penstock.open("memory://") as q:
        await q.create_queue("jobs", "topic = 't'")
        await q.publish_batch("t", [NewMessage(b"%d" % number) for number in range(20)])
        async with q.consume("jobs", max_in_flight=4) as leases:
            for _ in range(20):
                async with await anext(leases):
                    pass
    name = "messaging.destination.name"
    assert reader.read("messaging.client.consumed.messages", name) == {("jobs",): 20}
    assert reader.read("penstock.client.settled.messages", *SETTLED) == {("jobs", "ack", "ok"): 20}


async def test_a_provider_that_is_set_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with penstock.open("memory://") as q:
        await q.publish("t", b"")
        for _ in range(2):
            reader = Reader(monkeypatch)
            await q.publish("t", b"")
            found = reader.read("messaging.client.sent.messages", "messaging.destination.name")
            assert found == {("t",): 1}
            reader.provider.shutdown()
