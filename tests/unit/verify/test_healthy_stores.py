"""What verify says of a sound store, and what a run looks like from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import Broker, BrokerOptions, EngineOptions, NewMessage, State
from penstock.api import QueueApi
from penstock.errors import UnknownQueue
from penstock.model.delivery import Snapshot
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from penstock.verify import Check, Report, Store, verify
from tests.unit.verify.liar import Liar, Stock, stock_up

LAWS = ["L1", "L2", "P3", "X1", "G1", "R1", "S2", "S3", "C1", "C2", "C3", "C4", "D1", "O1", "Q2"]


def as_store(broker: Broker) -> Store:
    """mypy holds it: a broker has the verbs that verify asks for."""
    return broker


def verbs_as_store(verbs: QueueApi) -> Store:
    """And so has whatever answers to all verbs, over HTTP too."""
    return verbs


def by_law(report: Report) -> dict[str, Check]:
    return {check.law: check for check in report.checks}


async def test_nothing_is_wrong_with_a_sound_store(stock: Stock, clock: FakeClock) -> None:
    report = await verify(as_store(stock.store), clock=clock)
    assert report.ok
    assert report.violations == ()
    assert report.quiescent
    assert (report.queues, report.log_entries) == (4, 18)
    # Seven in each state of jobs, three to come, the keyed one, four in lanes, one in behind.
    assert report.deliveries == 7 + 3 + 1 + 4 + 2
    assert [check.law for check in report.checks] == LAWS
    for check in report.checks:
        assert check.examined > 0, check
        assert (check.unresolved, check.skipped) == (0, None), check
        assert check.what.endswith(".")


async def test_an_empty_store_is_sound(q: Broker) -> None:
    report = await verify(q)
    assert report.ok
    assert (report.queues, report.log_entries, report.deliveries) == (0, 0, 0)


async def test_a_shallow_run_reads_no_payload_and_no_history(stock: Stock) -> None:
    liar = Liar(stock.store)
    liar.on_message = _refuse
    liar.on_history = _refuse
    liar.on_log = lambda entries: [e for e in entries if e.payload is None or _refuse(e)]
    report = await verify(liar, deep=False)
    checks = by_law(report)
    assert report.ok
    assert not report.deep
    assert checks["P3"].skipped == "only a deep run reads payloads"
    assert checks["S2"].skipped == "only a deep run reads histories"
    assert checks["Q2"].examined == 4


async def test_only_the_queues_that_were_named(stock: Stock) -> None:
    liar = Liar(stock.store)
    asked: set[str] = set()

    def note(queue: str, state: State, items: list[Snapshot]) -> list[Snapshot]:
        asked.add(queue)
        return items

    liar.on_page = note
    report = await verify(liar, queues=["lanes", "jobs.dlq", "jobs"])
    assert report.ok
    assert report.queues == 2
    assert asked == {"lanes", "lanes.dlq", "jobs", "jobs.dlq"}


@law("E1")
async def test_an_unknown_queue_is_refused(stock: Stock) -> None:
    with pytest.raises(UnknownQueue):
        await verify(stock.store, queues=["jobs", "nope"])


async def test_times_come_from_the_clock(stock: Stock, clock: FakeClock) -> None:
    began = clock.now()

    def tick(what: str, done: int, total: int | None) -> None:
        clock.advance(1)

    report = await verify(stock.store, clock=clock, progress=tick)
    assert report.started_at == began
    assert report.finished_at == clock.now() > began


async def test_progress_rises_to_its_end(stock: Stock) -> None:
    told: dict[str, list[tuple[int, int | None]]] = {}
    await verify(
        stock.store,
        progress=lambda what, done, total: told.setdefault(what, []).append((done, total)),
    )
    queues = {f"queue {name}" for name in ("behind", "behind.queue", "jobs", "lanes")}
    assert told.keys() == {"log", "messages", "log again"} | queues
    for what, steps in told.items():
        assert steps == sorted(steps)
        done, total = steps[-1]
        assert done == total, what


async def test_a_filter_that_changed_cannot_be_checked_r1(q: Broker) -> None:
    """What was routed before the change stays, and may not match any more."""
    await q.create_queue("jobs", "n = 1")
    await q.publish("jobs", b"", headers={"n": 1})
    await q.update_queue("jobs", filter="n = 2")
    report = await verify(q)
    assert report.ok
    skipped = by_law(report)["R1"].skipped
    assert skipped is not None
    assert "'jobs'" in skipped


async def test_the_note_counts_what_is_no_longer_there(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("jobs", "topic = 'jobs'")
    clock.advance(1)
    await q.publish_batch("jobs", [NewMessage(b"")] * 5)
    await q.purge("jobs", "available", limit=2)
    report = await verify(q)
    assert report.ok
    note = by_law(report)["R1"].note
    assert note is not None
    assert note.startswith("of 5 deliveries that filters ask for, 2 are no longer there")


async def test_a_report_is_a_value(stock: Stock) -> None:
    report = await verify(stock.store)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


async def test_more_than_a_page(q: Broker) -> None:
    """Every reading is in pages, and every delivery in one state only."""
    for start in range(0, 2_500, 500):
        await q.publish_batch("jobs", [NewMessage(b"%d" % n) for n in range(start, start + 500)])
    for delivery in await q.claim("jobs", limit=1_000):
        await q.ack(delivery)
    report = await verify(q)
    assert report.ok
    assert report.quiescent
    assert (report.log_entries, report.deliveries) == (2_500, 2_500)


async def test_large_payloads_are_read_in_parts(q: Broker) -> None:
    await q.create_queue("jobs", "topic = 'jobs'", max_attempts=1)
    for _ in range(12):
        await q.publish("jobs", b"x" * 1_000_000)
    for delivery in await q.claim("jobs", limit=12):
        await q.reject(delivery, "too much")
    largest = 0

    class Measured(Liar):
        async def read_log(self, start, *, limit, payloads=False):
            page = await super().read_log(start, limit=limit, payloads=payloads)
            self._measure(page.entries)
            return page

        async def peek(self, queue, state, **options):
            page = await super().peek(queue, state, **options)
            self._measure(page.items)
            return page

        def _measure(self, items) -> None:
            nonlocal largest
            largest = max(largest, sum(len(item.payload or b"") for item in items))

    report = await verify(Measured(q))
    assert report.ok
    assert 1_000_000 < largest <= 8 * 1024 * 1024


@pytest.mark.parametrize("deep", [True, False])
async def test_a_store_on_disk(tmp_path: Path, clock: FakeClock, deep: bool) -> None:
    url = f"rocksdb://{tmp_path}/store"
    options = EngineOptions(clock=clock)
    async with Broker(await open_engine(url, options), BrokerOptions(engine=options)) as broker:
        await stock_up(broker, clock)
    async with Broker(await open_engine(url, options), BrokerOptions(engine=options)) as broker:
        report = await verify(broker, deep=deep)
        assert report.ok
        assert report.quiescent
        assert report.deliveries == 17


def _refuse(*_: object) -> Any:
    raise AssertionError("this was not to be read")
