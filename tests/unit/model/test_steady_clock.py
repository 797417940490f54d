"""A clock that does not follow a jump until it has lasted."""

from __future__ import annotations

import logging
import time

import pytest

from penstock.model.clock import SystemClock
from penstock.model.steady_clock import HOLD_MS, TOLERANCE_MS, SteadyClock
from penstock.testing.clock import FakeClock

HOUR_MS = 3_600_000


class Machine:
    """A wall clock and a monotonic one, which agree until the wall clock is set."""

    def __init__(self) -> None:
        self.wall = FakeClock()
        self.elapsed = 0
        self.clock = SteadyClock(self.wall, lambda: self.elapsed * 1_000_000)
        self.start = self.wall.now()

    def pass_time(self, ms: int) -> int:
        self.elapsed += ms
        self.wall.advance(ms)
        return self.clock.now() - self.start

    def set_wall(self, ms: int) -> int:
        self.wall._now_ms += ms
        return self.clock.now() - self.start


def test_time_passes_as_the_wall_clock_says() -> None:
    machine = Machine()
    assert machine.pass_time(5) == 5
    assert machine.set_wall(TOLERANCE_MS) == 5 + TOLERANCE_MS
    assert machine.pass_time(HOUR_MS) == 5 + TOLERANCE_MS + HOUR_MS
    assert machine.set_wall(-7) == TOLERANCE_MS + HOUR_MS - 2
    assert machine.clock.jumps == 0


@pytest.mark.parametrize("jump", [HOUR_MS, -HOUR_MS, TOLERANCE_MS + 1])
def test_a_jump_that_is_undone_changes_nothing(jump: int, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level(logging.WARNING):
        assert machine.set_wall(jump) == 0
        assert machine.pass_time(HOLD_MS - 1) == HOLD_MS - 1
        assert machine.set_wall(-jump) == HOLD_MS - 1
        assert machine.pass_time(HOLD_MS) == 2 * HOLD_MS - 1
    assert machine.clock.jumps == 1
    assert "The clock jumped" in caplog.text
    assert "right again" in caplog.text


@pytest.mark.parametrize("jump", [HOUR_MS, -HOUR_MS])
def test_a_jump_that_lasts_is_followed(jump: int) -> None:
    machine = Machine()
    assert machine.set_wall(jump) == 0
    assert machine.pass_time(HOLD_MS) == HOLD_MS + jump
    assert machine.pass_time(1) == HOLD_MS + jump + 1
    assert machine.clock.jumps == 1


def test_a_second_jump_has_to_last_by_itself() -> None:
    machine = Machine()
    assert machine.set_wall(HOUR_MS) == 0
    assert machine.pass_time(HOLD_MS - 1) == HOLD_MS - 1
    assert machine.set_wall(24 * HOUR_MS) == HOLD_MS - 1
    assert machine.pass_time(HOLD_MS - 1) == 2 * HOLD_MS - 2
    assert machine.set_wall(-24 * HOUR_MS) == 2 * HOLD_MS - 2
    assert machine.pass_time(HOLD_MS) == 3 * HOLD_MS - 2 + HOUR_MS
    assert machine.clock.jumps == 3


def test_small_steps_after_a_jump_do_not_begin_it_anew() -> None:
    machine = Machine()
    machine.set_wall(HOUR_MS)
    assert machine.pass_time(HOLD_MS - 1) == HOLD_MS - 1
    machine.set_wall(TOLERANCE_MS)
    assert machine.pass_time(1) == HOLD_MS + HOUR_MS + TOLERANCE_MS
    assert machine.clock.jumps == 1


async def test_an_alarm_rings_by_the_steady_time() -> None:
    machine = Machine()
    machine.set_wall(HOUR_MS)
    rung: list[int] = []
    machine.clock.call_at(machine.start + 10, lambda: rung.append(1))
    machine.pass_time(9)
    assert not rung
    machine.pass_time(1)
    assert rung


def test_the_elapsed_time_of_the_machine_is_known() -> None:
    clock = SteadyClock(SystemClock())
    assert abs(clock.now() - SystemClock().now()) < TOLERANCE_MS
    assert clock.jumps == 0


def test_a_machine_without_a_clock_that_counts_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    test_the_elapsed_time_of_the_machine_is_known()
