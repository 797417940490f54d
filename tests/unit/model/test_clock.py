from __future__ import annotations

import time

from penstock.model.clock import SystemClock


def test_the_system_clock_tells_epoch_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().now()
    after = time.time_ns() // 1_000_000
    assert before <= now <= after
