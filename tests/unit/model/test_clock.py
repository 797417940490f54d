"""The clock of the machine, and the one that tests move."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.model.clock import Alarm, Clock, SystemClock
from penstock.testing.clock import FakeClock


def test_the_system_clock_tells_epoch_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().now()
    after = time.time_ns() // 1_000_000
    assert before <= now <= after


async def test_the_system_clock_calls_when_it_is_time() -> None:
    clock, called = SystemClock(), asyncio.Event()
    at_ms = clock.now() + 20
    clock.call_at(at_ms, called.set)
    assert not called.is_set()
    async with asyncio.timeout(60):
        await called.wait()
    # A wall clock is slewed now and then; a millisecond of that is not what this is about.
    assert clock.now() >= at_ms - 1


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["system", "fake"])
async def test_what_is_past_is_called_soon_and_never_at_once(clock: Clock) -> None:
    called = asyncio.Event()
    clock.call_at(clock.now() - 5, called.set)
    assert not called.is_set()
    async with asyncio.timeout(60):
        await called.wait()


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["system", "fake"])
async def test_a_cancelled_alarm_does_not_ring(clock: Clock) -> None:
    called: list[str] = []
    done = asyncio.Event()
    clock.call_at(clock.now(), lambda: called.append("cancelled")).cancel()
    clock.call_at(clock.now(), lambda: called.append("kept"))
    clock.call_at(clock.now() + 1, done.set)
    if isinstance(clock, FakeClock):
        clock.advance(1)
    async with asyncio.timeout(60):
        await done.wait()
        await asyncio.sleep(0)
    assert "cancelled" not in called
    assert "kept" in called


def test_a_fake_clock_calls_when_it_is_moved_the_earliest_first() -> None:
    clock = FakeClock()
    called: list[tuple[int, int]] = []
    start = clock.now()

    def ask(in_ms: int) -> Alarm:
        return clock.call_at(start + in_ms, lambda: called.append((in_ms, clock.now())))

    for in_ms in (30, 10, 20, 10, 50):
        ask(in_ms)
    ask(15).cancel()
    assert clock.next_alarm() == start + 10
    clock.advance(9)
    assert called == []
    clock.advance(21)
    assert called == [(in_ms, start + 30) for in_ms in (10, 10, 20, 30)]
    assert clock.next_alarm() == start + 50
    clock.advance(20)
    assert called[-1] == (50, start + 50)
    assert clock.next_alarm() is None


def test_a_fake_clock_calls_those_who_ask_while_it_moves() -> None:
    clock = FakeClock()
    called: list[str] = []
    start = clock.now()

    def again() -> None:
        called.append("first")
        clock.call_at(clock.now() + 1, lambda: called.append("second"))

    clock.call_at(start + 10, again)
    clock.advance(10)
    assert called == ["first"]
    clock.advance(1)
    assert called == ["first", "second"]


def test_a_fake_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="back"):
        FakeClock().advance(-1)
