"""Periodic tasks: one firing per slot, whoever publishes it, and the rule of catching up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import BadInput, Forbidden, StoreBusy
from penstock.model.message import NewMessage
from penstock.testing.clock import FakeClock
from penstock.testing.inline import Inline, inline
from penstock.testing.laws import law
from penstock.worker import App, Context
from penstock.worker.periodic import LEAD_MS, Every, Periodic, publish_due, publish_forever

MINUTE = 60_000
HOUR = 60 * MINUTE
START = 1_700_000_000_000 // HOUR * HOUR


def periodic(minutes: int, *, catch_up_ms: int = HOUR, ttl_ms: int | None = None) -> Periodic:
    return Periodic(
        task="report",
        queue="tasks",
        message=NewMessage(b"{}", {"task": "report"}),
        schedule=Every(minutes * MINUTE),
        catch_up_ms=catch_up_ms,
        ttl_ms=ttl_ms,
    )


# -- which slots -----------------------------------------------------------------------


def test_the_next_slot_is_published_a_minute_ahead_and_once() -> None:
    item = periodic(10)
    # The latest slot is now; the next one is nine minutes from its publication.
    first = item.slots(START, None)
    assert (first.due, first.look_at) == ((START,), START + 10 * MINUTE - LEAD_MS)
    then = item.slots(first.look_at, START)
    assert (then.due, then.look_at) == ((START + 10 * MINUTE,), START + 10 * MINUTE)
    # Woken too early: nothing is published twice.
    early = item.slots(first.look_at + 1, START + 10 * MINUTE)
    assert (early.due, early.look_at) == ((), START + 10 * MINUTE)
    at_slot = item.slots(START + 10 * MINUTE, START + 10 * MINUTE)
    assert (at_slot.due, at_slot.look_at) == ((), START + 20 * MINUTE - LEAD_MS)


def test_an_interval_shorter_than_the_lead_is_one_slot_ahead() -> None:
    item = Periodic(
        task="tick",
        queue="tasks",
        message=NewMessage(b"{}"),
        schedule=Every(1_000),
        catch_up_ms=0,
        ttl_ms=None,
    )
    slots = item.slots(START + 1, None)
    assert (slots.due, slots.look_at) == ((START + 1_000,), START + 1_000)
    then = item.slots(START + 1_000, START + 1_000)
    assert (then.due, then.look_at) == ((START + 2_000,), START + 2_000)


@pytest.mark.parametrize(
    "catch_up_ms, late_ms, expected",
    [
        (HOUR, 59 * MINUTE, (START,)),
        (HOUR, HOUR, (START,)),
        (HOUR, HOUR + 1, ()),
        (0, 0, (START,)),
        (0, 1, ()),
    ],
)
def test_the_latest_missed_slot_is_caught_up(
    catch_up_ms: int, late_ms: int, expected: tuple[int, ...]
) -> None:
    item = Periodic(
        task="daily",
        queue="tasks",
        message=NewMessage(b"{}"),
        schedule=Every(24 * HOUR),
        catch_up_ms=catch_up_ms,
        ttl_ms=None,
    )
    day = START // (24 * HOUR) * 24 * HOUR
    shifted = tuple(slot - START + day for slot in expected)
    assert item.slots(day + late_ms, None).due == shifted


def test_only_the_latest_of_several_missed_slots_is_caught_up() -> None:
    # The process was suspended for half an hour.
    assert periodic(5).slots(START + 32 * MINUTE, START).due == (START + 30 * MINUTE,)


# -- one firing across workers ---------------------------------------------------------


def clean() -> App:
    app = App("http://nowhere")

    @app.periodic(every=timedelta(minutes=10), catch_up=timedelta())
    async def report(context: Context) -> object:
        return context.headers["slot"]

    return app


async def moved(q: Inline) -> None:
    """Move the clock to the middle of an interval."""
    q.clock.advance(10 * MINUTE - q.clock.now() % (10 * MINUTE) + 5 * MINUTE)


@law("P4")
async def test_a_slot_fires_once_however_many_workers_publish_it_and_restart() -> None:
    async with inline(clean()) as q:
        await moved(q)
        (item,) = q.app.periodics
        slot = q.clock.now() + 5 * MINUTE
        q.clock.advance(5 * MINUTE - LEAD_MS)
        for _ in range(3):
            last, _ = await publish_due(q, item, q.clock.now(), None)
            assert last == slot
        assert await q.run_until_idle() == []
        q.clock.advance(LEAD_MS)
        # One that restarts at the slot, and whose clock is a little behind.
        await publish_due(q, item, q.clock.now(), None)
        await publish_due(q, item, q.clock.now() - 1_000, None)
        (handled,) = await q.run_until_idle()
        assert handled.result == str(slot).encode()


async def test_inline_publishes_what_is_due() -> None:
    async with inline(clean()) as q:
        await moved(q)
        await q.publish_periodic()
        assert await q.run_until_idle() == []
        for minutes in (5, 10):
            q.clock.advance(minutes * MINUTE - LEAD_MS)
            await q.publish_periodic()
            q.clock.advance(LEAD_MS)
            await q.publish_periodic()
        assert len(await q.run_until_idle()) == 2


async def test_a_slot_that_nobody_began_expires() -> None:
    app = App("http://nowhere")

    @app.periodic(every=timedelta(minutes=10), ttl_ms=1_000)
    async def report() -> None: ...

    async with inline(app) as q:
        await moved(q)
        q.clock.advance(5 * MINUTE - LEAD_MS)
        await q.publish_periodic()
        q.clock.advance(LEAD_MS + 1_001)
        assert await q.run_until_idle() == []


# -- the loop --------------------------------------------------------------------------


class AlarmClock(FakeClock):
    """Tells when the loop goes to sleep, and until when."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.sleeps: asyncio.Queue[int] = asyncio.Queue()

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Any:
        self.sleeps.put_nowait(at_ms)
        return super().call_at(at_ms, callback)

    async def asleep(self) -> int:
        return await asyncio.wait_for(self.sleeps.get(), 60)

    async def sleeps_until(self, at_ms: int) -> None:
        """Let time pass, minute by minute, until the loop sleeps until then."""
        while (until := await self.asleep()) < at_ms:
            assert until <= self.now() + MINUTE
            self.advance(until - self.now())
        assert until == at_ms

    def jump(self, ms: int) -> None:
        """Set the clock forward, which ends no sleep: they are counted on another clock."""
        self._now_ms += ms
        for alarm in self._alarms:
            alarm.at_ms += ms


class Flaky:
    """Publishes, except where it is told to fail."""

    def __init__(self) -> None:
        self.faults: list[Exception] = []
        self.published: list[int] = []

    async def publish_batch(self, topic: str, messages: Any, **options: Any) -> Any:
        if self.faults:
            raise self.faults.pop()
        self.published.append(messages[0].deliver_at)
        return SimpleNamespace(repeated=False)


async def test_the_loop_follows_the_clock_and_survives_a_busy_store() -> None:
    clock = AlarmClock(START + 1)
    verbs: Any = Flaky()
    loop = asyncio.create_task(publish_forever(verbs, [periodic(10, catch_up_ms=0)], clock))
    try:
        await clock.sleeps_until(START + 10 * MINUTE - LEAD_MS)
        verbs.faults = [StoreBusy("busy")]
        clock.advance(START + 10 * MINUTE - LEAD_MS - clock.now())
        again = await clock.asleep()
        assert verbs.published == []
        assert clock.now() < again < START + 10 * MINUTE
        clock.advance(again - clock.now())
        assert await clock.asleep() == START + 10 * MINUTE
        assert verbs.published == [START + 10 * MINUTE]
        # The machine was suspended: missed slots are older than catch_up allows, and are skipped.
        clock.advance(34 * MINUTE)
        next_sleep = START + 50 * MINUTE - LEAD_MS
        await clock.sleeps_until(next_sleep)
        clock.advance(next_sleep - clock.now())
        assert await clock.asleep() == START + 50 * MINUTE
        assert verbs.published == [START + 10 * MINUTE, START + 50 * MINUTE]
    finally:
        loop.cancel()
        await asyncio.wait([loop])


async def test_a_slot_is_not_missed_because_the_machine_was_suspended() -> None:
    """A sleep until the next slot would go on for as long as the machine was suspended."""
    clock = AlarmClock(START + 1)
    verbs: Any = Flaky()
    loop = asyncio.create_task(publish_forever(verbs, [periodic(24 * 60)], clock))
    try:
        first = await clock.asleep()
        midnight = START // (24 * HOUR) * 24 * HOUR + 24 * HOUR
        clock.jump(midnight + 30 * MINUTE - clock.now())
        clock.advance(first - START)
        await clock.asleep()
        assert verbs.published == [midnight]
    finally:
        loop.cancel()
        await asyncio.wait([loop])


async def test_the_loop_ends_with_an_error_that_no_retry_fixes() -> None:
    verbs: Any = Flaky()
    verbs.faults = [Forbidden("no grant")]
    with pytest.raises(Forbidden):
        await asyncio.wait_for(publish_forever(verbs, [periodic(10)], FakeClock(START)), 60)


async def test_a_running_app_fires() -> None:
    app = App("memory://")
    fired: asyncio.Queue[Any] = asyncio.Queue()

    @app.periodic(every=timedelta(seconds=1), catch_up=timedelta(hours=1))
    async def tick(context: Context) -> None:
        await fired.put(context.headers["slot"])

    running = asyncio.create_task(app.run())
    # The slot that has passed is caught up immediately.
    slot = await asyncio.wait_for(fired.get(), 60)
    assert slot % 1_000 == 0
    app.stop()
    await asyncio.wait_for(running, 60)


# -- refusals --------------------------------------------------------------------------


def fine() -> None: ...
def needs(number: int) -> None: ...


@law("E1")
@pytest.mark.parametrize(
    "options, function, field",
    [
        ({}, fine, "cron"),
        ({"cron": "* * * * *", "every": timedelta(minutes=1)}, fine, "cron"),
        ({"cron": "* * * *"}, fine, "cron"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, fine, "timezone"),
        ({"cron": "* * * * *", "timezone": 7}, fine, "timezone"),
        ({"every": timedelta(minutes=1), "timezone": "Europe/Berlin"}, fine, "timezone"),
        ({"every": timedelta(milliseconds=999)}, fine, "every"),
        ({"every": timedelta(days=400)}, fine, "every"),
        ({"every": 999}, fine, "every"),
        ({"every": "1m"}, fine, "every"),
        ({"cron": "* * * * *", "catch_up": -1}, fine, "catch_up"),
        ({"cron": "* * * * *", "catch_up": timedelta(days=8)}, fine, "catch_up"),
        ({"cron": "* * * * *", "catch_up": timedelta(seconds=-1)}, fine, "catch_up"),
        ({"cron": "* * * * *", "ttl_ms": 0}, fine, "ttl_ms"),
        ({"cron": "* * * * *"}, needs, "handler"),
    ],
)
def test_a_bad_schedule_is_refused_when_it_is_registered(
    options: dict[str, Any], function: Any, field: str
) -> None:
    app = App("http://nowhere")
    with pytest.raises(BadInput) as caught:
        app.periodic(**options)(function)
    assert caught.value.field == field
    assert app.registrations == ()
    assert app.periodics == ()


def test_intervals_are_milliseconds_or_timedeltas() -> None:
    app = App("http://nowhere")
    app.periodic(every=60_000, catch_up=1_000, name="a")(fine)
    app.periodic(every=timedelta(minutes=1), catch_up=timedelta(seconds=1), name="b")(fine)
    one, two = app.periodics
    assert (one.schedule, one.catch_up_ms) == (two.schedule, two.catch_up_ms)


@law("E1")
def test_a_periodic_task_is_registered_once() -> None:
    app = App("http://nowhere")
    app.periodic(cron="* * * * *")(fine)
    with pytest.raises(BadInput) as caught:
        app.periodic(cron="* * * * *", queue="others")(fine)
    assert caught.value.field == "name"
