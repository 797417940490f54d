"""What a scrape shows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker import Broker, BrokerOptions
from penstock.model.delivery import Ack, Extend, Nack, Outcome, Receipt, Reject, Release, Verdict
from penstock.model.reports import KeeperReport
from penstock.server.budget import Budget
from penstock.server.metrics import Metrics
from penstock.server.metrics.queue_stats import MAX_NAMED
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "metrics.md"


class Scrape:
    """A scrape as Prometheus reads it."""

    def __init__(self, text: bytes) -> None:
        self.families = {
            family.name: family for family in text_string_to_metric_families(text.decode())
        }
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self, name: str, label: str) -> set[str]:
        return {
            value
            for sample, labels in self.samples
            if sample == name
            for key, value in labels
            if key == label
        }


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def broker(metrics: Metrics, clock: FakeClock) -> AsyncIterator[Broker]:
    options = BrokerOptions(engine=EngineOptions(clock=clock), listener=metrics)
    engine = await open_engine("memory://", options.engine)
    async with Broker(engine, options) as broker:
        metrics.watch(engine, opened_s=0.25)
        yield broker


async def scrape(metrics: Metrics, tenant: str | None = None) -> Scrape:
    return Scrape(await metrics.render(tenant))


async def test_calls_by_verb_and_outcome(metrics: Metrics) -> None:
    for outcome, seconds in (("ok", 0.002), ("ok", 0.2), ("QueueFull", 0.001)):
        metrics.began()
        metrics.called("publish", outcome, seconds)
    metrics.began()
    metrics.waits(3)
    seen = await scrape(metrics)
    assert seen("penstock_calls_total", verb="publish", outcome="ok") == 2
    assert seen("penstock_calls_total", verb="publish", outcome="full") == 1
    assert seen("penstock_calls_total", verb="publish", outcome="error") is None
    assert seen("penstock_call_duration_seconds_bucket", verb="publish", le="0.0025") == 2
    assert seen("penstock_call_duration_seconds_count", verb="publish") == 3
    assert seen("penstock_call_duration_seconds_sum", verb="publish") == pytest.approx(0.203)
    assert seen("penstock_calls_active") == 1
    assert seen("penstock_waits_active") == 3


async def test_the_flow(metrics: Metrics) -> None:
    r = Receipt("r")
    ok, stale, aborted = (
        Outcome(r, verdict) for verdict in (Verdict.OK, Verdict.STALE, Verdict.ABORTED)
    )
    metrics.published(100)
    metrics.claimed(7)
    metrics.settled([Ack(r), Ack(r), Nack(r), Reject(r)], [ok, ok, ok, stale])
    metrics.settled([Release(r), Extend(r, 5), Ack(r)], [ok, ok, aborted])
    seen = await scrape(metrics)
    assert seen("penstock_messages_published_total") == 100
    assert seen("penstock_deliveries_claimed_total") == 7
    settled = {
        verb: seen("penstock_deliveries_settled_total", verb=verb)
        for verb in ("ack", "nack", "reject", "release", "extend")
    }
    assert settled == {"ack": 2, "nack": 1, "reject": 0, "release": 1, "extend": 1}
    assert seen("penstock_receipts_stale_total") == 1


async def test_what_the_engine_tells(metrics: Metrics, broker: Broker, clock: FakeClock) -> None:
    await broker.create_queue("billing")
    await broker.publish("orders", b"x")
    await broker.claim("billing", lease_ms=1000)
    clock.advance(1000)
    await broker.claim("billing")
    metrics.committed(4, 0.003)
    for reason in ("conflict", "connection", "conflict"):
        broker.engine.listener.repeated(reason)
    seen = await scrape(metrics)
    assert seen("penstock_leases_lapsed_total") == 1
    assert seen("penstock_transactions_repeated_total", reason="conflict") == 2
    assert seen("penstock_transactions_repeated_total", reason="connection") == 1
    assert seen("penstock_commit_duration_seconds_bucket", le="0.0025") is not None
    count = seen("penstock_commit_records_count")
    assert count is not None
    assert count >= 1
    assert seen("penstock_commit_duration_seconds_count") == count


async def test_queues_in_numbers(metrics: Metrics, broker: Broker, clock: FakeClock) -> None:
    other = broker.for_tenant("acme")
    await broker.create_queue("billing", "topic = 'orders'")
    await other.create_queue("billing", "topic = 'orders'")
    for _ in range(3):
        await broker.publish("orders", b"x")
    (delivery,) = await broker.claim("billing")
    await broker.reject(delivery)
    await broker.publish("orders", b"x", delay_ms=5000)
    clock.advance(1500)
    seen = await scrape(metrics)
    states = {
        state: seen("penstock_queue_deliveries", tenant="default", queue="billing", state=state)
        for state in ("delayed", "available", "in_flight", "done", "failed", "expired")
    }
    assert states == {
        "delayed": 1,
        "available": 2,
        "in_flight": 0,
        "done": 0,
        "failed": 1,
        "expired": 0,
    }
    place = {"tenant": "default", "queue": "billing"}
    assert seen("penstock_queue_depth", **place) == 3
    assert seen("penstock_queue_lag", **place) == 3
    assert seen("penstock_queue_oldest_available_age_seconds", **place) == 1.5
    assert seen("penstock_queue_depth", tenant="acme", queue="billing") == 0
    assert seen("penstock_queue_oldest_available_age_seconds", tenant="acme", queue="billing") == 0
    assert seen("penstock_queues") == 2
    assert seen("penstock_store_up") == 1
    assert seen("penstock_store_open_duration_seconds") == 0.25


@law("T1")
async def test_a_tenant_sees_its_own_queues_and_nothing_shared(
    metrics: Metrics, broker: Broker
) -> None:
    await broker.create_queue("secret")
    await broker.for_tenant("acme").create_queue("billing")
    metrics.called("publish", "ok", 0.1)
    seen = await scrape(metrics, "acme")
    assert seen.labels("penstock_queue_depth", "tenant") == {"acme"}
    assert seen.labels("penstock_queue_depth", "queue") == {"billing"}
    assert seen("penstock_queues") == 1
    assert all(name.startswith("penstock_queue") for name in seen.families)


async def test_labels_are_bounded(metrics: Metrics, broker: Broker) -> None:
    """Whoever makes more queues than there are lines fills one line."""
    more = 5
    for n in range(MAX_NAMED + more):
        await broker.create_queue(f"q{n:04}", "topic = 'all'")
    await broker.publish("all", b"x")
    seen = await scrape(metrics)
    names = seen.labels("penstock_queue_depth", "queue")
    assert len(names) == MAX_NAMED + 1
    assert f"q{MAX_NAMED - 1:04}" in names
    assert f"q{MAX_NAMED:04}" not in names
    assert seen("penstock_queue_depth", tenant="_other", queue="_other") == more
    assert seen("penstock_queues") == MAX_NAMED + more


async def test_keepers(metrics: Metrics, broker: Broker) -> None:
    reports = (
        KeeperReport(name="sweep", running=True, runs=7, failures=2, finished_at=1_700_000_000_500),
        KeeperReport(name="catch_up", running=False),
    )
    metrics.watch(broker.engine, lambda: reports)
    seen = await scrape(metrics)
    assert seen("penstock_keeper_runs_total", keeper="sweep") == 7
    assert seen("penstock_keeper_failures_total", keeper="sweep") == 2
    assert seen("penstock_keeper_running", keeper="sweep") == 1
    assert seen("penstock_keeper_finished_timestamp_seconds", keeper="sweep") == 1_700_000_000.5
    assert seen("penstock_keeper_running", keeper="catch_up") == 0
    assert seen("penstock_keeper_finished_timestamp_seconds", keeper="catch_up") is None


async def test_a_store_that_does_not_answer_is_told_and_the_rest_is_there(
    metrics: Metrics, broker: Broker
) -> None:
    metrics.published(5)
    await broker.close()
    seen = await scrape(metrics)
    assert seen("penstock_store_up") == 0
    assert seen("penstock_messages_published_total") == 5
    assert seen.labels("penstock_queue_depth", "queue") == set()


async def test_a_queue_deleted_while_it_is_read_is_left_out(
    metrics: Metrics, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create_queue("stays")
    await broker.create_queue("goes")
    listed = await broker.engine.list_queues("default")
    await broker.delete_queue("goes")

    async def as_before(tenant: str) -> object:
        return listed

    monkeypatch.setattr(broker.engine, "list_queues", as_before)
    seen = await scrape(metrics)
    assert seen.labels("penstock_queue_depth", "queue") == {"stays"}


async def test_many_readers_at_once(metrics: Metrics, broker: Broker) -> None:
    await broker.create_queue("billing")
    pages = await asyncio.gather(*(metrics.render() for _ in range(20)))
    assert all(b"penstock_queue_depth" in page for page in pages)


async def test_the_process_is_shown_and_every_metric_is_documented(
    metrics: Metrics, broker: Broker
) -> None:
    await broker.create_queue("billing")
    metrics.began()
    metrics.called("publish", "ok", 0.1)
    report = KeeperReport(name="sweep", running=True, finished_at=1, counters={"failed": 1})
    metrics.watch(broker.engine, lambda: [report], opened_s=1.0)
    metrics.watch_budget(Budget(1))
    seen = await scrape(metrics)
    assert seen("penstock_build_info", version="0.1.0") == 1
    assert seen("process_resident_memory_bytes")
    documented = set(
        re.findall(r"^\| `(penstock_\w+)` \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    )
    own = {
        name + ("_total" if family.type == "counter" else "")
        for name, family in seen.families.items()
        if name.startswith("penstock_")
    }
    assert documented == own


async def test_names_and_units_are_as_prometheus_wants_them(
    metrics: Metrics, broker: Broker
) -> None:
    seen = await scrape(metrics)
    for name, family in seen.families.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert family.documentation
        assert not name.endswith(("_ms", "_milliseconds"))


async def test_metrics_without_a_store(metrics: Metrics) -> None:
    """Before the store is open there is something to read already."""
    assert (await scrape(metrics))("penstock_store_up") == 0
