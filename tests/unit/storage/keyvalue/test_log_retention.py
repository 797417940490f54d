"""Retention of the log beside publishes: what comes while a sweep pauses stays (G1, A1)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.limits import Limits
from penstock.model.message import NewMessage, Offset
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

TENANT = "acme"
MINUTE_MS = 60_000
#: More turns of the loop than the sweep takes.
PAUSES = 12


@law("G1")
@pytest.mark.parametrize("pauses", range(PAUSES))
async def test_a_publish_during_a_sweep_stays_in_the_log(pauses: int) -> None:
    """It goes to the segment that the sweep has found old, in a log that is kept for minutes."""
    clock = FakeClock()
    limits = Limits(log_retention_ms=10 * MINUTE_MS)
    options = EngineOptions(clock=clock, auto_create=False, limits=limits)
    engine = await KeyValueEngine.open(MemoryAdapter(), options, slice_size=1)
    await engine.publish(TENANT, "t", [NewMessage(b"old")])
    clock.advance(15 * MINUTE_MS)
    sweep = asyncio.create_task(engine.sweep())
    for _ in range(pauses):
        await asyncio.sleep(0)
    reply = await engine.publish(TENANT, "t", [NewMessage(b"new")])
    await sweep
    page = await engine.read_log(TENANT, Offset(0), 10)
    assert reply.messages[0].offset in [entry.message.offset for entry in page.entries]
    await engine.close()
