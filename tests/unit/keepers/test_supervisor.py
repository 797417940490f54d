"""Supervision: a keeper that fails is logged, counted and run again; all of it is reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from penstock import Broker
from penstock.errors import CommitFailed, StoreClosed
from penstock.keepers import Keepers, Pass
from penstock.model.reports import KeeperReport
from penstock.testing.clock import FakeClock

LOGGER = "penstock.keepers"


class Duty:
    """Does what the test says: each pass takes the next outcome, the last one for ever."""

    name = "duty"
    every_ms = 1000

    def __init__(self, *outcomes: Pass | BaseException) -> None:
        self.outcomes = list(outcomes) or [Pass(0, more=False)]
        self.runs = 0
        self.open = asyncio.Event()
        self.open.set()

    async def run(self) -> Pass:
        self.runs += 1
        await self.open.wait()
        outcome = self.outcomes[0] if len(self.outcomes) == 1 else self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


Start = Callable[[Duty], Keepers]


@pytest.fixture
async def start(q: Broker, clock: FakeClock) -> AsyncIterator[Start]:
    started: list[Keepers] = []

    def start_one(duty: Duty) -> Keepers:
        keepers = Keepers(q.engine, clock, [duty])
        keepers.start()
        started.append(keepers)
        return keepers

    yield start_one
    for keepers in started:
        await keepers.stop()


async def calm() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def report_of(keepers: Keepers) -> KeeperReport:
    (report,) = keepers.reports()
    return report


async def test_a_keeper_runs_at_once_and_then_at_its_interval(
    start: Start, clock: FakeClock
) -> None:
    duty = Duty()
    start(duty)
    await calm()
    assert duty.runs == 1
    clock.advance(999)
    await calm()
    assert duty.runs == 1
    clock.advance(1)
    await calm()
    assert duty.runs == 2


async def test_a_keeper_that_stopped_at_its_bound_goes_on_at_once(start: Start) -> None:
    duty = Duty(*[Pass(10, more=True)] * 4, Pass(3, more=False))
    keepers = start(duty)
    await calm()
    assert duty.runs == 5
    assert report_of(keepers).work == 3


async def test_a_report_says_what_the_last_pass_did(start: Start, clock: FakeClock) -> None:
    duty = Duty(Pass(7, more=False))
    begin = clock.now()
    duty.open.clear()
    keepers = start(duty)
    await calm()
    assert report_of(keepers) == KeeperReport(name="duty", running=True, started_at=begin)
    clock.advance(5)
    duty.open.set()
    await calm()
    assert report_of(keepers) == KeeperReport(
        name="duty", running=True, runs=1, started_at=begin, finished_at=begin + 5, work=7
    )


async def test_before_and_after(q: Broker, clock: FakeClock) -> None:
    keepers = Keepers(q.engine, clock, [Duty()])
    assert report_of(keepers) == KeeperReport(name="duty", running=False)
    keepers.start()
    keepers.start()
    await calm()
    assert report_of(keepers).runs == 1
    await keepers.stop()
    await keepers.stop()
    assert not report_of(keepers).running
    clock.advance(10_000)
    await calm()
    assert report_of(keepers).runs == 1


async def test_stopping_what_never_ran(q: Broker, clock: FakeClock) -> None:
    keepers = Keepers(q.engine, clock)
    await keepers.stop()
    assert [report.running for report in keepers.reports()] == [False, False]


async def test_a_failure_is_logged_counted_and_reported(
    start: Start, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    duty = Duty(ZeroDivisionError("no luck"), Pass(1, more=False))
    with caplog.at_level(logging.INFO, LOGGER):
        keepers = start(duty)
        await calm()
        report = report_of(keepers)
        assert (report.running, report.runs, report.failures, report.work) == (True, 1, 1, 0)
        assert report.last_error == "ZeroDivisionError: no luck"
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert "duty" in record.getMessage()
        assert record.exc_info is not None
        clock.advance(1000)
        await calm()
    report = report_of(keepers)
    assert (report.runs, report.failures, report.work) == (2, 1, 1)
    assert report.last_error == "ZeroDivisionError: no luck"
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.INFO]


async def test_the_pause_doubles_up_to_a_minute(
    start: Start, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    duty = Duty(CommitFailed("disk full"))
    keepers = start(duty)
    await calm()
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60, 60):
        before = duty.runs
        clock.advance(seconds * 1000 - 1)
        await calm()
        assert duty.runs == before
        clock.advance(1)
        await calm()
        assert duty.runs == before + 1
    assert report_of(keepers).failures == duty.runs == len(caplog.records)


async def test_after_a_success_the_pause_starts_small_again(
    start: Start, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    failure = ZeroDivisionError()
    duty = Duty(failure, failure, failure, Pass(0, more=False), failure)
    start(duty)
    for seconds in (1, 2, 4, 1, 1, 2):
        await calm()
        clock.advance(seconds * 1000)
    await calm()
    assert duty.runs == 7


async def test_a_closed_store_ends_a_keeper_quietly(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    keepers = start(Duty(StoreClosed("The store is closed.")))
    await calm()
    report = report_of(keepers)
    assert (report.running, report.failures) == (False, 0)
    assert caplog.records == []


async def test_the_keepers_of_a_store_that_is_closed_below_them(
    q: Broker, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    keepers = Keepers(q.engine, clock)
    keepers.start()
    await calm()
    await q.engine.close()
    clock.advance(1000)
    await calm()
    assert not any(report.running for report in keepers.reports())
    assert caplog.records == []
    await keepers.stop()


async def test_stopping_waits_for_the_pass_that_is_under_way(start: Start) -> None:
    duty = Duty(Pass(1, more=True))
    duty.open.clear()
    keepers = start(duty)
    await calm()
    stopping = asyncio.create_task(keepers.stop())
    await calm()
    assert not stopping.done()
    duty.open.set()
    async with asyncio.timeout(60):
        await stopping
    assert (duty.runs, report_of(keepers).runs) == (1, 1)


async def test_a_keeper_that_somebody_else_ended_is_missed(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    before = asyncio.all_tasks()
    keepers = start(Duty())
    await calm()
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    await calm()
    assert not report_of(keepers).running
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


async def test_one_that_fails_does_not_hold_up_another(
    q: Broker, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = Duty(), Duty(ZeroDivisionError())
    keepers = Keepers(q.engine, clock, [bad, good])
    keepers.start()
    for _ in range(5):
        await calm()
        clock.advance(1000)
    await calm()
    assert (good.runs, bad.runs) == (6, 3)
    await keepers.stop()


async def test_a_queue_that_is_behind_is_not_kept_waiting(q: Broker, clock: FakeClock) -> None:
    keepers = Keepers(q.engine, clock)
    broker = Broker(q.engine, q.options, background=keepers)
    keepers.start()
    await q.publish("orders", b"")
    await calm()
    await broker.create_queue("late", start="earliest")
    await calm()
    assert (await q.queue("late")).cursor is None
    sweeps, catches = keepers.reports()
    assert (sweeps.runs, catches.work) == (1, 1)
    await keepers.stop()
