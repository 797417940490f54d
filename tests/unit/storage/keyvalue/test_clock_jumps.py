"""What a clock that jumps ahead by an hour does to a store: nothing, unless it stays there."""

from __future__ import annotations

import pytest

from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start, TopicPolicy
from penstock.model.steady_clock import HOLD_MS, SteadyClock
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

HOUR_MS = 3_600_000


@law("P4")
@pytest.mark.parametrize("lasts", [False, True])
async def test_a_jump_does_not_end_windows_leases_or_retention(lasts: bool) -> None:
    wall, elapsed = FakeClock(), [0]
    clock = SteadyClock(wall, lambda: elapsed[0] * 1_000_000)
    engine = await KeyValueEngine.open(MemoryAdapter(), EngineOptions(clock=clock))
    await engine.put_topic("default", "t", TopicPolicy(dedup_window_ms=HOUR_MS))
    await engine.put_queue("default", "t", QueuePolicy(filter="topic = 't'"), Start())
    message = NewMessage(b"x", id="once", expires_at=wall.now() + HOUR_MS)
    await engine.publish("default", "t", [message])
    assert await engine.claim("default", "t", "c", 1, 1_800_000)
    wall.advance(2 * HOUR_MS)
    if lasts:
        clock.now()
        elapsed[0] += HOLD_MS
        wall.advance(HOLD_MS)
    swept = await engine.sweep()
    reply = await engine.publish("default", "t", [NewMessage(b"x", id="once")])
    if lasts:
        assert (swept.lapsed, swept.ids_forgotten) == (1, 1)
        assert not reply.messages[0].duplicate
    else:
        assert (swept.lapsed, swept.expired, swept.ids_forgotten) == (0, 0, 0)
        assert reply.messages[0].duplicate
    await engine.close()


async def test_a_store_that_goes_by_the_wall_clock_has_a_steady_one() -> None:
    engine = await open_engine("memory://")
    assert isinstance(engine.clock, SteadyClock)
    await engine.close()
